"""Tools for the OpenAI Agents SDK."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tarsy_tasks import AsyncToolExecutor, ToolCall, ToolResult
from tarsy_tasks.adapters.framework import missing_framework
from tarsy_tasks.adapters.offer import Offer, OfferedTool, build_offer
from tarsy_tasks.adapters.parts import split_result
from tarsy_tasks.adapters.providers import OPENAI

try:
    from agents import (
        FunctionTool,
        RunConfig,
        ToolErrorFormatterArgs,
        ToolOutputFileContent,
        ToolOutputImage,
        ToolOutputText,
    )
    from agents.tool_context import ToolContext
except ImportError as error:
    raise missing_framework(error, "openai-agents", "openai-agents") from None

__all__ = ["AgentTools", "agent_tools"]

_Output = ToolOutputText | ToolOutputImage | ToolOutputFileContent


class AgentTools(list[FunctionTool]):
    """The tools of an agent.

    Attributes:
        left_out: By `server.tool`, why a tool cannot be offered to OpenAI's models.
        failed_servers: Why tools of a server are missing, by server.
        run_config: For `Runner.run`: a model that calls a tool that does not exist reads which there are. Without it
            the run ends with an error.
    """

    def __init__(self, executor: AsyncToolExecutor, offer: Offer) -> None:
        def has_cut(_context: Any, _agent: Any) -> bool:
            return bool(executor.own_tools())

        super().__init__(_build_tool(executor, tool) for tool in offer.tools.values())
        for tool in offer.add_later(executor.own_tools(later=True)):
            self.append(replace(_build_tool(executor, tool), is_enabled=has_cut))
        self._offer = offer
        self.left_out = offer.left_out
        self.failed_servers = offer.listed.failed_servers
        self.run_config = RunConfig(
            tool_not_found_behavior="return_error_to_model", tool_error_formatter=self._write_error
        )

    def prompt_section(self) -> str:
        """For the agent's instructions: those of servers, and which servers failed; empty if there is neither."""
        return self._offer.prompt_section()

    def _write_error(self, args: ToolErrorFormatterArgs[Any]) -> str | None:
        return self._offer.reject(args.tool_name) if args.kind == "tool_not_found" else None


async def agent_tools(executor: AsyncToolExecutor, *, search: bool = False) -> AgentTools:
    """The tools of an executor as `FunctionTool`s.

    A summarizer of the executor gets the `ToolContext` as its context.

    Args:
        search: Give the model `search_tools` and `call_tool` instead of all tools (docs/tool-search.md).

    Raises:
        BrokerUnavailable: Redis could not be reached.
        ValueError: There are more than 128 tools.
    """
    listed = await executor.list_tools()
    return AgentTools(executor, build_offer(listed.behind_search() if search else listed, OPENAI))


def _build_tool(executor: AsyncToolExecutor, tool: OfferedTool) -> FunctionTool:
    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.schema,
        on_invoke_tool=_build_call(executor, tool.definition.name),
        strict_json_schema=False,  # which refuses most schemas of MCP servers
    )


def _build_call(
    executor: AsyncToolExecutor, name: str
) -> Callable[[ToolContext[Any], str], Awaitable[str | list[_Output]]]:
    async def call(context: ToolContext[Any], arguments: str) -> str | list[_Output]:
        asked = ToolCall(name=name, arguments=arguments, id=context.tool_call_id)
        return _write_result(await executor.execute(asked, context=context))

    return call


def _write_result(result: ToolResult) -> str | list[_Output]:
    parts = split_result(result, OPENAI.media)
    if not parts.media:
        return parts.text
    output: list[_Output] = [ToolOutputText(text=parts.text)]
    for number, media in enumerate(parts.media, start=1):
        if media.is_image:
            output.append(ToolOutputImage(image_url=media.url))
        else:
            output.append(ToolOutputFileContent(filename=f"result-{number}.pdf", file_data=media.url))
    return output
