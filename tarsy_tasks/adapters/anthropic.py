"""Tools for Anthropic's Messages API.

It imports nothing of `anthropic`: requests and answers are dicts, and calls may be objects of its client or dicts.
"""

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, overload

from tarsy_tasks import AsyncToolExecutor, ToolExecutor, ToolResult
from tarsy_tasks.adapters.offer import OfferedTool
from tarsy_tasks.adapters.parts import Media, split_result
from tarsy_tasks.adapters.providers import ANTHROPIC
from tarsy_tasks.adapters.toolbox import AskedCall, AsyncToolbox, Dialect, Toolbox, build_toolbox, read_key

if TYPE_CHECKING:
    from anthropic.types import DocumentBlockParam, ImageBlockParam, MessageParam, ToolParam, ToolResultBlockParam

__all__ = ["anthropic_tools"]


class _Messages(Dialect["ToolParam", "MessageParam"]):
    provider = ANTHROPIC

    def write_tools(self, tools: Sequence[OfferedTool]) -> "list[ToolParam]":
        return [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)} for tool in tools
        ]

    def read_calls(self, asked: Any) -> list[AskedCall]:
        return [
            AskedCall(read_key(block, "id"), read_key(block, "name"), read_key(block, "input"))
            for block in asked or ()
            if read_key(block, "type") == "tool_use"
        ]

    def write_results(self, answers: Sequence[tuple[AskedCall, ToolResult]]) -> "list[MessageParam]":
        # All results of one answer belong into one message.
        return [{"role": "user", "content": [self._write_block(call, result) for call, result in answers]}]

    def _write_block(self, call: AskedCall, result: ToolResult) -> "ToolResultBlockParam":
        parts = split_result(result, self.provider.media)
        return {
            "type": "tool_result",
            "tool_use_id": call.id,
            "is_error": result.is_error,
            "content": [{"type": "text", "text": parts.text}, *map(_write_media, parts.media)],
        }


def _write_media(media: Media) -> "ImageBlockParam | DocumentBlockParam":
    source: Any = {"type": "base64", "media_type": media.mime_type, "data": media.data}
    return {"type": "image", "source": source} if media.is_image else {"type": "document", "source": source}


@overload
def anthropic_tools(executor: ToolExecutor, *, search: bool = False) -> "Toolbox[ToolParam, MessageParam]": ...
@overload
def anthropic_tools(
    executor: AsyncToolExecutor, *, search: bool = False
) -> "Awaitable[AsyncToolbox[ToolParam, MessageParam]]": ...
def anthropic_tools(executor: ToolExecutor | AsyncToolExecutor, *, search: bool = False) -> Any:
    """Tools for the Messages API; `run(message.content)` returns the message to append, in a list.

    Args:
        executor: For an `AsyncToolExecutor`, await this function and `run`.
        search: Give the model `search_tools` and `call_tool` instead of all tools (docs/tool-search.md).

    Raises:
        BrokerUnavailable: Redis could not be reached.
    """
    return build_toolbox(executor, _Messages(), search=search)
