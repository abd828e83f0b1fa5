"""Parked calls and lost workers, killed in each state; a Redis that restarts. Each approved call runs once."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.broker import parked_calls, parked_views
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.broker.parked_views import ParkedCallView
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, Start, is_up, kill, restartable
from tests.faults.ledger import Ledger, wait_for_runs, witness
from tests.processes import Worker, environment_of, wait_until
from tests.valkey import Valkey


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def find_parked(table: Any) -> list[ParkedCallView]:
    return parked_views.load_waiting(table, 1000)[0]


def wait_for_parked(table: Any, count: int = 1) -> list[ParkedCallView]:
    wait_until(lambda: len(find_parked(table)) == count, f"{count} calls are parked", TIMEOUT_S)
    return find_parked(table)


def approve(table: Any, view: ParkedCallView) -> None:
    assert parked_calls.decide(table, view, is_approved=True, by="ann") is Decided.APPROVED


@pytest.fixture
def start(start_mortal: Start, ledger: Ledger) -> Start:
    """All serve `desk`."""
    return lambda *options, **more: start_mortal({"desk": witness(ledger, *options, approval="always", **more)})


def build_tools() -> ToolExecutor:
    return ToolExecutor(["desk"], timeout_s=TIMEOUT_S, park=True)


def test_a_worker_that_is_lost_loses_no_parked_call(start: Start, ledger: Ledger, table: Any) -> None:
    worker = start()
    with build_tools() as tools:
        pending = tools.submit("desk.add", {"key": "parked"})
        [view] = wait_for_parked(table)
        kill(worker)
        approve(table, view)
        assert table.llen("mcp.desk") == 1, "it waits for a worker"
        start()
        result = pending.result()
    assert (result.outcome, result.content) == (Outcome.OK, "parked")
    assert ledger.runs("add")["parked"] == 1


@pytest.mark.parametrize("tool", ["add", "look"])
def test_an_approved_call_whose_worker_is_lost_is_not_repeated(
    start: Start, ledger: Ledger, table: Any, tool: str
) -> None:
    """One approval is for one run, also of a tool that is harmless to repeat."""
    worker = start()
    with build_tools() as tools:
        pending = tools.submit(f"desk.{tool}", {"key": "held"})
        [view] = wait_for_parked(table)
        approve(table, view)
        wait_for_runs(ledger, 1)
        kill(worker)
        start()
        result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.WORKER_LOST)
    assert ledger.runs(tool)["held"] == 1
    assert find_parked(table) == [], "nobody is asked again"


def test_an_approved_call_that_was_not_sent_runs_elsewhere(start: Start, ledger: Ledger, table: Any) -> None:
    worker = start("--mute", "2", session="per_call")
    wait_until(lambda: ledger.starts == 1, "the session that lists the tools")
    with build_tools() as tools:
        pending = tools.submit("desk.add", {"key": "unsent"})
        [view] = wait_for_parked(table)
        assert ledger.starts == 1, "a call that waits for a person opens no session"
        approve(table, view)
        wait_until(lambda: ledger.starts == 2, "the session of the call is being opened")
        kill(worker)
        start("--mute", "2", session="per_call")
        assert pending.result().outcome is Outcome.OK
    assert ledger.runs("add")["unsent"] == 1
    assert find_parked(table) == [], "nobody is asked again"


def test_a_chain_goes_on_after_its_worker_was_lost(start: Start, ledger: Ledger, table: Any) -> None:
    worker = start()
    last = chain(*(tool_signature("desk.add", {"key": key}, park=True) for key in ("one", "two"))).delay()
    [view] = wait_for_parked(table)
    kill(worker)
    start()
    approve(table, view)
    wait_until(lambda: [each for each in find_parked(table) if each.id == last.id], "the second is parked", TIMEOUT_S)
    [view] = find_parked(table)
    approve(table, view)
    assert ToolResult.model_validate(last.get(timeout=TIMEOUT_S)).content == "two"
    assert ledger.runs("add") == {"one": 1, "two": 1}


def test_parked_calls_outlive_a_restart_of_everything(tmp_path: Path, ledger: Ledger) -> None:
    count = 50
    with restartable(tmp_path, {"desk": witness(ledger, approval="always")}) as everything, build_tools() as tools:
        pending = [tools.submit("desk.add", {"key": str(number)}) for number in range(count)]
        wait_for_parked(everything.table, count)
        everything.restart()
        for view in wait_for_parked(everything.table, count):
            approve(everything.table, view)
        results = [each.result() for each in pending]
    assert {result.outcome for result in results} == {Outcome.OK}, json.dumps([each.content for each in results])
    assert ledger.runs("add") == {str(number): 1 for number in range(count)}


class Faults:
    """Two workers and a Redis of their own, to which something is done while people approve calls."""

    def __init__(self, directory: Path, ledger: Ledger) -> None:
        self.directory = directory
        self.servers = {"desk": witness(ledger, approval="always")}
        self.valkey = Valkey(appendonly="yes", appendfsync="always")
        self.valkey.start()
        self.address = f"{self.valkey.connection_url}/0"
        self.table = redis.Redis.from_url(self.address)
        self.workers: list[Worker] = []
        for _ in range(2):
            self.start_worker()

    def start_worker(self) -> None:
        place = self.directory / f"w{len(self.workers)}"
        self.workers.append(
            Worker(place, self.servers, self.address, name=place.name, settings=SHORT_LEASE, arguments=["-c", "4"])
        )
        self.workers[-1].wait_until_ready()

    def a_worker_is_killed(self) -> None:
        kill(self.workers[-1])
        self.start_worker()

    def a_worker_is_stopped(self) -> None:
        self.workers[-1].stop()
        self.start_worker()

    def redis_is_killed(self) -> None:
        self.valkey.terminate()
        self.valkey.start()
        wait_until(lambda: is_up(self.table), "Redis is back")

    def connections_are_cut(self) -> None:
        for _ in range(5):
            for connection in self.table.client_list():
                if connection["user"] == "worker":
                    self.table.execute_command("CLIENT", "KILL", "ID", connection["id"])

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                kill(worker)
        self.table.close()
        self.valkey.terminate()


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Faults, Ledger]]:
    directory = tmp_path_factory.mktemp("faults")
    ledger = Ledger(directory / "ledger")
    found = Faults(directory, ledger)
    with environment_of(found.workers[0]):
        yield found, ledger
    found.close()


@pytest.mark.parametrize(
    "fault", ["a_worker_is_killed", "a_worker_is_stopped", "redis_is_killed", "connections_are_cut"]
)
def test_each_approved_call_runs_once_whatever_fails(faults: tuple[Faults, Ledger], fault: str) -> None:
    """The fault comes while calls are in each state between the decision and the answer."""
    stage, ledger = faults
    with ToolExecutor(["desk"], timeout_s=TIMEOUT_S, park=True) as tools:
        pending = {f"{fault}-{n}": tools.submit("desk.add", {"key": f"{fault}-{n}"}) for n in range(24)}
        views = wait_for_parked(stage.table, 24)
        with ThreadPoolExecutor(2) as threads:
            approving = threads.submit(approve_until_done, stage.table, views)
            wait_until(lambda: any(key in pending for key in ledger.runs("add")), "the first one runs", TIMEOUT_S)
            threads.submit(getattr(stage, fault)).result()
            approving.result()
        results = {key: each.result() for key, each in pending.items()}
    runs = ledger.runs("add")
    assert {result.outcome for result in results.values()} <= {Outcome.OK, Outcome.UNKNOWN}
    for key, result in results.items():
        assert runs[key] <= 1
        assert runs[key] == 1 or result.outcome is Outcome.UNKNOWN
    assert sum(result.outcome is Outcome.UNKNOWN for result in results.values()) <= 8, "those that had begun"


def approve_until_done(table: Any, views: list[ParkedCallView]) -> None:
    for view in views:
        decided = wait_until(lambda view=view: try_to_approve(table, view), "it was decided", TIMEOUT_S)
        assert decided in (Decided.APPROVED, Decided.LATE), decided  # late: the reply to the first try was lost


def try_to_approve(table: Any, view: ParkedCallView) -> Decided | None:
    try:
        return parked_calls.decide(table, view, is_approved=True, by="ann")
    except redis.RedisError:
        return None
