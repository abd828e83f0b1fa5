"""One call over a real worker and a real MCP server, outcome by outcome."""

import asyncio
import json
from pathlib import Path

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.errors import ResultTimeout
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker) -> Worker:
    limited = {**DEMO_SERVER, "timeouts": {"call_s": 0.5}}
    return start_worker({"desk": DEMO_SERVER, "limited": limited, "off": {**DEMO_SERVER, "enabled": False}})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=20)


def echo(text: str, name: str = "desk.echo", call_id: str = "c1") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments={"text": text})


def wait_call(seconds: float, name: str = "desk.wait") -> ToolCall:
    return ToolCall(id="slow", name=name, arguments={"seconds": seconds, "steps": 1})


def test_a_text_comes_back(tools: ToolExecutor) -> None:
    result = tools.execute(echo("hello"))
    assert (result.outcome, result.content, result.call_id, result.attempts) == (Outcome.OK, "hello", "c1", 1)
    assert not result.is_error
    assert result.error_code is None
    assert result.duration_s > 0


def test_arguments_may_be_the_text_that_a_model_wrote(tools: ToolExecutor) -> None:
    result = tools.execute(ToolCall(id="c1", name="desk.quote", arguments='{"item": "lamp", "count": 3}'))
    assert result.structured == {"item": "lamp", "count": 3, "total": 13.5}


def test_the_name_may_be_a_function_name(tools: ToolExecutor) -> None:
    assert tools.execute(echo("hello", name="desk__echo")).content == "hello"


def test_a_failing_tool_is_data_not_an_exception(tools: ToolExecutor) -> None:
    result = tools.execute(ToolCall(id="c1", name="desk.order", arguments={"item": "unicorn", "count": 1}))
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TOOL_ERROR)
    assert "sold out" in result.content
    assert result.is_error


def test_an_image_is_named_in_the_text_and_kept_as_an_attachment(tools: ToolExecutor) -> None:
    result = tools.execute(ToolCall(id="c1", name="desk.label", arguments={"item": "lamp"}))
    assert result.content == "label of lamp\n[image/png, 70 B]"
    (attachment,) = result.attachments
    assert (attachment.type, attachment.mime_type, attachment.size_bytes) == ("image", "image/png", 70)
    assert attachment.data is not None


@pytest.mark.parametrize(
    ("call", "code", "named"),
    [
        (ToolCall(id="1", name="desk", arguments={}), ErrorCode.INVALID_NAME, "desk"),
        (ToolCall(id="1", name="nowhere.echo", arguments={}), ErrorCode.UNKNOWN_SERVER, "desk"),
        (ToolCall(id="1", name="off.echo", arguments={}), ErrorCode.UNKNOWN_SERVER, "desk"),
        (ToolCall(id="1", name="desk.ecko", arguments={}), ErrorCode.UNKNOWN_TOOL, "echo"),
        (ToolCall(id="1", name="desk.order", arguments={"item": "lamp"}), ErrorCode.INVALID_ARGUMENTS, "count"),
        (ToolCall(id="1", name="desk.order", arguments='{"item": "lamp"'), ErrorCode.INVALID_ARGUMENTS, "item"),
    ],
)
def test_a_call_that_cannot_be_right_is_rejected_with_a_reason(
    tools: ToolExecutor, call: ToolCall, code: ErrorCode, named: str
) -> None:
    result = tools.execute(call)
    assert (result.outcome, result.error_code, result.attempts) == (Outcome.REJECTED, code, 0)
    assert named in result.content


def test_arguments_that_are_not_json_are_the_callers_error(tools: ToolExecutor) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        tools.execute(ToolCall(id="1", name="desk.echo", arguments={"text": object()}))


def test_many_calls_run_in_parallel_and_keep_their_order(tools: ToolExecutor) -> None:
    results = tools.execute_many([wait_call(0.6), *(echo(str(number)) for number in range(20)), wait_call(0.6)])
    assert [result.content for result in results[1:-1]] == [str(number) for number in range(20)]
    assert results[0].duration_s + results[-1].duration_s > 1


def test_a_server_limit_ends_a_slow_call(tools: ToolExecutor) -> None:
    result = tools.execute(wait_call(20, "limited.wait"))
    assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
    assert "may have run" in result.content


def test_the_executors_timeout_bounds_the_call_in_the_worker(worker: Worker) -> None:
    result = ToolExecutor(timeout_s=10).execute(wait_call(30))
    assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)


def test_a_queue_that_nobody_serves_is_answered_at_the_deadline(worker: Worker, tmp_path: Path, redis_url: str) -> None:
    servers = json.loads(worker.config_path.read_text())["mcpServers"]
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {**servers, "unserved": DEMO_SERVER}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARSY_MCP_CONFIG", str(path))
        tools = ToolExecutor(timeout_s=1)
        result = tools.execute(echo("hello", "unserved.echo"))
        assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.NO_WORKER)
        assert "no worker serves MCP server `unserved`" in result.content
        assert "did not run" in result.content
        assert "unserved" in tools.list_tools().failed_servers
    with redis.Redis.from_url(redis_url) as client:
        # Nothing piles up where nobody serves.
        wait_until(
            lambda: not client.exists("mcp.unserved", keys.UNACKED, keys.waiting_key("mcp.unserved")),
            "nothing is left in Redis",
        )


def test_a_short_wait_leaves_the_call_running(tools: ToolExecutor) -> None:
    pending = tools.submit(wait_call(3))
    with pytest.raises(ResultTimeout):
        pending.result(timeout_s=0.05)
    assert pending.result().outcome is Outcome.OK
    assert pending.done()


def test_a_call_can_be_cancelled_wherever_it_is(tools: ToolExecutor) -> None:
    pending = tools.submit(wait_call(15))
    pending.cancel()
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.CANCELLED, ErrorCode.CANCELLED)


def test_an_asyncio_agent_gets_the_same_answers(worker: Worker) -> None:
    async def run() -> None:
        async with AsyncToolExecutor(timeout_s=20) as tools:
            assert {tool.server for tool in await tools.list_tools()} == {"desk", "limited"}
            assert await tools.failed_servers() == {}
            results = await tools.execute_many(echo(str(number)) for number in range(50))
            assert [result.content for result in results] == [str(number) for number in range(50)]
            pending = await tools.submit(wait_call(15))
            with pytest.raises(ResultTimeout):
                await pending.result(timeout_s=0.05)
            await pending.cancel()
            assert (await pending.result()).outcome is Outcome.CANCELLED

    asyncio.run(run())


def test_only_selected_tools_are_offered_and_accepted(worker: Worker) -> None:
    with ToolExecutor(["desk", "limited"], tool_filter={"desk": ["echo"], "limited": []}, timeout_s=20) as tools:
        offered = {tool.name for tool in tools.list_tools()}
        assert "desk.echo" in offered
        assert "desk.wait" not in offered
        assert "limited.wait" in offered
        result = tools.execute(wait_call(1))
        assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.TOOL_NOT_SELECTED)
        assert "desk.echo" in result.content


def test_a_server_outside_of_the_selection_is_unknown(worker: Worker) -> None:
    result = ToolExecutor(["limited"]).execute(echo("hello"))
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.UNKNOWN_SERVER)


def test_wrong_executors_are_the_callers_error(worker: Worker) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        ToolExecutor(["nowhere"])
    with pytest.raises(ValueError, match="limited"):
        ToolExecutor(["desk"], tool_filter={"limited": []})
    with pytest.raises(ValueError, match="timeout_s"):
        ToolExecutor(timeout_s=0)


def test_the_prompt_names_tools_and_failed_servers(worker: Worker) -> None:
    with ToolExecutor(["desk"], tool_filter={"desk": ["echo", "missing"]}, timeout_s=20) as tools:
        tools.list_tools()
        section = tools.prompt_section()
        assert "`desk.echo(text)`: Give a text back." in section
        assert "missing" in section
        assert tools.failed_servers().keys() == {"desk"}


def test_nothing_of_the_arguments_is_in_log_or_events(tools: ToolExecutor, worker: Worker) -> None:
    tools.execute(echo("a-word-that-stands-nowhere-else"))
    wait_until(lambda: "<desk.echo: ok" in worker.log, "the result in the log")
    assert "a-word-that-stands-nowhere-else" not in worker.log


def test_results_expire(tools: ToolExecutor, redis_url: str) -> None:
    pending = tools.submit(echo("hello"))
    pending.result()
    client = redis.Redis.from_url(redis_url)
    assert 0 < client.ttl(f"celery-task-meta-{pending.id}") <= 3600
    client.close()
