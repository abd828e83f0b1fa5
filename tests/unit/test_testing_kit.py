"""`tarsy_tasks.testing`: executors with canned answers, and an MCP server that a test scripts."""

import asyncio
import subprocess
import sys
from functools import partial

import anyio
import pytest
from mcp import Client

from tarsy_tasks import BrokerUnavailable, ErrorCode, Outcome, ResultTimeout, ToolCall, ToolDefinition, ToolResult
from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.server_status import ServerState
from tarsy_tasks.testing import UNANSWERED, AsyncStubToolExecutor, InTurn, ScriptedServer, StubToolExecutor

PODS = ToolDefinition(
    name="k8s.pods_list",
    server="k8s",
    tool="pods_list",
    description="List pods.",
    input_schema={"type": "object", "properties": {"limit": {"type": "integer"}}, "required": ["limit"]},
)


def run_sync(answers, call, *arguments, **options):
    with StubToolExecutor(answers, **options) as tools:
        return tools.execute(call, *arguments)


def run_async(answers, call, *arguments, **options):
    async def agent():
        async with AsyncStubToolExecutor(answers, **options) as tools:
            return await tools.execute(call, *arguments)

    return asyncio.run(agent())


both = pytest.mark.parametrize("run", [run_sync, run_async])


@both
@pytest.mark.parametrize(
    ("answer", "content", "structured"),
    [
        ("sunny", "sunny", None),
        ("", "", None),
        ({"a": [1]}, '{"a": [1]}', {"a": [1]}),
        ([1, "é"], '[1, "é"]', [1, "é"]),
        (None, "null", None),
        (7, "7", 7),
        (Outcome.OK, "", None),
        (lambda arguments: f"x{arguments['limit']}", "x3", None),
        (InTurn(lambda arguments: arguments), '{"limit": 3}', {"limit": 3}),
    ],
)
def test_an_answer_becomes_a_result(run, answer, content, structured):
    result = run({"k8s.pods_list": answer}, ToolCall(id="c1", name="k8s__pods_list", arguments="limit: 3"))
    assert (result.content, result.structured, result.outcome) == (content, structured, Outcome.OK)
    assert (result.call_id, result.name, result.attempts, result.repairs) == ("c1", "k8s__pods_list", 1, ("pairs",))


@both
@pytest.mark.parametrize("ending", [*[each for each in Outcome if each is not Outcome.OK], *ErrorCode])
def test_a_call_can_end_in_every_way(run, ending):
    result = run({"a.b": ending}, "a.b")
    assert ending in (result.outcome, result.error_code)
    assert result.outcome is ErrorCode(result.error_code).outcome
    assert ("did not run" in result.content) == (result.attempts == 0)


@both
def test_a_whole_result_and_an_error_are_passed_on(run):
    given = ToolResult(call_id="x", name="y", content="z", outcome=Outcome.TIMEOUT, duration_s=3)
    found = run({"a.b": given}, "a.b")
    assert (found.name, found.content, found.outcome, found.duration_s) == ("a.b", "z", Outcome.TIMEOUT, 3)
    assert (found.server, found.tool, found.task_id) == ("a", "b", "stub-1")
    assert found.answered_at
    with pytest.raises(BrokerUnavailable, match="gone"):
        run({"a.b": BrokerUnavailable("gone")}, "a.b")
    with pytest.raises(ZeroDivisionError):
        run({"a.b": ZeroDivisionError()}, "a.b")


@both
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("k8s.pods", {}, ErrorCode.UNKNOWN_TOOL),
        ("other.pods_list", {}, ErrorCode.INVALID_NAME),
        ("k8s.pods_list", {}, ErrorCode.INVALID_ARGUMENTS),
        ("k8s.pods_list", {"limit": []}, ErrorCode.INVALID_ARGUMENTS),
    ],
)
def test_a_wrong_call_is_rejected_as_by_a_worker(run, name, arguments, code):
    result = run({}, name, arguments, tools=[PODS])
    assert (result.outcome, result.attempts) == (Outcome.REJECTED, 0)
    assert result.error_code == code or result.error_code is ErrorCode.UNKNOWN_SERVER


def test_what_reached_a_tool_is_recorded():
    tools = StubToolExecutor({}, tools=[PODS])
    tools.execute_many([("k8s.pods_list", '{"limit": "3"}'), ("k8s.pods_list", {}), ("no.such", {})])
    [call] = tools.calls
    assert (call.name, call.arguments, call.call.arguments) == ("k8s.pods_list", {"limit": 3}, '{"limit": "3"}')


def test_a_stub_lists_tools_as_an_executor_does():
    tools = StubToolExecutor(
        {"weather.forecast": "x"}, tools=[PODS], failed_servers={"db": "down"}, instructions={"k8s": "Be careful."}
    )
    with pytest.raises(RuntimeError, match="call list_tools"):
        tools.failed_servers()
    assert [tool.name for tool in tools.list_tools()] == ["k8s.pods_list", "weather.forecast"]
    assert tools.failed_servers() == {"db": "down"}
    assert "Be careful." in tools.prompt_section()


def test_a_call_without_an_answer_can_be_cancelled():
    tools = StubToolExecutor({"a.b": UNANSWERED}, timeout_s=20)
    assert tools.execute("a.b").error_code is ErrorCode.NO_ANSWER
    pending = tools.submit("a.b")
    assert not pending.done()
    with pytest.raises(ResultTimeout):
        pending.result(timeout_s=0.01)
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED

    async def agent():
        pending = await AsyncStubToolExecutor({"a.b": UNANSWERED}).submit("a.b")
        await pending.cancel()
        return await pending.result()

    assert asyncio.run(agent()).outcome is Outcome.CANCELLED


def test_a_broken_connection_is_raised_as_by_an_executor():
    tools = StubToolExecutor({"a.b": BrokerUnavailable("gone"), "a.c": "x"})
    with pytest.raises(BrokerUnavailable):
        tools.submit("a.b")
    assert [result.outcome for result in tools.execute_many([("a.b", {}), ("a.c", {})])] == ["unavailable", "ok"]


@pytest.mark.parametrize(("answers", "options"), [({"a": "x"}, {}), ({}, {"timeout_s": 0}), ({".b": "x"}, {})])
def test_a_stub_that_cannot_be_is_refused(answers, options):
    with pytest.raises(ValueError):
        StubToolExecutor(answers, **options)


async def answer_later(arguments):
    return arguments


@both
@pytest.mark.parametrize(
    ("answer", "said"),
    [({1, 2}, "cannot be a set"), (b"x", "cannot be a bytes"), (dict, "cannot be a type"), (answer_later, "coroutine")],
)
def test_an_answer_that_cannot_be_given_is_named(run, answer, said):
    with pytest.raises(TypeError, match=said):
        run({"a.b": answer}, "a.b")


def test_an_error_of_the_tool_says_that_the_tool_ran():
    assert "The tool ran and" in run_sync({"a.b": Outcome.TOOL_ERROR}, "a.b").content


def test_a_scripted_server_gives_the_scripted_answers():
    async def slow(arguments):
        await anyio.lowlevel.checkpoint()
        return arguments

    async def call(url, *names):
        async with Client(url) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            return listed, [await client.call_tool(name, {"x": 1}) for name in names]

    with ScriptedServer() as server:
        server.answer("turns", InTurn("one", OSError("no"), "two"))
        server.answer("partial", partial(lambda text, _: text, "any"))
        server.answer("slow", slow, input_schema={"type": "object", "properties": {"x": {"type": "integer"}}})
        listed, results = asyncio.run(call(server.url, "turns", "turns", "turns", "turns", "partial", "slow"))
        assert listed == ["turns", "partial", "slow"]
        assert [(result.content[0].text, result.is_error) for result in results] == [
            *[
                ("one", False),
                ("no", True),
                ("two", False),
                ("two", False),
                ("any", False),
                ('{"x": 1}', False),
            ]
        ]
        assert results[-1].structured_content == {"x": 1}
        server.stop()
        with pytest.raises(BaseException):  # noqa: B017 - whatever the client calls it
            asyncio.run(call(server.url))
        server.start()
        assert asyncio.run(call(server.url, "turns"))[1][0].content[0].text == "two"
    assert [each.tool for each in server.calls] == ["turns"] * 4 + ["partial", "slow", "turns"]


def test_the_plugin_of_pytest_imports_nothing_heavy():
    code = (
        "import sys, tarsy_tasks.testing.plugin;"
        "print([name for name in ('celery', 'kombu', 'redis', 'mcp', 'pydantic', 'uvicorn') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_stub_finds_and_permits_the_tools_that_it_has():
    async def find():
        async with AsyncStubToolExecutor({}, tools=[PODS]) as tools:
            return await tools.search("which pods are there")

    with StubToolExecutor({"k8s.pods_delete": ""}, tools=[PODS]) as tools:
        assert [tool.name for tool in tools.search("list pods")] == ["k8s.pods_list", "k8s.pods_delete"]
        permissions = [tools.can_execute(name) for name in ("k8s__pods_list", "k8s.nodes_list")]
    assert list(map(bool, permissions)) == [True, False]
    assert asyncio.run(find()) == [PODS]


def test_a_stub_knows_its_servers() -> None:
    with StubToolExecutor({"k8s.pods_list": "p1"}, failed_servers={"github": "it is down"}) as tools:
        tools.on_event(print)()
        assert {name: status.state for name, status in tools.servers().items()} == {
            "k8s": ServerState.CONNECTED,
            "github": ServerState.ERROR,
        }
        assert tools.server("github").last_error == "it is down"
        assert tools.tool_info("k8s__pods_list").tool.name == "k8s.pods_list"
        assert (tools.is_mcp_tool("k8s.pods_list"), tools.is_mcp_tool("k8s.nodes")) == (True, False)
        with pytest.raises(ToolNameError, match="`other`"):
            tools.server("other")
