"""What holds for parked calls whatever they wait for: only so many of one agent wait at once, and another message with
the id of one changes nothing."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys, parked_calls
from tests.calls.audit_entries import only_entry
from tests.calls.test_input import curious_server
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until
from tests.servers.tasks_http import TasksServer

TIMEOUT_S = 40
MOST = 2
SETTINGS = 'broker_transport_options = {"visibility_timeout": 2}\n'


@pytest.fixture(scope="module")
def start(start_worker: StartWorker, ledger: Ledger, server: TasksServer) -> Any:
    def start_one() -> Worker:
        servers = {
            "desk": witness(ledger, approval="always"),
            "shop": curious_server(ledger),
            "yard": {"url": server.url},
        }
        return start_worker(servers, settings=SETTINGS, environment={"TARSY_PARKED_CALLS": str(MOST)})

    return start_one


@pytest.fixture(scope="module")
def worker(start: Any) -> Worker:
    return start()


@pytest.fixture(scope="module")
def table(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def parked(worker: Worker, table: Any) -> Iterator[tuple[ToolExecutor, list[PendingCall]]]:
    """An agent, and as many calls of it as may wait."""
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as tools:
        waiting = [tools.submit("desk.add", {"key": f"waiting {number}"}) for number in range(MOST)]
        for each in waiting:
            wait_until(lambda each=each: each.parked, "it is parked", TIMEOUT_S)
        yield tools, waiting
        for each in waiting:
            each.cancel()
        wait_until(lambda: not table.exists(keys.PARKED), "nothing is left of them", TIMEOUT_S)
        assert not table.keys(keys.parked_by_key("*"))


def test_one_call_too_many_is_rejected(
    parked: tuple[ToolExecutor, list[PendingCall]], table: Any, ledger: Ledger
) -> None:
    tools, waiting = parked
    more = tools.submit("desk.add", {"key": "more"})
    result = more.result()
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.TOO_MANY_PARKED)
    assert "2 calls of agents whose name is not verified wait already" in result.content
    assert "The tool did not run. Do not call it again until some of them" in result.content
    assert only_entry(table, more.id).error_code == "TOO_MANY_PARKED"
    assert ledger.runs("add")["more"] == 0
    view = parked_calls.load(table, waiting[0].id)
    assert view is not None
    parked_calls.decide(table, view, is_approved=True, by="ann")
    assert waiting[0].result().outcome is Outcome.OK
    following = tools.submit("desk.add", {"key": "following"})
    wait_until(lambda: following.parked, "there is room for it", TIMEOUT_S)
    waiting.append(following)


def test_a_cancelled_call_makes_room(parked: tuple[ToolExecutor, list[PendingCall]], table: Any) -> None:
    tools, waiting = parked
    waiting[0].cancel()
    assert waiting[0].result().outcome is Outcome.CANCELLED
    following = tools.submit("desk.add", {"key": "after a cancelled one"})
    wait_until(lambda: following.parked, "there is room for it", TIMEOUT_S)
    wait_until(lambda: not table.exists(keys.parked_key(waiting[0].id)), "its record is deleted", TIMEOUT_S)
    assert not table.exists(keys.result_key(waiting[0].id))
    waiting.append(following)


def test_the_inbox_says_how_many_more_wait(parked: tuple[ToolExecutor, list[PendingCall]], worker: Worker) -> None:
    done = run_command("inbox", "--limit", "1", environment=worker.environment)
    assert (done.returncode, done.stdout.count("desk.add")) == (0, 1)
    assert "1 more of 2 calls that wait; --limit shows more" in done.stderr
    found = json.loads(run_command("inbox", "--limit", "1", "--json", environment=worker.environment).stdout)
    assert (len(found["calls"]), found["parked"]) == (1, MOST)


def test_those_of_older_workers_are_shown_and_counted(
    parked: tuple[ToolExecutor, list[PendingCall]], worker: Worker, table: Any
) -> None:
    """They were in no list but that of all parked calls."""
    lists = table.keys(keys.parked_by_key("*")) + table.keys(keys.inbox_key("*"))
    assert table.delete(*lists) == 2
    wait_until(lambda: table.exists(*lists) == 2, "they are listed", TIMEOUT_S)
    found = json.loads(run_command("inbox", "--json", environment=worker.environment).stdout)
    assert {each["id"] for each in found["calls"]} == {each.id for each in parked[1]}
    assert found["parked"] == MOST
    assert parked[0].execute("desk.add", {"key": "beside them"}).error_code is ErrorCode.TOO_MANY_PARKED


def test_a_call_whose_server_asks_is_rejected(parked: tuple[ToolExecutor, list[PendingCall]], ledger: Ledger) -> None:
    tools, _ = parked
    result = tools.execute("shop.order", {"key": "unasked"})
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.TOO_MANY_PARKED)
    assert result.content.startswith("MCP server `shop` asks for input to complete `shop.order`, but 2 calls of")
    assert "It has not completed the call." in result.content
    assert ledger.runs("order")["unasked"] == 0


def test_the_server_cancels_a_task_too_many(
    parked: tuple[ToolExecutor, list[PendingCall]], server: TasksServer
) -> None:
    tools, _ = parked
    result = tools.execute("yard.build", {"key": "crowded"})
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.TASK_LOST)
    assert "as many calls of its agent wait already as may" in result.content
    task = server.task_of("crowded")
    assert task is not None
    wait_until(lambda: task.cancels == 1, "it is cancelled")


@pytest.mark.parametrize("name", ["desk.add", "yard.build", "shop.order"])
def test_another_message_with_its_id_changes_nothing(
    worker: Worker, table: Any, server: TasksServer, ledger: Ledger, name: str
) -> None:
    queue, tool = f"mcp.{name.partition('.')[0]}", name.partition(".")[2]
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as tools:
        pending = tools.submit(name, {"key": "original"})
        wait_until(lambda: pending.parked, "it is parked", TIMEOUT_S)
        before = table.hgetall(keys.parked_key(pending.id))
        message = json.loads(table.hget(keys.UNACKED, pending.id).split(b"\n", 2)[2])
        body = base64.b64decode(message["body"]).decode().replace("original", "copied")
        message["body"] = base64.b64encode(body.encode()).decode()
        table.lpush(queue, json.dumps(message))
        worker.wait_for_log(f"a message from {queue} was refused: it has the id of a call that is parked")
        assert table.llen(queue) == 0
        after = table.hgetall(keys.parked_key(pending.id))
        assert all(after[field] == before[field] for field in (b"about", b"digest", b"until", b"home"))
        if name == "desk.add":
            view = parked_calls.load(table, pending.id)
            assert view is not None
            parked_calls.decide(table, view, is_approved=True, by="ann")
        elif name == "yard.build":
            task = server.task_of("original")
            assert task is not None
            task.complete()
            assert server.task_of("copied") is None
        else:
            tools.resume(pending, {pending.questions()[0].name: {"size": 4}})
        result = pending.result()
    assert result.outcome is Outcome.OK, result.content
    assert result.content.startswith("original")
    assert ledger.runs(tool)["copied"] == 0
    assert only_entry(table, pending.id).outcome == "ok"


def test_those_of_a_lost_worker_count(
    parked: tuple[ToolExecutor, list[PendingCall]], start: Any, worker: Worker
) -> None:
    """The last test: its worker is another one."""
    tools, _ = parked
    worker.process.kill()
    worker.process.wait()
    start()
    result = tools.execute("desk.add", {"key": "after a loss"})
    assert result.error_code is ErrorCode.TOO_MANY_PARKED
