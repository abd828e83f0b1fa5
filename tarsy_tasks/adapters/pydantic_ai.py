"""A toolset for Pydantic AI."""

import json
from copy import copy
from typing import Any, Literal, Self, cast

from tarsy_tasks import AsyncToolExecutor, ErrorCode, ToolResult
from tarsy_tasks.adapters.framework import missing_framework
from tarsy_tasks.adapters.offer import AS_WRITTEN, Offer, OfferedTool, build_offer
from tarsy_tasks.adapters.parts import split_result
from tarsy_tasks.adapters.providers import ANY

try:
    from pydantic_ai import BinaryContent, ModelRetry, RunContext, ToolReturn
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
except ImportError as error:
    raise missing_framework(error, "pydantic-ai", "pydantic-ai-slim") from None

__all__ = ["ExecutorToolset"]

_CORRECTABLE = frozenset(
    {
        ErrorCode.INVALID_NAME,
        ErrorCode.UNKNOWN_SERVER,
        ErrorCode.UNKNOWN_TOOL,
        ErrorCode.TOOL_NOT_SELECTED,
        ErrorCode.INVALID_ARGUMENTS,
        ErrorCode.ARGUMENTS_NOT_PERMITTED,
        ErrorCode.REFUSED,
        ErrorCode.RESULT_NOT_FOUND,
    }
)
"""Why calls are rejected that a model can correct. What a person has denied, or a limit, it cannot."""


class ExecutorToolset(AbstractToolset[Any]):
    """The tools of an executor.

    A call that was `rejected` becomes a `ModelRetry`: the model reads what to correct. Any other outcome that is not
    `ok`, and what no correction helps against, such as a denied approval or a limit, becomes a `ToolFailed`. The
    metadata of a return is the `ToolResult`. A summarizer of the executor gets the `RunContext` as its context.

    Args:
        executor: Tools are listed once for each run.
        id: For durable execution, which needs one.
        max_retries: How often a model may correct a call; None: as often as the agent allows.
        search: Give the model `search_tools` and `call_tool` instead of all tools (docs/tool-search.md).
        include_instructions: Whether the agent's instructions get those of the servers, and which servers failed.

    Example:
        >>> agent = Agent("openai:gpt-5", toolsets=[ExecutorToolset(AsyncToolExecutor(["k8s"]))])
    """

    def __init__(
        self,
        executor: AsyncToolExecutor,
        *,
        id: str | None = None,  # noqa: A002 - as in the framework
        max_retries: int | None = None,
        search: bool = False,
        include_instructions: bool = True,
    ) -> None:
        self._executor = executor
        self._id = id
        self._max_retries = max_retries
        self._searches = search
        self._includes_instructions = include_instructions
        self._offer: Offer | None = None

    @property
    def id(self) -> str | None:
        """As it was given."""
        return self._id

    async def for_run(self, ctx: RunContext[Any]) -> Self:
        """One that lists the tools again."""
        fresh = copy(self)
        fresh._offer = None
        return fresh

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools, by the name that the model calls."""
        retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return {
            name: ToolsetTool(
                toolset=self, tool_def=_define(tool), max_retries=retries, args_validator=_PassingValidator()
            )
            for name, tool in (await self._list()).tools.items()
        }

    async def get_instructions(self, ctx: RunContext[Any]) -> str | None:
        """What the servers say of how to use their tools, and which servers failed."""
        if not self._includes_instructions:
            return None
        return (await self._list()).prompt_section() or None

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> ToolReturn[Any]:
        """Run a call. Raises `ModelRetry` or `ToolFailed` if its outcome is not `ok`."""
        offer = await self._list()
        result = await self._executor.execute(offer.build_call(name, tool_args, ctx.tool_call_id), context=ctx)
        if result.large is not None:
            offer.add_later(self._executor.own_tools())  # from the next step on the model can read on
        return _write(result)

    async def _list(self) -> Offer:
        if self._offer is None:
            listed = await self._executor.list_tools()
            self._offer = build_offer(listed.behind_search() if self._searches else listed, ANY)
        return self._offer


class _PassingValidator:
    """Lets all arguments pass: workers repair them, and check them against the schema of the MCP server."""

    def validate_json(
        self,
        input: str | bytes | bytearray,  # noqa: A002 - as in the framework
        *,
        allow_partial: bool | Literal["off", "on", "trailing-strings"] = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        text = input if isinstance(input, str) else input.decode("utf-8", "replace")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {AS_WRITTEN: text}

    def validate_python(
        self,
        input: Any,  # noqa: A002 - as in the framework
        *,
        allow_partial: bool | Literal["off", "on", "trailing-strings"] = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        return cast("dict[str, Any]", input) if isinstance(input, dict) else {AS_WRITTEN: json.dumps(input)}


def _define(tool: OfferedTool) -> ToolDefinition:
    of = tool.definition
    return ToolDefinition(
        name=tool.name,
        description=tool.description or None,
        parameters_json_schema=tool.schema,
        metadata={"annotations": of.annotations, "server": of.server, "tool": of.tool},
    )


def _write(result: ToolResult) -> ToolReturn[Any]:
    parts = split_result(result, ANY.media)
    if result.error_code in _CORRECTABLE:
        raise ModelRetry(parts.text)
    if result.is_error:
        raise ToolFailed(parts.text)
    media = [BinaryContent(each.content, media_type=each.mime_type) for each in parts.media]
    return ToolReturn([parts.text, *media] if media else parts.text, metadata=result)
