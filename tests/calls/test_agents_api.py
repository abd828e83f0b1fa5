"""What an agent's code may look like, against a real worker."""

import asyncio
import os
import subprocess
import sys

import pytest

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, OutcomeError, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks import tool_signature as signature
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker

FORKING = """
import os, time
from tarsy_tasks import ToolExecutor

def call(text):
    started = time.monotonic()
    print(ToolExecutor(timeout_s=40).execute("desk.echo", {"text": text}).content, flush=True)
    assert time.monotonic() - started < 20, "it was found only at the deadline"

call("parent")
child = os.fork()
if child == 0:
    call("child")
    ToolExecutor(timeout_s=20).execute("nowhere.echo")  # an entry for the audit
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
call("parent again")
"""


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker) -> Worker:
    return start_worker({"desk": {**DEMO_SERVER, "instructions": "Be brief."}})


def test_a_call_needs_only_a_name_and_arguments() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        result = tools.execute("desk.echo", {"text": "hello"})
        assert (result.content, result.call_id, result.name) == ("hello", "", "desk.echo")
        assert tools.execute("desk__echo", "text: hello").content == "hello"
        pending = tools.submit("desk.echo", {"text": "later"})
        assert (pending.call, pending.result(timeout_s=20).content) == (
            ToolCall(name="desk.echo", arguments={"text": "later"}),
            "later",
        )


def test_calls_of_both_forms_run_in_parallel() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        calls = [("desk.echo", {"text": "one"}), ToolCall(id="2", name="desk.echo", arguments={"text": "two"})]
        results = tools.execute_many(iter(calls))
        assert [(result.content, result.call_id) for result in results] == [("one", ""), ("two", "2")]
        assert tools.execute_many([]) == []


def test_one_rejected_call_costs_the_others_nothing() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        results = tools.execute_many([("nowhere.echo", {}), ("desk.echo", {"text": "hello"})])
    assert [result.outcome for result in results] == [Outcome.REJECTED, Outcome.OK]


def test_an_asyncio_agent_may_write_the_same() -> None:
    async def run() -> None:
        async with AsyncToolExecutor(timeout_s=20) as tools:
            assert (await tools.execute("desk.echo", {"text": "hello"})).content == "hello"
            pending = await tools.submit("desk.echo", {"text": "later"})
            assert (await pending.result(timeout_s=20)).content == "later"
            results = await tools.execute_many([("nowhere.echo", {}), ("desk.echo", "text: x")])
            assert [result.outcome for result in results] == [Outcome.REJECTED, Outcome.OK]
            listed = await tools.list_tools()
            assert (await tools.search("how much does it cost", limit=1))[0].name == "desk.quote"
            assert await tools.prompt_section(tools=False) == listed.prompt_section(tools=False)

    asyncio.run(run())


def test_a_result_that_is_no_result_can_be_raised() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        assert tools.execute("desk.echo", {"text": "fine"}).raise_for_outcome().content == "fine"
        with pytest.raises(OutcomeError) as caught:
            tools.execute("desk.order", {"item": "unicorn", "count": 1}).raise_for_outcome()
    assert caught.value.result.error_code is ErrorCode.TOOL_ERROR


def test_tools_are_found_by_what_they_do() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        [found] = tools.search("place an order", limit=1)  # lists them first
        assert found in tools.list_tools()
        assert tools.search("place an order", limit=1) == [found]
        with pytest.raises(ValueError, match="limit"):
            tools.search("place an order", limit=0)
    assert found.name == "desk.order"


def test_a_list_of_tools_is_a_snapshot() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        listed = tools.list_tools()
        assert listed.failed_servers == tools.failed_servers() == {}
        assert listed == tools.list_tools()
        assert "- `desk.echo(text)`" in listed.prompt_section()
        assert tools.prompt_section() == listed.prompt_section()
        rest = tools.prompt_section(tools=False)
        assert "> Be brief." in rest
        assert "`desk__echo`" in rest
    assert listed.instructions == {"desk": "Be brief."}
    with pytest.raises(RuntimeError, match="call list_tools"):
        tools.failed_servers()


def test_a_function_name_that_was_offered_can_be_called() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        names = [tool.function_name(limit=24) for tool in tools.list_tools() if tool.tool == "echo"]
        assert [tools.execute(name, {"text": "hello"}).content for name in names] == ["hello"]
    stored = signature(names[0], {"text": "hello"}).delay().get(timeout=20)
    assert ToolResult.model_validate(stored).content == "hello"


def test_a_forked_child_calls_on_connections_and_ids_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], env=dict(os.environ), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split("\n")[:3]) == (0, ["parent", "child", "parent again"]), done.stderr
