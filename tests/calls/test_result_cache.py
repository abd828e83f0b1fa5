"""The cache of answers: two workers, one question, one call of the server."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome, ToolCall, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tarsy_tasks.telemetry.metrics import read_metrics
from tests.calls.audit_entries import only_entry
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, wait_for_runs, witness
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.servers import listing_file

LONG_S = 600
SHORT_S = 0.3
POLICY = {"limits": [{"tools": ["scarce.look"], "rate": "1/day", "burst": 1}]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def ledger(directory: Path) -> Ledger:
    """What the server `books` did, for both workers."""
    return Ledger(directory / "books")


@pytest.fixture(scope="module")
def single(directory: Path) -> Ledger:
    """The same of the server `single`, of which each worker makes one call at a time."""
    return Ledger(directory / "single")


@pytest.fixture(scope="module")
def workers(start_worker: StartWorker, directory: Path, ledger: Ledger, single: Ledger) -> list[Worker]:
    (directory / "policy.json").write_text(json.dumps(POLICY))
    listing = [{"name": "write", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False}}]
    (directory / "tools.json").write_text(json.dumps(listing))
    cache = {"tools": {"look": LONG_S, "re*": SHORT_S, "meet": LONG_S}}
    writer = [listing_file.__file__, str(directory / "tools.json")]
    servers = {
        "books": witness(ledger, cache=cache),
        "single": witness(single, cache=cache, max_concurrency=1),
        "scarce": witness(Ledger(directory / "scarce"), cache=cache),
        "shared": witness(Ledger(directory / "shared"), cache=cache, max_concurrency=4),
        "desk": {**DEMO_SERVER, "cache": {"tools": {"*": LONG_S}}},
        "writer": {"command": sys.executable, "args": writer, "cache": {"tools": {"write": LONG_S}}},
    }
    environment = {"TARSY_POLICY": str(directory / "policy.json")}
    return [start_worker(servers, environment=environment) for _ in range(2)]


@pytest.fixture
def tools(workers: list[Worker]) -> Iterator[ToolExecutor]:
    assert workers
    with ToolExecutor(timeout_s=60) as tools:
        yield tools


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def look(tools: ToolExecutor, key: str, **more: Any) -> ToolResult:
    return tools.execute(ToolCall(id=f"c-{key}", name="books.look", arguments={"key": key}, **more))


def test_the_same_question_is_asked_once(tools: ToolExecutor, ledger: Ledger) -> None:
    first, second = look(tools, "once"), look(tools, "once")
    assert (first.content, first.cached, first.attempts) == ("once", False, 1)
    assert (second.content, second.cached, second.attempts, second.call_id) == ("once", True, 0, "c-once")
    assert look(tools, "another").cached is False
    assert (ledger.runs()["once"], ledger.runs()["another"]) == (1, 1)


def test_how_the_arguments_are_written_does_not_matter(tools: ToolExecutor, ledger: Ledger) -> None:
    assert not tools.execute("books.look", {"key": "order", "length": 3}).cached
    for written in ({"length": 3, "key": "order"}, '{"length": 3, "key": "order"}', "key: order, length: 3"):
        assert tools.execute("books.look", written).cached
    assert ledger.runs()["order"] == 1


def test_structured_values_and_attachments_are_kept(tools: ToolExecutor) -> None:
    for name, arguments in (("desk.quote", {"item": "lamp"}), ("desk.label", {"item": "lamp"})):
        first, second = tools.execute(name, arguments), tools.execute(name, arguments)
        differing = {"cached", "attempts", "duration_s", "task_id", "answered_at"}
        assert second.cached
        assert first.model_dump(exclude=differing) == second.model_dump(exclude=differing)


def test_only_named_tools_are_cached(tools: ToolExecutor, ledger: Ledger) -> None:
    for _ in range(2):
        assert not tools.execute("books.add", {"key": "unnamed"}).cached
    assert ledger.runs()["unnamed"] == 2


def test_a_tool_that_is_not_read_only_is_never_cached(tools: ToolExecutor, workers: list[Worker]) -> None:
    assert not any(tools.execute("writer.write").cached for _ in range(2))
    assert any("answers of writer.write are not cached" in worker.log for worker in workers)


def test_an_answer_is_kept_for_its_time(tools: ToolExecutor, ledger: Ledger) -> None:
    ask = ToolCall(name="books.renew", arguments={"key": "short"})
    assert not tools.execute(ask).cached
    wait_until(lambda: not tools.execute(ask).cached, "its time is over")
    assert ledger.runs()["short"] == 2


def test_errors_are_not_cached(tools: ToolExecutor) -> None:
    for _ in range(2):
        result = tools.execute("desk.order", {"item": "unicorn", "count": 1})
        assert (result.outcome, result.cached, result.attempts) == (Outcome.TOOL_ERROR, False, 1)


def test_no_cache_asks_again_and_renews_what_is_kept(tools: ToolExecutor, ledger: Ledger) -> None:
    look(tools, "renewed")
    assert not look(tools, "renewed", no_cache=True).cached
    assert ledger.runs()["renewed"] == 2
    assert look(tools, "renewed").cached
    signature = tool_signature("books.look", {"key": "renewed"}, no_cache=True)
    assert "cached" not in signature.delay().get(timeout=30)
    assert ledger.runs()["renewed"] == 3


def test_the_command_line_has_no_cache(tools: ToolExecutor, workers: list[Worker], ledger: Ledger) -> None:
    look(tools, "typed")
    for options, cached in (([], True), (["--no-cache"], False)):
        done = run_command("call", "books.look", "key=typed", "--json", *options, environment=workers[0].environment)
        assert json.loads(done.stdout).get("cached", False) is cached
    assert ledger.runs()["typed"] == 2


def test_audit_and_metrics_show_what_was_cached(tools: ToolExecutor, client: Any) -> None:
    look(tools, "shown")
    task_id = look(tools, "shown").task_id
    entry = only_entry(client, task_id)
    assert (entry.cached, entry.attempts, entry.outcome) == (True, 0, Outcome.OK)

    def count() -> int:
        return sum(each.cached for each in read_metrics(client, ["books"])["books"] if each.tool == "look")

    wait_until(count, "the metrics are in Redis")


def test_all_who_ask_at_once_get_one_answer(tools: ToolExecutor, directory: Path, client: Any) -> None:
    ask = ToolCall(name="shared.look", arguments={"key": "flight", "wait_s": 5})
    found = [each.result() for each in [tools.submit(ask) for _ in range(8)]]
    assert [each.content for each in found] == ["flight"] * 8
    assert Ledger(directory / "shared").runs()["flight"] == 1
    assert sorted(each.cached for each in found) == [False] + [True] * 7
    entries = read_audit(client, AuditFilter(server="shared")).entries
    assert len({entry.worker for entry in entries}) == 2, "both workers had such calls"


def test_a_leader_that_is_cancelled_holds_nobody_up(tools: ToolExecutor, ledger: Ledger) -> None:
    ask = ToolCall(name="books.look", arguments={"key": "cancelled", "wait_s": 4})
    leader = tools.submit(ask)
    wait_until(lambda: ledger.runs()["cancelled"], "the leader asks")
    followers = [tools.submit(ask) for _ in range(4)]
    leader.cancel()
    assert {each.result().outcome for each in followers} == {Outcome.OK}
    assert leader.result().outcome is Outcome.CANCELLED
    assert ledger.runs()["cancelled"] == 2


def test_what_is_kept_and_damaged_is_replaced(tools: ToolExecutor, client: Any, ledger: Ledger) -> None:
    look(tools, "before")
    [key] = (each for each in client.keys(keys.cache_key("books:*")) if b":flight:" not in each)
    before = set(client.hkeys(key))
    look(tools, "damaged")
    [field] = set(client.hkeys(key)) - before
    head, _, _ = client.hget(key, field).partition(b"\n")
    damaged = (b"", b"{", b"\xff", *(head + b"\n" + text for text in (b"", b"[]", b'{"call_id": "", "name": ""}')))
    for value in damaged:
        client.hset(key, field, value)
        assert look(tools, "damaged").content == "damaged"
    assert ledger.runs()["damaged"] == 1 + len(damaged)
    client.set(key, "a", ex=LONG_S)
    assert look(tools, "damaged").outcome is Outcome.OK, "it goes on as without a cache"
    client.delete(key)


def test_what_is_cached_counts_for_no_limit(tools: ToolExecutor) -> None:
    found = [tools.execute("scarce.look", {"key": key}) for key in ("a", "a", "b")]
    assert [(each.outcome, each.cached) for each in found] == [
        (Outcome.OK, False),
        (Outcome.OK, True),
        (Outcome.REJECTED, False),
    ]


def test_a_long_answer_is_given_and_not_kept(tools: ToolExecutor, ledger: Ledger) -> None:
    for _ in range(2):
        result = tools.execute("books.look", {"key": "long", "length": 1_048_576})
        assert result.large is not None
        assert (result.large.content_chars, result.cached) == (1_048_576, False)
    assert ledger.runs()["long"] == 2


def test_each_agent_reads_the_rest_of_a_kept_answer(tools: ToolExecutor, ledger: Ledger) -> None:
    handles: set[str] = set()
    for agent_id in ("first", "second"):
        with ToolExecutor(["books"], agent_id=agent_id) as agent:
            result = agent.execute("books.look", {"key": "large", "length": 200_000})
            assert result.large is not None
            handles.add(result.large.handle)
            assert agent.read_result(result.large.handle, 150_000, 100_000).text == 50_000 * "é"
    assert result.cached
    assert len(handles) == 2
    assert ledger.runs()["large"] == 1


def test_a_leader_that_is_lost_holds_nobody_up(tools: ToolExecutor, workers: list[Worker], single: Ledger) -> None:
    """The last test: one worker is left."""
    ask = ToolCall(name="single.look", arguments={"key": "lost", "wait_s": 6})
    leader = tools.submit(ask)
    wait_for_runs(single, 1)
    [[*_, pid]] = single.lines("run", "look", "lost")
    follower = tools.submit(ask)  # the other worker takes it, because each makes one call at a time
    [lost] = [worker for worker in workers if str(worker.pid) == pid]
    os.kill(lost.pid, signal.SIGKILL)
    found = follower.result()
    assert (found.outcome, found.content, found.attempts) == (Outcome.OK, "lost", 1)
    assert leader.result().outcome is Outcome.OK
    lost.process.wait()
