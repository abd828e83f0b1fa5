"""Tasks of servers that do not keep to the rules: each call has a clear answer in time, and nothing hangs."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, wait_for_task
from tests.conftest import StartWorker
from tests.processes import Worker, wait_until
from tests.servers.tasks_http import TasksServer

DONE = {"status": "completed", "result": {"content": [{"type": "text", "text": "done"}]}}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, server: TasksServer) -> Worker:
    servers: dict[str, Any] = {"yard": {"url": server.url}, "hasty": {"url": server.url, "timeouts": {"task_s": 2}}}
    return start_worker(servers, settings=SHORT_LEASE, arguments=["-c", "2"])


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_is_left(table: Any) -> Iterator[None]:
    yield
    places = (keys.PARKED, keys.polled_key("yard"), keys.polled_key("hasty"), keys.LEASES)
    wait_until(lambda: not table.exists(*places), "nothing waits any more", TIMEOUT_S)


def run(tools: ToolExecutor, server: TasksServer, key: str, *script: Any, name: str = "yard.build") -> ToolResult:
    """A call whose task is as the script says, one answer after the other; the last one stays."""
    pending = tools.submit(name, {"key": key})
    task = wait_for_task(server, key, gets=0)
    with server.lock:
        task.script, task.said = [*script[:-1]], script[-1]
    return pending.result()


def test_a_task_that_never_ends_times_out(tools: ToolExecutor, server: TasksServer) -> None:
    result = run(tools, server, "endless", {"status": "working"}, name="hasty.build")
    assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
    assert re.search(r"within [2-4](\.\d)? s", result.content)
    task = wait_for_task(server, "endless")
    wait_until(lambda: task.cancels == 1, "it is cancelled")


def test_a_task_that_is_done_just_at_its_deadline_counts(tools: ToolExecutor, server: TasksServer) -> None:
    server.created["late"] = {"pollIntervalMs": 10**9}
    result = run(tools, server, "late", DONE, name="hasty.build")
    assert (result.outcome, result.content) == (Outcome.OK, "done")
    assert wait_for_task(server, "late").gets == 1


def test_a_task_that_vanishes_is_unknown(tools: ToolExecutor, server: TasksServer) -> None:
    result = run(tools, server, "vanished", {"status": "working"}, "vanished", {"status": "working"})
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.TASK_LOST)
    assert "no longer knows that task" in result.content
    assert "Check its effects" in result.content


def test_a_task_that_changes_its_mind_may_still_end(tools: ToolExecutor, server: TasksServer) -> None:
    result = run(tools, server, "fickle", DONE, {"status": "working"}, {"status": "working"}, DONE)
    assert (result.outcome, result.content) == (Outcome.OK, "done")


def test_a_task_that_changes_its_mind_for_ever_ends(tools: ToolExecutor, server: TasksServer) -> None:
    result = run(tools, server, "moody", *[DONE, {"status": "working"}] * 3)
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT)
    assert "and then that it goes on" in result.content
    task = wait_for_task(server, "moody")
    wait_until(lambda: task.cancels == 1, "it is cancelled")


def test_a_state_that_nobody_knows_is_one_that_goes_on(tools: ToolExecutor, server: TasksServer) -> None:
    result = run(tools, server, "pausing", {"status": "paused"}, {"status": ""}, DONE)
    assert result.outcome is Outcome.OK


@pytest.mark.parametrize("asked", [0, -5, "soon", None, True, 1e300, [], 3])
def test_an_absurd_poll_interval_is_none(tools: ToolExecutor, server: TasksServer, asked: Any) -> None:
    """As long as the server first says one that can be used: without, it is asked after five seconds."""
    working = {"status": "working", "pollIntervalMs": asked}
    key = f"absurd {asked}"
    if asked in (0, 3):
        server.created[key] = {"pollIntervalMs": asked}
    elif asked != 1e300:
        result = run(tools, server, key, {"status": "working"}, {**working, **DONE})
        assert result.outcome is Outcome.OK
        return
    else:
        result = run(tools, server, key, working, name="hasty.build")
        assert result.error_code is ErrorCode.CALL_TIMEOUT
        return
    assert run(tools, server, key, working, DONE).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("key", "asked"),
    [("nothing", {}), ("sampling", {"s": {"method": "roots/list"}}), ("no request", {"s": 7}), ("no object", 7)],
)
def test_a_task_that_asks_what_nobody_can_answer_ends(
    tools: ToolExecutor, server: TasksServer, key: str, asked: Any
) -> None:
    """Or it goes on, until its deadline."""
    said = {"status": "input_required", "inputRequests": asked}
    result = run(tools, server, key, said, name="hasty.build")
    codes = {ErrorCode.TASK_INPUT_REQUIRED, ErrorCode.INVALID_RESULT, ErrorCode.CALL_TIMEOUT}
    assert result.error_code in codes


def test_a_task_that_failed_says_why(tools: ToolExecutor, server: TasksServer) -> None:
    failed = {"status": "failed", "error": {"code": -32603, "message": "password: hunter2-hunter2 rejected"}}
    result = run(tools, server, "failed", failed)
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.SERVER_ERROR)
    assert "failed: password:" in result.content
    assert "(code -32603)" in result.content
    assert "hunter2" not in result.content
    assert "failed. It gave no result" in run(tools, server, "failed badly", {"status": "failed", "error": 7}).content


def test_a_task_that_its_server_cancels_says_why(tools: ToolExecutor, server: TasksServer) -> None:
    result = run(tools, server, "dropped", {"status": "cancelled", "statusMessage": "no more room"})
    assert result.error_code is ErrorCode.SERVER_ERROR
    assert "was cancelled by the server: no more room" in result.content


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("no result", {"status": "completed"}),
        ("wrong result", {"status": "completed", "result": {"content": "text"}}),
        ("no status", {}),
        ("status of another kind", {"status": 7}),
        ("another task", {**DONE, "taskId": "task of another call"}),
    ],
)
def test_what_cannot_be_used_is_said(tools: ToolExecutor, server: TasksServer, key: str, said: Any) -> None:
    result = run(tools, server, key, said)
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT)
    assert "its answer cannot be used" in result.content


def test_the_task_of_another_call_is_not_waited_for(tools: ToolExecutor, server: TasksServer) -> None:
    server.task_ids |= {"first owner": "shared", "second owner": "shared"}
    first = tools.submit("yard.build", {"key": "first owner"})
    wait_until(lambda: "shared" in server.tasks and server.tasks["shared"].gets, "the first one waits", TIMEOUT_S)
    second = tools.execute("yard.build", {"key": "second owner"})
    assert (second.outcome, second.error_code) == (Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT)
    assert "the task of another call" in second.content
    server.tasks["shared"].said = DONE
    assert first.result().content == "done"
    assert server.tasks["shared"].cancels == 0
    assert tools.execute("yard.build", {"key": "second owner"}).content == "done", "nobody waits for it any more"


@pytest.mark.parametrize("created", [{"taskId": ""}, {"taskId": 7}, {"taskId": "x" * 5000}])
def test_an_answer_without_a_usable_id_is_said(
    tools: ToolExecutor, server: TasksServer, created: dict[str, Any]
) -> None:
    server.created["unnamed"] = created
    result = tools.execute("yard.build", {"key": "unnamed"})
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT)


def test_a_task_that_its_server_may_have_forgotten_ends(tools: ToolExecutor, server: TasksServer) -> None:
    """It said that it keeps the task for less than no time."""
    ended = {"status": "working", "ttlMs": 1}
    result = run(tools, server, "brief", ended, {"status": "working", "ttlMs": None}, DONE)
    assert result.outcome is Outcome.OK, "a minute is added to what it said"


def test_a_task_that_is_done_at_once_is_fetched(tools: ToolExecutor, server: TasksServer) -> None:
    server.created["instant"] = {"status": "completed", "pollIntervalMs": 10**9}
    assert run(tools, server, "instant", DONE).outcome is Outcome.OK


def test_a_server_that_is_down_is_asked_again(tools: ToolExecutor, server: TasksServer) -> None:
    pending = tools.submit("yard.build", {"key": "outage"})
    task = wait_for_task(server, "outage")
    server.is_down = True
    asked = server.refused
    wait_until(lambda: server.refused > asked, "it was asked", TIMEOUT_S)
    task.said = DONE
    server.is_down = False
    assert pending.result().content == "done"
