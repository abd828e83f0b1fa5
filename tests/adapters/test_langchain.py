"""LangChain and LangGraph on LangChain's own fake model, with the tools of real MCP servers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import after_model
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, InvalidToolCall, ToolMessage
from langchain_core.messages.tool import invalid_tool_call
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver

from tarsy_tasks.adapters.langchain import MCPClient, MCPTool, MCPToolError


class ScriptedModel(GenericFakeChatModel):
    """LangChain's fake model; it may have tools."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "ScriptedModel":
        for tool in tools:
            convert_to_openai_tool(tool)
        return self


def asking(*calls: tuple[str, dict[str, Any]]) -> ScriptedModel:
    """A model that asks for these calls at once, and then is done."""
    tool_calls = [
        {"id": str(number), "name": name, "args": args, "type": "tool_call"}
        for number, (name, args) in enumerate(calls)
    ]
    return ScriptedModel(messages=iter([AIMessage("", tool_calls=tool_calls), AIMessage("Done.")]))


async def run(client: MCPClient, *calls: tuple[str, dict[str, Any]]) -> list[ToolMessage]:
    """What an agent's model read."""
    agent = create_agent(asking(*calls), await client.get_tools(), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    await agent.ainvoke({"messages": [("user", "Go.")]}, config)
    state = await agent.aget_state(config)
    return [message for message in state.values["messages"] if isinstance(message, ToolMessage)]


def tools_of(client: MCPClient, **options: str) -> dict[str, MCPTool]:
    return {tool.name: tool for tool in asyncio.run(client.get_tools(**options))}


def test_an_agent_calls_tools() -> None:
    client = MCPClient(["desk"], timeout_s=20)
    echoed, sold_out, rejected = asyncio.run(
        run(
            client,
            ("desk__echo", {"text": "hello"}),
            ("desk__order", {"item": "unicorn", "count": 1}),
            ("desk__order", {"item": "lamp", "count": "many"}),
        )
    )
    assert (echoed.content, echoed.status) == ("hello", "success")
    assert (sold_out.status, rejected.status) == ("error", "error")
    assert "sold out" in str(sold_out.content)
    assert "Nothing was sent" in str(rejected.content)
    assert "> Be brief." in client.prompt_section()


def test_the_artifact_is_the_result_without_its_text() -> None:
    [quoted] = asyncio.run(run(MCPClient(["desk"], timeout_s=20), ("desk__quote", {"item": "lamp", "count": "3"})))
    assert quoted.artifact["structured_content"] == {"item": "lamp", "count": 3, "total": 13.5}
    assert quoted.artifact["repairs"] == ["to_integer"]
    assert (quoted.artifact["outcome"], quoted.artifact["attempts"]) == ("ok", 1)


def test_a_synchronous_agent_calls_the_same_tools() -> None:
    tools = tools_of(MCPClient(["desk"], timeout_s=20))
    answer = tools["desk__echo"].invoke({"name": "desk__echo", "args": {"text": "hi"}, "id": "1", "type": "tool_call"})
    assert (answer.content, answer.tool_call_id) == ("hi", "1")
    assert tools["desk__echo"].invoke({"text": "hello"}) == "hello"
    agent = create_agent(asking(("desk__echo", {"text": "hello"})), [*tools.values()])
    found = agent.invoke({"messages": [("user", "Go.")]})["messages"]
    assert [message.content for message in found] == ["Go.", "", "hello", "Done."]


def test_errors_can_be_raised() -> None:
    tools = tools_of(MCPClient(["desk"], timeout_s=20, handle_tool_errors=False))
    with pytest.raises(MCPToolError, match="sold out") as caught:
        tools["desk__order"].invoke({"item": "unicorn", "count": 1})
    assert caught.value.result.error_code == "TOOL_ERROR"


def test_annotations_are_metadata() -> None:
    metadata = tools_of(MCPClient(["desk"], timeout_s=20))["desk__echo"].metadata
    assert metadata is not None
    assert metadata["readOnlyHint"] is True
    assert (metadata["server"], metadata["tool"]) == ("desk", "echo")


@pytest.mark.parametrize(("images", "kinds"), [(True, ["text", "image", "file"]), (False, [])])
def test_media_are_blocks_or_a_sentence(images: bool, kinds: list[str]) -> None:
    tools = tools_of(MCPClient(["unusual"], timeout_s=20, images=images))
    content = tools["unusual__media"].invoke({})
    if kinds:
        assert [block["type"] for block in content] == kinds
    else:
        assert "1 × image/png, 1 × application/pdf" in content


def test_parameters_may_have_the_names_of_langchains_own() -> None:
    client = MCPClient(["unusual"], timeout_s=20)
    tools = tools_of(client)
    assert client.left_out.keys() == {"unusual.lost"}
    said = tools["unusual__config"].invoke({"config": "mine", "run_manager": "mine too"})
    assert said == '{"config": "mine", "run_manager": "mine too"}'


def test_broken_json_reaches_the_repair_of_the_worker() -> None:
    client = MCPClient(["desk"], timeout_s=20)

    @after_model
    def accept(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [client.accept_invalid_calls(state["messages"][-1])]}

    def invalid(call_id: str, name: str, args: str) -> InvalidToolCall:
        return invalid_tool_call(id=call_id, name=name, args=args, error="not JSON")

    calls = [
        invalid("1", "desk__quote", "{'item': 'lamp', 'count': 3,}"),
        invalid("2", "desk__quote", '{"item": "la'),
        invalid("3", "other", "{"),
    ]
    model = ScriptedModel(messages=iter([AIMessage("", id="m", invalid_tool_calls=calls), AIMessage("Done.")]))
    agent = create_agent(model, asyncio.run(client.get_tools()), middleware=[accept])
    _, asked, malformed, repaired, rejected, done = agent.invoke({"messages": [("user", "Go.")]})["messages"]
    assert [call["id"] for call in asked.invalid_tool_calls] == [malformed.tool_call_id] == ["3"]
    assert repaired.artifact["structured_content"] == {"item": "lamp", "count": 3, "total": 13.5}
    assert (rejected.status, done.content) == ("error", "Done.")
    assert "Nothing was sent" in rejected.content


def test_tools_of_one_server_and_500_tools() -> None:
    client = MCPClient(["desk", "many"], timeout_s=20)
    assert len(tools_of(client)) == 505
    assert {name.partition("__")[0] for name in tools_of(client, server_name="desk")} == {"desk"}
    with pytest.raises(ValueError, match="unknown server nowhere; known: desk, many"):
        tools_of(client, server_name="nowhere")
    assert client.failed_servers == {}


def test_connections_belong_into_the_configuration() -> None:
    with pytest.raises(ValueError, match=r"Put them into mcp.json, .* \['math'\]"):
        MCPClient({"math": {"command": "python"}})
