"""What a function of the agent answers, as the result of a call.

Owns its masking and its limits. It runs the function in the thread of its caller; who that is, and for how long, is in
`native_calls`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tarsy_tasks.errors import ArgumentsError, CallError
from tarsy_tasks.models import ToolResult
from tarsy_tasks.native.tool import NativeTool, NotJson, write_json
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["call_native_tool"]

_RESULT_CHARS = 1024 * 1024


def call_native_tool(
    tool: NativeTool, arguments: Mapping[str, Any], facts: Mapping[str, Any], finish: Callable[[Any], Any]
) -> ToolResult:
    """Call the function of a tool and give its result, masked.

    Args:
        arguments: As they were read by the schema.
        facts: More fields of the result.
        finish: Waits for what can be awaited.

    Raises:
        ArgumentsError: The arguments do not have the types of the function. It was not called.
        CallError: It raised, or returned something that is not JSON.
    """
    try:
        values = tool.read_arguments(arguments)
    except ValueError as error:
        raise ArgumentsError(ErrorCode.INVALID_ARGUMENTS, _mask(str(error))) from error
    try:
        value = finish(tool.function(**values))
    except Exception as error:
        raise CallError(ErrorCode.TOOL_ERROR, _mask(tool.describe_error(error))) from error
    try:
        return _build_result(value, facts)
    except NotJson as error:
        raise CallError(ErrorCode.INVALID_RESULT, tool.describe_not_json(value)) from error


def _build_result(value: Any, facts: Mapping[str, Any]) -> ToolResult:
    from tarsy_tasks.masking.masker import build_masker

    if value is None:
        return ToolResult(content="", **facts)
    if isinstance(value, str):
        return ToolResult(content=_cut(_mask(value)), content_types=("text",), **facts)
    structured = build_masker().mask_json(write_json(value)[1])
    content, _ = write_json(structured)
    return ToolResult(
        content=_cut(content),
        structured=structured if len(content) <= _RESULT_CHARS else None,
        content_types=("text",),
        **facts,
    )


def _mask(text: str) -> str:
    from tarsy_tasks.masking.masker import mask_text

    return mask_text(text)


def _cut(text: str) -> str:
    if len(text) <= _RESULT_CHARS:
        return text
    return f"{text[:_RESULT_CHARS]}\n[{len(text) - _RESULT_CHARS} characters are left out here; ask for less]"
