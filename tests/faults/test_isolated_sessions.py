"""Each run of an agent has its own session with a server, in whichever worker, and nobody else gets into it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolCall, ToolExecutor
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 6}\n'
"""Not so short that a worker on a busy machine counts as dead while it opens many sessions."""
RUNS = 6
MANY = 200
HTTP_PATH = "old/sse/none"


@pytest.fixture(scope="module", autouse=True)
def workers(start_worker: StartWorker, directory: Path, witness_url: str) -> list[Worker]:
    def desk(name: str, **isolated: object) -> dict[str, Any]:
        return witness(Ledger(directory / name), isolated=isolated)

    servers = {
        "desk": desk("desk"),
        "brief": desk("brief", idle_s=4),
        "again": desk("again", restart=True),
        "few": desk("few", max_per_worker=1),
        "http": {"url": f"{witness_url}/{HTTP_PATH}", "isolated": {"max_per_worker": MANY, "max_per_agent": MANY}},
    }
    workers = [start_worker(servers, settings=SHORT_LEASE, wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    return workers


@pytest.fixture(scope="module")
def store(redis_url: str) -> Iterator[Any]:
    """Redis. Nothing may be deleted there while workers hold sessions."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


def count(tools: ToolExecutor, server: str = "desk") -> int:
    """How often `count` was called in the session of the run."""
    result = tools.execute(ToolCall(id="c", name=f"{server}.count", arguments={}))
    assert result.outcome is Outcome.OK, result.content
    return int(result.content)


def claims(store: Any) -> list[bytes]:
    return store.keys("tarsy:session:*")


def open_in_both_workers(server: str, store: Any) -> tuple[list[ToolExecutor], list[bytes]]:
    """Runs with a session each, in either worker at least one, which depends on who is quicker; and their holders."""
    runs: list[ToolExecutor] = []
    holders: list[bytes] = []
    while len(runs) < RUNS or len(set(holders)) < 2:
        assert len(runs) < 40, holders
        runs.append(ToolExecutor(session="run"))
        assert count(runs[-1], server) == 1
        holders = [store.hget(key, "holder") for key in store.keys(f"tarsy:session:{server}:*")]
    return runs, holders


@pytest.mark.parametrize("server", ["desk", "http"])
def test_each_run_has_a_session_of_its_own_in_either_worker(server: str, store: Any) -> None:
    runs = [ToolExecutor(session="run") for _ in range(RUNS)]
    for turn in range(1, 4):
        assert [count(tools, server) for tools in runs] == [turn] * RUNS
    holders = {store.hget(key, "holder") for key in claims(store)}
    assert len(claims(store)) == RUNS
    assert len(holders) <= 2
    for tools in runs:
        tools.close()
    wait_until(lambda: not claims(store), "all sessions are closed")


def test_many_runs_at_once_do_not_meet_and_leave_nothing_behind(
    workers: list[Worker], directory: Path, store: Any
) -> None:
    ledger = Ledger(directory / HTTP_PATH.replace("/", "-"))
    # Claims are given up before sessions are ended: those of the last test may still be open.
    shared = "only the session that all share is open in each worker"
    wait_until(lambda: ledger.starts - len(ledger.lines("delete")) == len(workers), shared, 60)
    opened, closed = ledger.starts, len(ledger.lines("delete"))

    async def run() -> list[str]:
        async with AsyncToolExecutor(session="run", timeout_s=90) as tools:
            return [(await tools.execute("http.count")).content for _ in range(2)]

    async def run_all() -> list[list[str]]:
        return await asyncio.gather(*(run() for _ in range(MANY)))

    assert asyncio.run(run_all()) == [["1", "2"]] * MANY
    wait_until(lambda: not claims(store), "all sessions are closed", 60)
    assert ledger.starts - opened == MANY
    wait_until(lambda: len(ledger.lines("delete")) - closed == MANY, "each session was ended there", 60)
    assert not store.zcard("tarsy:sessions:http")


def test_calls_of_a_run_at_the_same_time_share_its_session() -> None:
    async def run() -> list[str]:
        async with AsyncToolExecutor(session="run") as tools:
            calls = [ToolCall(id=str(number), name="desk.count", arguments={}) for number in range(20)]
            return [result.content for result in await tools.execute_many(calls)]

    assert sorted(map(int, asyncio.run(run()))) == [*range(1, 21)]


def test_executors_of_one_run_share_its_session(store: Any) -> None:
    with ToolExecutor(session="run", run_id="r7") as first:
        with ToolExecutor(session="run", run_id="r7") as second:
            assert [count(first), count(second), count(first)] == [1, 2, 3]
        assert count(first) == 4
    wait_until(lambda: not claims(store), "the session is closed")
    with ToolExecutor(session="run", run_id="r7") as later:
        assert count(later) == 1


def test_a_call_after_close_has_a_new_session() -> None:
    """The worker may get the wishes to close and that call at once."""
    with ToolExecutor(session="run") as tools:
        for _ in range(10):
            assert [count(tools, server) for server in ("desk", "again", "http")] == [1, 1, 1]
            tools.close()


def test_nothing_is_left_of_a_run_that_nobody_closes(workers: list[Worker], directory: Path, store: Any) -> None:
    tools = ToolExecutor(session="run")
    assert [count(tools, "brief"), count(tools, "brief")] == [1, 2]
    path = str(directory / "brief")
    # One process in each worker stays: that of the shared session.
    wait_until(
        lambda: all(len(each.find_children(path)) == 1 for each in workers), "the session is closed when it is idle"
    )
    told = tools.execute("brief.count")
    assert (told.error_code, told.outcome) == (ErrorCode.SESSION_LOST, Outcome.UNKNOWN)
    assert "closed after 4 s without a call" in told.content
    assert count(tools, "brief") == 1
    tools.close()
    wait_until(lambda: not claims(store), "the session is closed")


def test_a_process_that_ends_takes_the_state_of_its_run_along(workers: list[Worker], directory: Path) -> None:
    with ToolExecutor(session="run") as tools, ToolExecutor(session="run") as renewed:
        assert [count(tools), count(tools), count(renewed, "again")] == [1, 2, 1]
        for server in ("desk", "again"):
            for worker in workers:
                for child in worker.find_children(str(directory / server)):
                    child.kill()
        told = tools.execute("desk.count")
        assert told.error_code is ErrorCode.SESSION_LOST
        assert count(tools) == 1
        assert count(renewed, "again") == 1


def test_a_run_that_finds_no_room_waits_and_is_told() -> None:
    full = [ToolExecutor(["few"], session="run") for _ in range(2)]
    assert [count(tools, "few") for tools in full] == [1, 1]
    assert [count(tools, "few") for tools in full] == [2, 2]
    with ToolExecutor(session="run", timeout_s=5) as hasty, ToolExecutor(session="run") as patient:
        told = hasty.execute("few.count")
        assert (told.error_code, told.outcome) == (ErrorCode.TOO_MANY_SESSIONS, Outcome.UNAVAILABLE)
        waiting = patient.submit("few.count")
        full[0].close()
        assert waiting.result().content == "1"
    full[1].close()


def test_after_its_worker_was_lost_a_run_is_told_once(
    workers: list[Worker], start_worker: StartWorker, store: Any
) -> None:
    """The last test: both workers go."""
    runs, _ = open_in_both_workers("desk", store)
    renewed, holders = open_in_both_workers("again", store)
    kept = sum(not holder.startswith(b"w1@") for holder in holders)
    lost = workers[1]
    lost.process.kill()
    lost.process.wait()
    later = [tools.execute("desk.count") for tools in runs]
    told = [result for result in later if result.error_code is ErrorCode.SESSION_LOST]
    assert told
    assert len(told) < len(runs)
    assert all("its worker was lost" in result.content for result in told)
    assert [result.content for result in later if result not in told] == ["2"] * (len(runs) - len(told))
    expected = [1 if result in told else 3 for result in later]
    assert [count(tools) for tools in runs] == expected
    assert sorted(count(tools, "again") for tools in renewed) == [1] * (len(renewed) - kept) + [2] * kept
    # The other one is replaced in good order.
    servers = json.loads(workers[0].config_path.read_text())["mcpServers"]
    start_worker(servers, settings=SHORT_LEASE)
    assert workers[0].stop() == 0
    told = [tools.execute("desk.count") for tools in runs]
    assert {result.error_code for result in told} == {ErrorCode.SESSION_LOST}
    assert all("its worker was stopped" in result.content for result in told)
    assert [count(tools) for tools in runs] == [1] * len(runs)
    for tools in [*runs, *renewed]:
        tools.close()
    wait_until(lambda: not claims(store), "all sessions are closed")
