"""One call over a real worker and a real MCP server, outcome by outcome."""

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker) -> Worker:
    return start_worker({"desk": DEMO_SERVER})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=20)


def test_a_text_comes_back(tools: ToolExecutor) -> None:
    result = tools.execute(ToolCall(id="c1", name="desk.echo", arguments={"text": "hello"}))
    assert (result.outcome, result.content, result.call_id, result.attempts) == (Outcome.OK, "hello", "c1", 1)


def test_a_failing_tool_is_data_not_an_exception(tools: ToolExecutor) -> None:
    result = tools.execute(ToolCall(id="c1", name="desk.order", arguments={"item": "unicorn", "count": 1}))
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TOOL_ERROR)
    assert "sold out" in result.content
