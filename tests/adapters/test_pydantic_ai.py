"""Pydantic AI on its own test and function models, with the tools of real MCP servers."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from tarsy_tasks import AsyncToolExecutor, ToolResult
from tarsy_tasks.adapters.pydantic_ai import ExecutorToolset

Answer = Callable[[list[ModelMessage], AgentInfo], ModelResponse]


def toolset(*servers: str, **options: Any) -> ExecutorToolset:
    return ExecutorToolset(AsyncToolExecutor([*servers], timeout_s=20), **options)


def asking(*calls: tuple[str, str | dict[str, Any]]) -> FunctionModel:
    """A model that asks for these calls at once, and then is done."""

    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("Done.")])
        return ModelResponse([ToolCallPart(name, arguments) for name, arguments in calls])

    return FunctionModel(answer)


def run(tools: ExecutorToolset, *calls: tuple[str, str | dict[str, Any]]) -> list[ToolReturnPart]:
    """What an agent's model read."""
    result = Agent(asking(*calls), toolsets=[tools]).run_sync("Go.")
    assert result.output == "Done."
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]


def test_an_agent_calls_tools() -> None:
    echoed, sold_out, rejected = run(
        toolset("desk"),
        ("desk__echo", {"text": "hello"}),
        ("desk__order", {"item": "unicorn", "count": 1}),
        ("desk__order", {"item": "lamp", "count": "many"}),
    )
    assert (echoed.content, echoed.outcome) == ("hello", "success")
    assert isinstance(echoed.metadata, ToolResult)
    assert sold_out.outcome == "failed"
    assert "sold out" in str(sold_out.content)
    assert rejected.outcome == "retried", "the model is asked to correct the call"
    assert "Nothing was sent" in str(rejected.content)


def test_the_test_model_calls_every_tool() -> None:
    agent = Agent(TestModel(call_tools=["desk__echo", "desk__quote"]), toolsets=[toolset("desk", "unusual")])
    assert "desk__echo" in agent.run_sync("Go.").output


def test_almost_json_reaches_the_repair_of_the_worker() -> None:
    repaired, text, wrong, none = run(
        toolset("desk"),
        ("desk__quote", "{'item': 'lamp', 'count': '3',}"),
        ("desk__echo", "hello"),
        ("desk__quote", "[1, 2]"),
        ("desk__quote", ""),
    )
    assert repaired.metadata.structured == {"item": "lamp", "count": 3, "total": 13.5}
    assert "single_quotes" in repaired.metadata.repairs
    assert text.content == "hello"
    assert (wrong.outcome, none.outcome) == ("retried", "retried")


def test_attachments_are_binary_content() -> None:
    [returned] = run(toolset("unusual"), ("unusual__media", {}))
    text, image, document = returned.content
    assert "1 × audio/wav" in text
    assert isinstance(image, BinaryContent)
    assert (image.is_image, document.media_type) == (True, "application/pdf")


def test_corrections_have_a_limit() -> None:
    def insist(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        return ModelResponse([ToolCallPart("desk__order", {"item": "lamp"})])

    agent = Agent(FunctionModel(insist), toolsets=[toolset("desk", max_retries=2)])
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries count of 2"):
        agent.run_sync("Go.")


@pytest.mark.parametrize("is_included", [True, False])
def test_instructions_of_servers_are_included_or_not(is_included: bool) -> None:
    seen: list[AgentInfo] = []

    def note(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        return ModelResponse([TextPart("Done.")])

    Agent(FunctionModel(note), toolsets=[toolset("desk", include_instructions=is_included)]).run_sync("Go.")
    [info] = seen
    assert ("Instructions for `desk__echo`" in (info.instructions or "")) is is_included
    [echo] = [tool for tool in info.function_tools if tool.name == "desk__echo"]
    assert echo.metadata == {
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
        "server": "desk",
        "tool": "echo",
    }


def test_an_agent_may_have_500_tools() -> None:
    tools = toolset("many", id="mcp")
    assert tools.id == "mcp"
    [returned] = run(tools, ("many__t499", {"text": "hello"}))
    assert returned.content == '{"text": "hello"}'
