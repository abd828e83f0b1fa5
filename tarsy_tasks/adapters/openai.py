"""Tools for OpenAI's chat completions and Responses API, and for every API that is compatible with one of them.

It imports nothing of `openai`: requests and answers are dicts, and calls may be objects of its client or dicts.
"""

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, overload

from tarsy_tasks import AsyncToolExecutor, ToolExecutor, ToolResult
from tarsy_tasks.adapters.offer import OfferedTool
from tarsy_tasks.adapters.parts import split_result
from tarsy_tasks.adapters.providers import OPENAI
from tarsy_tasks.adapters.toolbox import AskedCall, AsyncToolbox, Dialect, Toolbox, build_toolbox, read_key

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam
    from openai.types.responses import FunctionToolParam, ResponseFunctionCallOutputItemParam
    from openai.types.responses.response_input_item_param import FunctionCallOutput

__all__ = ["openai_response_tools", "openai_tools"]


class _Chat(Dialect["ChatCompletionFunctionToolParam", "ChatCompletionToolMessageParam"]):
    provider = OPENAI

    def write_tools(self, tools: Sequence[OfferedTool]) -> "list[ChatCompletionFunctionToolParam]":
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in tools
        ]

    def read_calls(self, asked: Any) -> list[AskedCall]:
        functions = [(read_key(call, "id"), read_key(call, "function")) for call in asked or ()]
        return [
            AskedCall(call_id, read_key(function, "name"), read_key(function, "arguments"))
            for call_id, function in functions
            if function is not None
        ]

    def write_results(self, answers: Sequence[tuple[AskedCall, ToolResult]]) -> "list[ChatCompletionToolMessageParam]":
        # A message of the role `tool` takes text only.
        return [
            {"role": "tool", "tool_call_id": call.id, "content": split_result(result, ()).text}
            for call, result in answers
        ]


class _Responses(Dialect["FunctionToolParam", "FunctionCallOutput"]):
    provider = OPENAI

    def write_tools(self, tools: Sequence[OfferedTool]) -> "list[FunctionToolParam]":
        # `strict` is on by default here, and refuses most schemas of MCP servers.
        return [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.schema),
                "strict": False,
            }
            for tool in tools
        ]

    def read_calls(self, asked: Any) -> list[AskedCall]:
        return [
            AskedCall(read_key(item, "call_id"), read_key(item, "name"), read_key(item, "arguments"))
            for item in asked or ()
            if read_key(item, "type") == "function_call"
        ]

    def write_results(self, answers: Sequence[tuple[AskedCall, ToolResult]]) -> "list[FunctionCallOutput]":
        return [
            {"type": "function_call_output", "call_id": call.id, "output": self._write_output(result)}
            for call, result in answers
        ]

    def _write_output(self, result: ToolResult) -> "str | list[ResponseFunctionCallOutputItemParam]":
        parts = split_result(result, self.provider.media)
        if not parts.media:
            return parts.text
        output: list[ResponseFunctionCallOutputItemParam] = [{"type": "input_text", "text": parts.text}]
        for number, media in enumerate(parts.media, start=1):
            if media.is_image:
                output.append({"type": "input_image", "image_url": media.url})
            else:
                output.append({"type": "input_file", "filename": f"result-{number}.pdf", "file_data": media.url})
        return output


@overload
def openai_tools(
    executor: ToolExecutor, *, search: bool = False
) -> "Toolbox[ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam]": ...
@overload
def openai_tools(
    executor: AsyncToolExecutor, *, search: bool = False
) -> "Awaitable[AsyncToolbox[ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam]]": ...
def openai_tools(executor: ToolExecutor | AsyncToolExecutor, *, search: bool = False) -> Any:
    """Tools for chat completions; `run(message.tool_calls)` returns the messages to append.

    Args:
        executor: For an `AsyncToolExecutor`, await this function and `run`.
        search: Give the model `search_tools` and `call_tool` instead of all tools (docs/tool-search.md).

    Raises:
        BrokerUnavailable: Redis could not be reached.
        ValueError: There are more than 128 tools.
    """
    return build_toolbox(executor, _Chat(), search=search)


@overload
def openai_response_tools(
    executor: ToolExecutor, *, search: bool = False
) -> "Toolbox[FunctionToolParam, FunctionCallOutput]": ...
@overload
def openai_response_tools(
    executor: AsyncToolExecutor, *, search: bool = False
) -> "Awaitable[AsyncToolbox[FunctionToolParam, FunctionCallOutput]]": ...
def openai_response_tools(executor: ToolExecutor | AsyncToolExecutor, *, search: bool = False) -> Any:
    """Tools for the Responses API; `run(response.output)` returns the items to append. Else as `openai_tools`."""
    return build_toolbox(executor, _Responses(), search=search)
