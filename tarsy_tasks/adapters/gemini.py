"""Tools for Gemini through google-genai, at the Gemini API and at Vertex AI."""

from collections.abc import Awaitable, Sequence
from typing import Any, overload

from tarsy_tasks import AsyncToolExecutor, ToolExecutor, ToolResult
from tarsy_tasks.adapters.framework import missing_framework
from tarsy_tasks.adapters.offer import OfferedTool
from tarsy_tasks.adapters.parts import split_result
from tarsy_tasks.adapters.providers import GEMINI
from tarsy_tasks.adapters.toolbox import AskedCall, AsyncToolbox, Dialect, Toolbox, build_toolbox, read_key

try:
    from google.genai.types import Content, FunctionDeclaration, FunctionResponse, Part, Tool
except ImportError as error:
    raise missing_framework(error, "gemini", "google-genai") from None

__all__ = ["gemini_tools"]


class _GenerateContent(Dialect[Tool, Content]):
    provider = GEMINI

    def write_tools(self, tools: Sequence[OfferedTool]) -> list[Tool]:
        return [Tool(function_declarations=[*map(_declare, tools)])] if tools else []

    def add_tools(self, request: list[Tool], tools: Sequence[OfferedTool]) -> None:
        """Into the `Tool` that is there: a request takes one with functions, and a configuration that was built with
        the list has the same object."""
        if not request:
            super().add_tools(request, tools)
            return
        request[0].function_declarations = [*(request[0].function_declarations or ()), *map(_declare, tools)]

    def read_calls(self, asked: Any) -> list[AskedCall]:
        return [AskedCall(read_key(call, "id"), read_key(call, "name"), read_key(call, "args")) for call in asked or ()]

    def write_results(self, answers: Sequence[tuple[AskedCall, ToolResult]]) -> list[Content]:
        responses: list[Part] = []
        media: list[Part] = []
        for call, result in answers:
            parts = split_result(result, self.provider.media)
            key = "error" if result.is_error else "output"
            response = FunctionResponse(id=call.id, name=call.name, response={key: parts.text})
            responses.append(Part(function_response=response))
            # Only some models read media inside of a response; all read parts that follow the responses.
            for each in parts.media:
                media.append(Part(text=f"From the result of {call.name}:"))
                media.append(Part.from_bytes(data=each.content, mime_type=each.mime_type))
        return [Content(role="user", parts=[*responses, *media])]


def _declare(tool: OfferedTool) -> FunctionDeclaration:
    return FunctionDeclaration(
        name=tool.name,
        description=tool.description,
        # Without parameters, no schema.
        parameters_json_schema=tool.schema if tool.schema["properties"] else None,
    )


@overload
def gemini_tools(executor: ToolExecutor, *, search: bool = False) -> Toolbox[Tool, Content]: ...
@overload
def gemini_tools(executor: AsyncToolExecutor, *, search: bool = False) -> Awaitable[AsyncToolbox[Tool, Content]]: ...
def gemini_tools(executor: ToolExecutor | AsyncToolExecutor, *, search: bool = False) -> Any:
    """Tools for `GenerateContentConfig`; `run(response.function_calls)` returns the content to append, in a list.

    Args:
        executor: For an `AsyncToolExecutor`, await this function and `run`.
        search: Give the model `search_tools` and `call_tool` instead of all tools (docs/tool-search.md).

    Raises:
        BrokerUnavailable: Redis could not be reached.
    """
    return build_toolbox(executor, _GenerateContent(), search=search)
