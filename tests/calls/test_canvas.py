"""Tool calls without an executor: canvas, a foreign producer, foreign messages."""

import pytest
from celery import Celery, chain, chord, group

from tarsy_tasks import ErrorCode, Outcome, ToolResult, tool_signature
from tarsy_tasks.errors import ToolNameError
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> None:
    start_worker({"desk": DEMO_SERVER})


@pytest.fixture(scope="module")
def foreign(redis_url: str) -> Celery:
    """An application that knows nothing of this package."""
    return Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False)


def echo(text: str):
    return tool_signature("desk.echo", {"text": text})


def test_a_chain_runs_one_call_after_the_other() -> None:
    last = chain(echo("first"), echo("second")).delay()
    assert ToolResult.model_validate(last.get(timeout=20)).content == "second"
    assert ToolResult.model_validate(last.parent.get(timeout=20)).content == "first"


def test_a_chord_runs_its_body_after_its_header() -> None:
    body = chord([echo("one"), echo("two")], echo("body")).delay()
    assert ToolResult.model_validate(body.get(timeout=20)).content == "body"


def test_a_failing_tool_does_not_break_a_group() -> None:
    both = group(tool_signature("desk.order", {"item": "unicorn", "count": 1}), echo("fine")).delay()
    failed, fine = [ToolResult.model_validate(result) for result in both.get(timeout=20)]
    assert (failed.outcome, fine.outcome) == (Outcome.TOOL_ERROR, Outcome.OK)


def test_a_name_without_a_server_makes_no_signature() -> None:
    with pytest.raises(ToolNameError):
        tool_signature("echo", {})


def test_a_foreign_producer_sends_json_and_gets_json(foreign: Celery) -> None:
    sent = foreign.send_task("tarsy.call_tool", ["desk", "echo", {"text": "hello"}], queue="mcp.desk")
    result = sent.get(timeout=20)
    assert result["v"] == 1
    assert (result["outcome"], result["content"], result["name"]) == ("ok", "hello", "desk.echo")


def test_a_foreign_producer_may_name_the_arguments(foreign: Celery) -> None:
    arguments = {"server": "desk", "tool": "echo", "arguments": '{"text": "hello"}', "call": {"call_id": "c7"}}
    result = foreign.send_task("tarsy.call_tool", kwargs=arguments, queue="mcp.desk").get(timeout=20)
    assert (result["outcome"], result["content"], result["call_id"]) == ("ok", "hello", "c7")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["desk", "echo", {"text": "x"}, {"timeout_s": -1}], ErrorCode.INVALID_MESSAGE),
        (["desk", "echo", {"text": "x"}, {"v": 99}], ErrorCode.INVALID_MESSAGE),
        (["desk", "echo", {"text": "x"}, "no object"], ErrorCode.INVALID_MESSAGE),
        (["desk", "echo", {"text": "x"}, {}, "more"], ErrorCode.INVALID_MESSAGE),
        (["nowhere", "echo", {"text": "x"}], ErrorCode.UNKNOWN_SERVER),
        (["desk", "nothing", {}], ErrorCode.UNKNOWN_TOOL),
        (["desk", "echo", ["no", "object"]], ErrorCode.INVALID_ARGUMENTS),
        (["desk", "echo", 7], ErrorCode.INVALID_ARGUMENTS),
        ([["desk"], {"echo": 1}], ErrorCode.INVALID_MESSAGE),
        (["desk", "x" * 513, {}], ErrorCode.INVALID_MESSAGE),
    ],
)
def test_a_wrong_message_is_answered_with_a_reason(foreign: Celery, arguments: list[object], code: ErrorCode) -> None:
    result = foreign.send_task("tarsy.call_tool", arguments, queue="mcp.desk").get(timeout=20)
    assert (result["outcome"], result["error_code"]) == ("rejected", code)


def test_an_unknown_argument_of_the_task_is_refused(foreign: Celery) -> None:
    sent = foreign.send_task("tarsy.call_tool", ["desk", "echo"], {"argument": {"text": "x"}}, queue="mcp.desk")
    result = sent.get(timeout=20)
    assert (result["outcome"], result["error_code"]) == ("rejected", ErrorCode.INVALID_MESSAGE)
    assert "besides `server`, `tool`, `arguments` and `call`. The tool did not run." in result["content"]


def test_foreign_producers_cannot_put_arguments_into_the_log(
    foreign: Celery, start_worker: StartWorker, tmp_path: pytest.TempPathFactory
) -> None:
    worker = start_worker({"other": DEMO_SERVER})
    sent = foreign.send_task(
        "tarsy.call_tool",
        ["other", "echo", {"text": "stands-nowhere-else"}],
        queue="mcp.other",
        argsrepr="stands-nowhere-else",
    )
    assert sent.get(timeout=20)["outcome"] == "ok"
    worker.wait_for_log("<other.echo: ok")
    assert "stands-nowhere-else" not in worker.log
