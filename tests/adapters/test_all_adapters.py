"""What every adapter passes on, each in its framework: calls that wait for a person, results that are cut or
summarized, search in place of all tools, functions of the agent.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from agents import Agent, Runner
from agents.run_context import RunContextWrapper
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from google.genai.types import FunctionCall
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelMessage, ModelResponse, RunContext, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tarsy_tasks import AsyncToolExecutor, SummarizedCall, Summarizer, ToolExecutor
from tarsy_tasks.adapters.anthropic import anthropic_tools
from tarsy_tasks.adapters.gemini import gemini_tools
from tarsy_tasks.adapters.langchain import MCPClient
from tarsy_tasks.adapters.openai import openai_response_tools, openai_tools
from tarsy_tasks.adapters.openai_agents import agent_tools
from tarsy_tasks.adapters.pydantic_ai import ExecutorToolset
from tarsy_tasks.broker import parked_calls
from tests.adapters.test_langchain import run as run_langchain
from tests.processes import wait_until

Calls = Sequence[tuple[str, dict[str, Any]]]
LONG = "a line of words\n" * 5000
READ_RESULT = "tarsy__read_result"


class Adapter:
    """Asks for calls at once as a model does, in one framework.

    Attributes:
        context: What a summarizer gets from it.
    """

    def __init__(self, ask: Callable[..., list[str]], context: object = None) -> None:
        self.ask = ask
        self.context = context


def add_functions(executor: Any, functions: Sequence[Callable[..., Any]]) -> Any:
    for each in functions:
        executor.native(each)
    return executor


TOOLBOXES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., list[str]]]] = {
    "openai": (
        openai_tools,
        lambda n, name, given: {"id": str(n), "function": {"name": name, "arguments": json.dumps(given)}},
        lambda answers: [each["content"] for each in answers],
    ),
    "responses": (
        openai_response_tools,
        lambda n, name, given: {
            "type": "function_call", "call_id": str(n), "name": name, "arguments": json.dumps(given)
        },
        lambda answers: [each["output"] for each in answers],
    ),
    "anthropic": (
        anthropic_tools,
        lambda n, name, given: {"type": "tool_use", "id": str(n), "name": name, "input": given},
        lambda answers: [block["content"][0]["text"] for block in answers[0]["content"]],
    ),
    "gemini": (
        gemini_tools,
        lambda _, name, given: FunctionCall(name=name, args=given),
        lambda answers: [next(iter(part.function_response.response.values())) for part in answers[0].parts],
    ),
}  # fmt: skip
"""For providers whose clients return calls: the adapter, a call as a model writes it, what it reads of the answers."""


def run_toolbox(name: str, tools: Any, calls: Calls) -> list[str]:
    _, write, read = TOOLBOXES[name]
    return read(tools.run([write(n, tool, given) for n, (tool, given) in enumerate(calls)], context="why?"))


def ask_toolbox(name: str) -> Any:
    def ask(
        servers: list[str], calls: Calls, *, search: bool = False, functions: Any = (), **options: Any
    ) -> list[str]:
        with ToolExecutor(servers, timeout_s=20, **options) as executor:
            make, *_ = TOOLBOXES[name]
            return run_toolbox(name, make(add_functions(executor, functions), search=search), calls)

    return ask


def ask_agents_sdk(
    servers: list[str], calls: Calls, *, search: bool = False, functions: Any = (), **options: Any
) -> list[str]:
    async def converse() -> list[Any]:
        executor = add_functions(AsyncToolExecutor(servers, timeout_s=20, **options), functions)
        tools = await agent_tools(executor, search=search)
        asked = [function_call(name, json.dumps(given), call_id=str(n)) for n, (name, given) in enumerate(calls)]
        agent = Agent(name="tester", model=ScriptedModel([asked, [assistant_message("Done.")]]), tools=[*tools])
        tools.run_config.tracing_disabled = True
        result = await Runner.run(agent, "Go.", run_config=tools.run_config)
        return [item for item in result.to_input_list() if item.get("type") == "function_call_output"]

    return [item["output"] for item in sorted(asyncio.run(converse()), key=lambda item: item["call_id"])]


def ask_langchain(
    servers: list[str], calls: Calls, *, search: bool = False, functions: Any = (), **options: Any
) -> list[str]:
    assert not functions, "LangChain has tools of its own for them"
    return [
        str(each.content) for each in asyncio.run(run_langchain(MCPClient(servers, search=search, **options), *calls))
    ]


def ask_pydantic_ai(
    servers: list[str], calls: Calls, *, search: bool = False, functions: Any = (), **options: Any
) -> list[str]:
    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        return ModelResponse(
            [TextPart("Done.")] if len(messages) > 1 else [ToolCallPart(name, given) for name, given in calls]
        )

    executor = add_functions(AsyncToolExecutor(servers, timeout_s=20, **options), functions)
    toolset = ExecutorToolset(executor, search=search)
    result = PydanticAgent(FunctionModel(answer), toolsets=[toolset]).run_sync("Go.")
    parts = [part for message in result.all_messages() for part in message.parts]
    returned = [part for part in parts if isinstance(part, ToolReturnPart)]
    assert not [each for each in returned if each.outcome == "retried"]
    return [str(part.content) for part in returned]


ADAPTERS = {name: Adapter(ask_toolbox(name), "why?") for name in TOOLBOXES} | {
    "openai_agents": Adapter(ask_agents_sdk, ToolContext),
    "langchain": Adapter(ask_langchain),
    "pydantic_ai": Adapter(ask_pydantic_ai, RunContext),
}


@pytest.fixture(params=[*ADAPTERS])
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


@contextmanager
def people(redis_url: str, decisions: int) -> Iterator[None]:
    """Somebody who approves calls, but those that contain `no`."""

    def decide() -> None:
        with redis.Redis.from_url(redis_url) as table:
            for _ in range(decisions):
                view = wait_until(lambda: next(iter(parked_calls.load_waiting(table, 1)[0]), None), "a call waits", 40)
                assert view is not None
                is_denied = '"no"' in view.about["arguments"]
                parked_calls.decide(table, view, is_approved=not is_denied, by="ann", why="not today")

    thread = threading.Thread(target=decide)
    thread.start()
    yield
    thread.join()


def test_calls_wait_for_a_person(adapter: Adapter, redis_url: str) -> None:
    calls = [("gated__echo", {"text": "yes"}), ("gated__echo", {"text": "no"})]
    with people(redis_url, decisions=2):
        approved, denied = adapter.ask(["gated"], calls, park=True)
    assert approved == "yes"
    assert "was denied by ann: not today" in denied
    [rejected] = adapter.ask(["gated"], calls[:1])
    assert "did not run" in rejected or "Nothing was sent" in rejected, "without `park`"


def test_a_cut_result_says_how_to_read_on(adapter: Adapter) -> None:
    [read] = adapter.ask(["desk"], [("desk__echo", {"text": LONG})])
    assert len(read) < len(LONG)
    assert "call the tool `tarsy.read_result`" in read


def test_two_tools_stand_for_all(adapter: Adapter) -> None:
    calls = [
        ("search_tools", {"query": "what does it cost"}),
        ("call_tool", {"name": "desk.echo", "arguments": {"text": "hello"}}),
    ]
    found, echoed = adapter.ask(["desk"], calls, search=True)
    assert "desk.quote(item: str" in found
    assert echoed == "hello"


def test_a_summary_takes_the_place_of_the_text(adapter: Adapter) -> None:
    seen: list[object] = []

    def summarize(text: str, call: SummarizedCall, context: object) -> str:
        seen.append(context)
        return f"{call.tool}: {len(text)}"

    summarizer = Summarizer(summarize, settings={"desk": {"size_threshold_tokens": 100}})
    [read] = adapter.ask(["desk"], [("desk__echo", {"text": LONG[:3000]})], summarizer=summarizer)
    assert read.endswith("echo: 3000")
    [context] = seen
    assert isinstance(context, adapter.context) if isinstance(adapter.context, type) else context == adapter.context


@pytest.mark.parametrize("name", [each for each in ADAPTERS if each != "langchain"])
def test_functions_of_the_agent_are_tools(name: str) -> None:
    def add(left: int, right: int) -> int:
        """The sum."""
        return left + right

    [read] = ADAPTERS[name].ask(["desk"], [("native__add", {"left": 2, "right": 40})], functions=[add])
    assert read == "42"


def read_on(text: str) -> tuple[str, dict[str, Any]]:
    """The call that a result that was cut suggests."""
    return READ_RESULT, {"handle": text.partition('{"handle": "')[2].partition('"')[0], "offset": len(LONG) - 32}


def written(tools: Sequence[Any]) -> str:
    """All of a request's tools."""
    return json.dumps([each.model_dump() if hasattr(each, "model_dump") else each for each in tools], default=str)


CUT: Calls = [("desk__echo", {"text": LONG})]


@pytest.mark.parametrize("name", TOOLBOXES)
def test_a_toolbox_offers_to_read_on_once_it_helps(name: str) -> None:
    make, *_ = TOOLBOXES[name]
    with ToolExecutor(["desk"], timeout_s=20) as executor:
        tools = make(executor)
        in_use = [*tools]
        run_toolbox(name, tools, [("desk__echo", {"text": "short"})])
        assert READ_RESULT not in written(tools)
        [read] = run_toolbox(name, tools, CUT)
        assert written(tools).count(READ_RESULT) == 1
        [rest] = run_toolbox(name, tools, [read_on(read)])
        assert "a line of words" in rest
        assert written(tools).count(READ_RESULT) == 1
        if name == "gemini":
            assert READ_RESULT in written(in_use), "a configuration that was built before has it, too"
            assert len(tools) == 1


def test_a_full_request_gets_no_further_tool() -> None:
    chosen = {"many": [f"t{number}" for number in range(127)], "desk": ["echo"]}
    with ToolExecutor(["many", "desk"], tool_filter=chosen, timeout_s=20) as executor:
        tools = openai_tools(executor)
        [read] = run_toolbox("openai", tools, CUT)
        assert len(tools) == 128, "more would be refused"
        [rest] = run_toolbox("openai", tools, [read_on(read)])
        assert "a line of words" in rest, "it can be called all the same"


def test_an_agent_of_openai_can_read_on_once_it_helps() -> None:
    async def converse() -> tuple[list[str], list[str]]:
        executor = AsyncToolExecutor(["desk"], timeout_s=20)
        tools = await agent_tools(executor)
        agent, context = Agent(name="tester", tools=[*tools]), RunContextWrapper(None)
        before = [tool.name for tool in await agent.get_all_tools(context)]
        await executor.execute("desk.echo", {"text": LONG})
        return before, [tool.name for tool in await agent.get_all_tools(context)]

    before, after = asyncio.run(converse())
    assert [*before, READ_RESULT] == after


def test_pydantic_ai_offers_to_read_on_in_the_next_step() -> None:
    offered: list[list[str]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered.append([tool.name for tool in info.function_tools])
        last = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if not last:
            return ModelResponse([ToolCallPart(*CUT[0])])
        if len(offered) == 2:
            return ModelResponse([ToolCallPart(*read_on(str(last[0].content)))])
        return ModelResponse([TextPart(str(last[0].content))])

    toolset = ExecutorToolset(AsyncToolExecutor(["desk"], timeout_s=20))
    result = PydanticAgent(FunctionModel(answer), toolsets=[toolset]).run_sync("Go.")
    assert "a line of words" in result.output
    assert [READ_RESULT in names for names in offered] == [False, True, True]


def test_langchain_is_given_the_tool_from_the_start() -> None:
    client = MCPClient(["desk"], timeout_s=20, offer_read_result=True)
    assert READ_RESULT in [tool.name for tool in asyncio.run(client.get_tools())]
    [read] = asyncio.run(run_langchain(client, *CUT))
    [rest] = asyncio.run(run_langchain(client, read_on(str(read.content))))
    assert "a line of words" in str(rest.content)


def test_a_client_of_langchain_has_sessions_of_one_run() -> None:
    async def converse() -> list[str]:
        client = MCPClient(["desk"], timeout_s=20, session="run")
        [echo] = [tool for tool in await client.get_tools() if tool.name == "desk__echo"]
        said = [await asyncio.to_thread(echo.invoke, {"text": "one"}), await echo.ainvoke({"text": "two"})]
        runs = {each._dispatcher.isolated.session.run for each in (client._executor, client._async_executor)}
        assert len(runs) == 1
        await client.close()
        return said

    assert asyncio.run(converse()) == ["one", "two"]


@pytest.mark.parametrize("name", TOOLBOXES)
def test_an_unknown_tool_leads_to_the_search(name: str) -> None:
    [read] = ADAPTERS[name].ask(["desk"], [("desk__ecko", {"text": "hello"})], search=True)
    assert read == "The tool 'desk__ecko' does not exist. Nothing was sent. Find the right one with search_tools."
