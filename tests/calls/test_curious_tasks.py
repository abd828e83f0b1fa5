"""Tasks of servers that ask for input: the call waits for people as any other, and for its task again afterwards."""

from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, wait_for_task
from tests.conftest import StartWorker
from tests.processes import Worker, wait_until
from tests.servers.tasks_http import TasksServer


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, server: TasksServer) -> Worker:
    servers = {"yard": {"url": server.url}, "hasty": {"url": server.url, "elicitation": {"expires_s": 1}}}
    return start_worker(servers, settings=SHORT_LEASE, arguments=["-c", "2"])


def form(field: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
    params = {"mode": "form", "message": f"Which {field}?", "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def ask(server: TasksServer, tools: ToolExecutor, key: str, *fields: str, name: str = "yard") -> PendingCall:
    pending = tools.submit(f"{name}.build", {"key": key})
    task = wait_for_task(server, key, gets=0)
    task.said = {"status": "input_required", "inputRequests": {each: form(each) for each in fields}}
    return pending


def test_a_task_gets_the_input_that_it_asks_for(tools: ToolExecutor, server: TasksServer, table: Any) -> None:
    pending = ask(server, tools, "asks", "color")
    [question] = pending.questions()
    assert (question.name, question.message) == ("color", "Which color?")
    assert not table.exists(keys.LEASES), "it takes no slot"
    tools.resume(pending, {"color": {"color": "red"}})
    task = wait_for_task(server, "asks")
    wait_until(lambda: task.answers, "the server has the answer", TIMEOUT_S)
    gets = task.gets
    wait_until(lambda: task.gets > gets + 2, "it may take its time to use it", TIMEOUT_S)
    task.said = {"status": "input_required", "inputRequests": {"color": form("color"), "size": form("size")}}
    wait_until(lambda: [each.name for each in pending.questions()] == ["size"], "it asks the next one", TIMEOUT_S)
    tools.resume(pending, {"size": {"size": "big"}})
    wait_until(lambda: len(task.answers) == 2, "the server has the second answer", TIMEOUT_S)
    task.complete()
    assert pending.result().content == "asks"
    assert task.answers == [
        {"color": {"action": "accept", "content": {"color": "red"}}},
        {"size": {"action": "accept", "content": {"size": "big"}}},
    ]
    assert server.runs["asks"] == 1
    entry = only_entry(table, pending.id)
    assert (entry.outcome, entry.input) == ("ok", "2 rounds, answered by sre")


def test_a_task_that_asks_for_ever_is_stopped(tools: ToolExecutor, server: TasksServer) -> None:
    pending = ask(server, tools, "pesters", "0")
    task = wait_for_task(server, "pesters", gets=0)
    for number in range(10):
        wait_until(lambda n=number: [each.name for each in pending.questions()] == [str(n)], "it asks", TIMEOUT_S)
        task.said = {"status": "input_required", "inputRequests": {str(number + 1): form(str(number + 1))}}
        tools.resume(pending, {str(number): {str(number): "again"}})
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TASK_INPUT_REQUIRED)
    assert "more often, or in another way, than a person can be asked" in result.content
    wait_until(lambda: task.cancels, "it is cancelled")
    assert (len(task.answers), task.cancels) == (10, 1)


def test_input_that_nobody_gives_ends_the_task(tools: ToolExecutor, server: TasksServer) -> None:
    result = ask(server, tools, "ignored", "color", name="hasty").result()
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TASK_INPUT_REQUIRED)
    assert "got no answer in time" in result.content
    task = wait_for_task(server, "ignored")
    wait_until(lambda: task.cancels == 1, "it is cancelled")


def test_a_caller_that_does_not_answer_is_not_asked(worker: Worker, server: TasksServer) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S) as tools:
        result = ask(server, tools, "unasked", "color").result()
    assert result.error_code is ErrorCode.TASK_INPUT_REQUIRED
    assert "`park=True`" in result.content
    task = wait_for_task(server, "unasked")
    wait_until(lambda: task.cancels == 1, "it is cancelled")


def test_a_task_that_ends_while_it_waits_for_input(tools: ToolExecutor, server: TasksServer) -> None:
    pending = ask(server, tools, "impatient", "color")
    assert pending.questions()
    wait_for_task(server, "impatient").complete()
    assert pending.result().content == "impatient"


def test_a_call_is_cancelled_while_its_task_waits_for_input(tools: ToolExecutor, server: TasksServer) -> None:
    pending = ask(server, tools, "dropped", "color")
    assert pending.questions()
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    assert wait_for_task(server, "dropped").cancels == 1
