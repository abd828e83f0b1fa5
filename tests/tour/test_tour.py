"""The package in ten tests, to be read from top to bottom. Happy paths only; everything here is real."""

import asyncio
import threading

import pytest
from celery import group

from tarsy_tasks import AsyncToolExecutor, Outcome, ToolExecutor, ToolResult, tool_signature
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> None:
    """`celery -A tarsy_tasks worker`, on an `mcp.json` with one server named `desk`."""
    start_worker({"desk": DEMO_SERVER})


def test_1_an_executor_runs_a_tool_call() -> None:
    with ToolExecutor() as tools:
        result = tools.execute("desk.echo", {"text": "hello"})
    assert result.content == "hello"


def test_2_arguments_may_be_the_text_that_a_model_wrote() -> None:
    with ToolExecutor() as tools:
        result = tools.execute("desk.quote", '{"item": "lamp", "count": 2}')
    assert result.structured == {"item": "lamp", "count": 2, "total": 9.0}


def test_3_a_tool_that_fails_gives_a_result() -> None:
    with ToolExecutor() as tools:
        result = tools.execute("desk.order", {"item": "unicorn", "count": 1})
    assert result.is_error
    assert result.outcome is Outcome.TOOL_ERROR


def test_4_a_wrong_call_is_rejected_before_it_reaches_the_server() -> None:
    with ToolExecutor() as tools:
        result = tools.execute("desk.order", {"item": "lamp"})
    assert result.outcome is Outcome.REJECTED
    assert "count" in result.content


def test_5_an_executor_lists_the_tools_for_a_model() -> None:
    with ToolExecutor() as tools:
        listed = tools.list_tools()
    assert "desk.echo" in [tool.name for tool in listed]
    assert "desk.echo(text)" in listed.prompt_section()


def test_6_a_filter_selects_what_a_model_sees() -> None:
    with ToolExecutor(["desk"], tool_filter={"desk": ["echo", "quote"]}) as tools:
        assert [tool.tool for tool in tools.list_tools()] == ["echo", "quote"]


def test_7_calls_run_in_parallel() -> None:
    calls = [("desk.echo", {"text": str(number)}) for number in range(10)]
    with ToolExecutor() as tools:
        assert [result.content for result in tools.execute_many(calls)] == [str(number) for number in range(10)]


def test_8_a_submitted_call_can_be_cancelled() -> None:
    with ToolExecutor() as tools:
        pending = tools.submit("desk.wait", {"seconds": 30})
        pending.cancel()
        assert pending.result().outcome is Outcome.CANCELLED


def test_9_an_asyncio_agent_awaits_the_same() -> None:
    async def agent() -> list[ToolResult]:
        async with AsyncToolExecutor() as tools:
            threads = threading.active_count()
            results = await tools.execute_many([("desk.wait", {"seconds": 0.3, "steps": 1})] * 50)
            assert threading.active_count() <= threads + 5, "waiting takes no threads"
            return results

    assert {result.outcome for result in asyncio.run(agent())} == {Outcome.OK}


def test_10_a_tool_call_is_a_celery_signature_too() -> None:
    both = group(tool_signature("desk.echo", {"text": "one"}), tool_signature("desk.echo", {"text": "two"}))
    results = [ToolResult.model_validate(result) for result in both.delay().get(timeout=20)]
    assert [result.content for result in results] == ["one", "two"]
