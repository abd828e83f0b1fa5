"""Messages and answers that would break what carries them: each costs itself only."""

import json
import sys
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu import Queue

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until

ODD_SERVER = Path(__file__).parent.parent / "servers" / "odd_answers.py"


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker) -> Worker:
    odd = {"command": sys.executable, "args": [str(ODD_SERVER)], "timeouts": {"call_s": 5}}
    return start_worker({"desk": DEMO_SERVER, "odd": odd})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=20)


@pytest.fixture(scope="module")
def foreign(redis_url: str) -> Celery:
    return Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False)


def desk_answers(tools: ToolExecutor) -> bool:
    return tools.execute(ToolCall(id="1", name="desk.echo", arguments={"text": "hello"})).content == "hello"


@pytest.mark.parametrize("body", [[7, {}, {}], [None, {}, {}], [{"a": 1}, {}, {}], ["text", {}, {}]])
def test_arguments_that_are_not_a_list_do_not_end_the_worker(
    foreign: Celery, tools: ToolExecutor, worker: Worker, redis_url: str, body: list[object]
) -> None:
    with foreign.connection_for_write() as connection, connection.Producer(serializer="json") as producer:
        headers = {"id": "hostile", "task": "tarsy.call_tool", "lang": "py", "argsrepr": "", "kwargsrepr": ""}
        queue = Queue("mcp.desk", routing_key="mcp.desk")
        producer.publish(
            body, routing_key="mcp.desk", exchange="", headers=headers, declare=[queue], correlation_id="h"
        )
    assert desk_answers(tools)
    assert worker.process.poll() is None
    with redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: client.llen("mcp.desk") == 0, "the message is gone")


def test_half_a_character_in_arguments_is_rejected(tools: ToolExecutor) -> None:
    for arguments in ('{"text": "\\ud83d"}', '{"\\ud83d": 1}'):
        result = tools.execute(ToolCall(id="1", name="desk.echo", arguments=arguments))
        assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INVALID_ARGUMENTS)
        assert desk_answers(tools)


def test_half_a_character_in_an_answer_costs_that_character(tools: ToolExecutor) -> None:
    result = tools.execute(ToolCall(id="1", name="odd.surrogate"))
    assert (result.outcome, result.content) == (Outcome.OK, "cut ? here")


def test_an_answer_that_is_nested_too_deep_is_an_error_at_once(tools: ToolExecutor) -> None:
    result = tools.execute(ToolCall(id="1", name="odd.deep"))
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT)
    assert result.duration_s < 4


@pytest.mark.parametrize(
    ("tool", "content", "structured", "note"),
    [
        (
            "misfit",
            "seven",
            {"n": "seven", "m": 1},
            "its structured content['n'] does not fit the tool's output schema",
        ),
        ("plain", "promised more", None, "the tool has an output schema, but this result has no structured content"),
    ],
)
def test_an_answer_that_breaks_its_promise_is_kept_and_noted(
    tools: ToolExecutor, tool: str, content: str, structured: object, note: str
) -> None:
    result = tools.execute(f"odd.{tool}")
    assert (result.outcome, result.error_code, result.content) == (Outcome.OK, None, content)
    assert result.structured == structured
    assert [each.startswith(f"INVALID_RESULT: {note}") for each in result.notes] == [True]
    assert "noted: INVALID_RESULT" in repr(result)


def test_a_tool_that_runs_only_as_a_task_says_so(tools: ToolExecutor) -> None:
    result = tools.execute("odd.task")
    assert (result.outcome, result.error_code, result.attempts) == (Outcome.REJECTED, ErrorCode.TASK_REQUIRED, 0)
    assert "`odd.task` runs only as a task" in result.content
    [listed] = [tool for tool in tools.list_tools() if tool.tool == "task"]
    assert (listed.title, listed.execution) == ("A task", {"taskSupport": "required"})


def test_an_object_with_a_meaning_for_kombu_is_just_an_object(tools: ToolExecutor) -> None:
    arguments = {"text": json.dumps({"a": 1}), "extra": {"__type__": "zzz", "__value__": 1}}
    result = tools.execute(ToolCall(id="1", name="desk.echo", arguments=arguments))
    assert result.error_code is not ErrorCode.NO_ANSWER


def test_inspect_shows_no_arguments(tools: ToolExecutor, foreign: Celery) -> None:
    slow = tools.submit(ToolCall(id="1", name="desk.wait", arguments={"seconds": 20, "steps": 1, "x": "s3cret-word"}))
    shown = wait_until(
        lambda: [task for tasks in (foreign.control.inspect().active() or {}).values() for task in tasks], ""
    )
    assert "s3cret-word" not in json.dumps(shown)
    assert shown[0]["args"] == "desk.wait"
    slow.cancel()
    assert slow.result().outcome is Outcome.CANCELLED
