"""Native tools beside those of MCP servers: names, deadlines, cancelling, the audit, advice of the policy."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, SummarizedCall, ToolCall, ToolExecutor
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, read_audit
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    return start_worker({"desk": DEMO_SERVER})


@pytest.fixture
def client(redis_url: str, worker: Worker) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_native_tools_are_in_one_list_with_those_of_servers(worker: Worker, client: Any) -> None:
    with ToolExecutor(timeout_s=30, agent_id="sre", run_id="r7") as tools:

        @tools.native
        def add(first: int, second: int = 2) -> int:
            """Adds numbers."""
            return first + second

        names = [tool.name for tool in tools.list_tools()]
        assert names[-1] == "native.add"
        assert len(names) > 1
        assert "native.add" in tools.prompt_section()
        assert tools.search("add numbers", limit=1)[0].name == "native.add"
        calls = [ToolCall(name="native__add", arguments="first=40", id="c1"), ToolCall(name="desk.no_such_tool")]
        calls += [ToolCall(name="call_tool", arguments={"name": "native.add", "arguments": {"first": 1}})]
        first, second, third = tools.execute_many(calls)
        assert (first.content, first.structured, first.call_id) == ("42", 42, "c1")
        assert second.error_code is ErrorCode.UNKNOWN_TOOL
        assert third.content == "3"
        wrong = tools.execute("native.ad", {"first": 1})
        assert (wrong.error_code, "native.add" in wrong.content) == (ErrorCode.UNKNOWN_TOOL, True)
        assert tools.execute("native.add", {"first": "many"}).error_code is ErrorCode.INVALID_ARGUMENTS
        refused = tools.execute(ToolCall(name="native.add", arguments={"first": 1}, idempotency_key="k"))
        assert refused.error_code is ErrorCode.REFUSED
        info = tools.tool_info("mcp_native_add")
        assert (info.runs_in, info.tool.name, bool(info.permission)) == ("agent", "native.add", True)
        assert "no worker enforces" in info.permission.reason
        assert not tools.is_mcp_tool("native.add")
        with pytest.raises(ValueError, match="desk"):
            tools.native(server="desk")(add)

    def entries() -> Sequence[AuditEntry]:
        return read_audit(client, AuditFilter(server="native", run_id="r7"), limit=20).entries

    wait_until(lambda: len(entries()) >= 5, "all calls are in the audit")
    (found,) = [each for each in entries() if each.call_id == "c1"]  # it ran beside others
    assert (found.tool, found.agent_id, found.source) == ("add", "sre", "agent")
    assert (found.outcome, found.error) == (Outcome.OK, None)


def test_native_tools_are_removed_by_their_server(worker: Worker) -> None:
    with ToolExecutor(timeout_s=30, label_servers=True) as tools:
        tools.native(name="log")(lambda: "a line")
        tools.native(name="page", server="wiki")(lambda: "a page")
        pending = tools.submit("wiki.page")
        assert pending.result().content == "a page"
        tools.remove_native("wiki")
        assert tools.execute("wiki.page").error_code is ErrorCode.UNKNOWN_SERVER
        listed = tools.list_tools()
        assert [tool.name for tool in listed if tool.server != "desk"] == ["native.log"]
        labelled = {tool.server for tool in listed if tool.description.startswith(f"[MCP:{tool.server}]")}
        assert labelled == {"desk"}, "native tools are on no server"
        registry = {f"mcp_{tool.server}_{tool.tool}": tool for tool in listed}
        assert tools.execute("mcp_desk_echo", {"text": "hello"}).content == "hello"
        assert registry["mcp_desk_echo"].description.startswith("[MCP:desk] Give a text back.")
        with pytest.raises(ValueError, match="no native tools"):
            tools.remove_native("wiki")


def test_a_function_that_blocks_ends_at_its_deadline(worker: Worker, released: threading.Event) -> None:
    with ToolExecutor(timeout_s=1) as tools:

        @tools.native
        def block() -> None:
            released.wait()

        result = tools.execute("native.block")
        assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
        assert "may still be running" in result.content


def test_a_native_call_is_cancelled(worker: Worker) -> None:
    began, cancelled = threading.Event(), threading.Event()
    with ToolExecutor(timeout_s=60) as tools:

        @tools.native
        async def hang() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        pending = tools.submit("native.hang")
        assert began.wait(30)
        pending.cancel()
        assert pending.result().outcome is Outcome.CANCELLED
        assert cancelled.wait(30)


def test_coroutine_functions_run_on_the_loop_of_the_agent(worker: Worker) -> None:
    async def agent() -> Any:
        async with AsyncToolExecutor(timeout_s=30) as tools:

            @tools.native
            async def which() -> bool:
                return asyncio.get_running_loop() is here

            here = asyncio.get_running_loop()
            pending = await tools.submit("native.which")
            return [(await pending.result()).structured, (await tools.execute("native.which")).structured]

    assert asyncio.run(agent()) == [True, True]


def test_long_results_are_summarized(worker: Worker) -> None:
    def brief(text: str, call: SummarizedCall, context: Any) -> str:
        return f"{len(text)} of {call.name}, {context}"

    with ToolExecutor(timeout_s=30, summarizer=brief) as tools:
        tools.native(name="log")(lambda: "a line\n" * 5000)
        assert tools.execute("native.log", context="why").content.endswith("\n35000 of native.log, why")


def test_a_policy_is_only_advice(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"agents": {"*": {"allow": ["desk.*"]}}}))
    monkeypatch.setenv("TARSY_POLICY", str(path))
    with ToolExecutor(timeout_s=30) as tools:
        tools.native(name="log")(lambda: "a line")
        info = tools.tool_info("native.log")
        assert not info.permission
        assert "That is only advice" in info.permission.reason
        assert tools.execute("native.log").content == "a line"
