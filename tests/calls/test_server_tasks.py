"""Calls that an MCP server answers with a task: they take no slot, and are answered as any other when it is done."""

import json
from typing import Any

import pytest
from celery import chain, chord

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys, parked_calls
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, revoke, wait_for_task
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.processes import Worker, wait_until
from tests.servers.tasks_http import TasksServer


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, server: TasksServer) -> Worker:
    servers: dict[str, Any] = {
        "yard": {"url": server.url},
        "hasty": {"url": server.url, "timeouts": {"task_s": 1}},
        "short": {"url": server.url, "timeouts": {"call_s": 4}},
    }
    return start_worker(servers, settings=SHORT_LEASE, arguments=["-c", "2"])


def build(tools: ToolExecutor, key: str, name: str = "yard.build") -> PendingCall:
    return tools.submit(name, {"key": key})


def test_a_task_is_answered_like_any_call(tools: ToolExecutor, server: TasksServer, table: Any) -> None:
    pending = build(tools, "plain")
    task = wait_for_task(server, "plain", gets=2)
    assert not pending.done()
    task.complete("built")
    result = pending.result()
    assert (result.outcome, result.content, result.attempts) == (Outcome.OK, "built", 1)
    assert server.runs["plain"] == 1
    entry = only_entry(table, pending.id)
    assert (entry.outcome, entry.tool) == ("ok", "build")


def test_parked_tasks_take_no_slot(tools: ToolExecutor, server: TasksServer, table: Any) -> None:
    many = [build(tools, f"slot {number}") for number in range(20)]
    tasks = [wait_for_task(server, f"slot {number}") for number in range(20)]
    wait_until(lambda: not table.exists(keys.LEASES), "nothing of them is in a worker", TIMEOUT_S)
    assert tools.execute("yard.look", {"key": "beside"}).outcome is Outcome.OK
    for task in tasks:
        task.complete()
    assert {each.result().content for each in many} == {f"slot {number}" for number in range(20)}


def test_its_agent_learns_that_it_waits_for_a_task(tools: ToolExecutor, server: TasksServer) -> None:
    pending = build(tools, "seen")
    parked = wait_until(lambda: pending.parked, "the agent hears of it", TIMEOUT_S)
    assert (parked.reason, parked.server, parked.tool) == ("task", "yard", "build")
    assert "goes on as a task" in parked.text
    assert parked.until - parked.since == pytest.approx(24 * 3600, abs=1)
    wait_for_task(server, "seen").complete()
    assert pending.result().outcome is Outcome.OK


def test_a_caller_that_declares_nothing_waits_as_for_any_call(worker: Worker, server: TasksServer, table: Any) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S) as tools:
        pending = build(tools, "unaware")
        task = wait_for_task(server, "unaware", gets=2)
        assert pending.parked is None
        assert not table.exists(keys.result_key(pending.id)), "it has no state that such a caller does not know"
        task.complete()
        assert pending.result().content == "unaware"


def test_such_a_caller_waits_no_longer_than_for_any_call(worker: Worker, server: TasksServer) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S) as tools:
        result = build(tools, "short", "short.build").result()
    assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
    assert server.task_of("short").cancels == 1


def test_status_messages_are_progress(tools: ToolExecutor, server: TasksServer, table: Any) -> None:
    heard: list[str] = []
    pending = tools.submit("yard.build", {"key": "told"}, on_progress=lambda progress: heard.append(progress.message))
    task = wait_for_task(server, "told")
    for message in ("laying bricks", "password: hunter2-hunter2"):
        count = len(heard)
        task.said = {"status": "working", "statusMessage": message}
        wait_until(lambda count=count: len(heard) > count, f"the agent hears {message}", TIMEOUT_S)
    assert heard[0] == "laying bricks"
    assert "hunter2" not in heard[1]

    def is_shown() -> bool:
        """Operators may see it a moment later than the agent."""
        waiting, *_ = parked_calls.load_waiting(table, 100, for_tasks=True)
        return heard[1] in [view.message for view in waiting if view.id == pending.id]

    wait_until(is_shown, "operators see it", TIMEOUT_S)
    task.complete()
    assert pending.result().outcome is Outcome.OK


def test_an_operator_sees_calls_with_tasks(worker: Worker, tools: ToolExecutor, server: TasksServer) -> None:
    pending = build(tools, "listed")
    task = wait_for_task(server, "listed")
    task.said = {"status": "working", "statusMessage": "laying bricks"}

    def list_calls(*words: str) -> dict[str, Any]:
        done = run_command("inbox", "--json", *words, environment=worker.environment)
        assert done.returncode == 0, done
        return {each["id"]: each for each in json.loads(done.stdout)["calls"]}

    wait_until(lambda: list_calls("--tasks").get(pending.id, {}).get("message"), "what the server says", TIMEOUT_S)
    listed = list_calls("--tasks")[pending.id]
    assert (listed["reason"], listed["tool"], listed["message"]) == ("task", "yard.build", "laying bricks")
    assert pending.id not in list_calls(), "it waits for no person"
    assert "laying" in run_command("inbox", "--tasks", environment=worker.environment).stdout
    task.complete()
    assert pending.result().outcome is Outcome.OK
    assert pending.id not in list_calls("--tasks")


def test_a_result_is_masked_and_checked(tools: ToolExecutor, server: TasksServer) -> None:
    pending = build(tools, "masked")
    wait_for_task(server, "masked").complete("password: hunter2-hunter2")
    assert "hunter2" not in pending.result().content
    measured, wrong = build(tools, "measured", "yard.measure"), build(tools, "wrong", "yard.measure")
    wait_for_task(server, "measured").complete("{}", structuredContent={"size": 7})
    wait_for_task(server, "wrong").complete("{}", structuredContent={"size": "seven"})
    assert measured.result().structured == {"size": 7}
    assert measured.result().notes == ()
    assert "INVALID_RESULT" in wrong.result().notes[0]


def test_an_error_of_the_tool_is_its_answer(tools: ToolExecutor, server: TasksServer) -> None:
    pending = build(tools, "said no")
    wait_for_task(server, "said no").complete("no bricks", isError=True)
    result = pending.result()
    assert (result.outcome, result.error_code, result.content) == (
        Outcome.TOOL_ERROR,
        ErrorCode.TOOL_ERROR,
        "no bricks",
    )


def test_a_cancelled_call_cancels_its_task(tools: ToolExecutor, server: TasksServer, table: Any) -> None:
    pending = build(tools, "cancelled")
    task = wait_for_task(server, "cancelled")
    pending.cancel()
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.CANCELLED, ErrorCode.CANCELLED)
    wait_until(lambda: task.cancels, "its task is cancelled")
    assert task.cancels == 1
    assert only_entry(table, pending.id).error_code == "CANCELLED"


def test_a_revoked_call_cancels_its_task(worker: Worker, server: TasksServer, table: Any) -> None:
    sent = tool_signature("yard.build", {"key": "revoked"}, park=True).delay()
    task = wait_for_task(server, "revoked")
    revoke(worker, sent.id)
    wait_until(lambda: sent.state == "REVOKED", "Celery knows", TIMEOUT_S)
    wait_until(lambda: task.cancels, "its task is cancelled")
    assert task.cancels == 1
    assert only_entry(table, sent.id).outcome == "cancelled"


def test_canvas_waits_for_tasks(worker: Worker, server: TasksServer) -> None:
    def sign(key: str) -> Any:
        return tool_signature("yard.build", {"key": key}, park=True)

    body = chord([sign("one"), tool_signature("yard.look", {"key": "two"}), sign("three")], sign("body")).delay()
    for key in ("three", "one", "body"):
        wait_for_task(server, key).complete()
    assert ToolResult.model_validate(body.get(timeout=TIMEOUT_S)).content == "body"
    last = chain(sign("first"), sign("second")).delay()
    for key in ("first", "second"):
        wait_for_task(server, key).complete()
    assert ToolResult.model_validate(last.get(timeout=TIMEOUT_S)).content == "second"


def test_requests_about_tasks_name_them_in_a_header(tools: ToolExecutor, server: TasksServer) -> None:
    server.task_ids["named"] = "täsk 1"
    pending = build(tools, "named")
    wait_for_task(server, "named").complete()
    assert pending.result().outcome is Outcome.OK
    assert ("tasks/get", "=?base64?dMOkc2sgMQ==?=") in server.names
    assert not [name for _, name in server.names if not name]
