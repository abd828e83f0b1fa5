"""Reading calls of `search_tools` and `call_tool`.

A search is answered here, without a worker; a call of `call_tool` becomes the call that it asks for, and goes the way
of every call. It does not know how calls are sent.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tarsy_tasks.agent.advice import Adviser
from tarsy_tasks.agent.listing import ToolLister
from tarsy_tasks.agent.search_tools import CALL, CALL_SCHEMA, DEFAULT_LIMIT, SEARCH, SEARCH_SCHEMA
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.tool_summary import write_line, write_parameters, write_summary
from tarsy_tasks.models import ToolCall, ToolDefinition, ToolResult
from tarsy_tasks.tool_names import without_prefix

__all__ = ["SearchCalls"]

_LARGEST_LIMIT = 20
_REASON_CHARS = 200
_INSTRUCTIONS_CHARS = 1_000
_QUERY_CHARS_SHOWN = 80
_LONG_CHARS = 2_000
"""A longer text is read in a thread of its own."""
_CALL_PROPERTIES: dict[str, Any] = {**CALL_SCHEMA["properties"], "arguments": {"type": ["object", "string", "null"]}}
_READ_SCHEMAS = {SEARCH: SEARCH_SCHEMA, CALL: {**CALL_SCHEMA, "properties": _CALL_PROPERTIES}}
"""As calls are read: the arguments of the tool may be a text, which its worker reads by the schema of the tool."""


@dataclass(eq=False)
class SearchCalls:
    """Reads calls of the two tools of one executor. Its coroutines run on the background loop."""

    lister: ToolLister
    adviser: Adviser

    async def read(self, call: ToolCall) -> ToolCall | ToolResult:
        """The call that `call_tool` asks for, or the answer to a search.

        Raises:
            ArgumentsError: The arguments cannot be read.
            BrokerUnavailable: No tools were listed yet, and Redis could not be reached.
            ConfigError: The policy that this process finds is wrong.
        """
        began = time.monotonic()
        is_long = isinstance(call.arguments, str) and len(call.arguments) > _LONG_CHARS
        arguments = await asyncio.to_thread(_read_arguments, call) if is_long else _read_arguments(call)
        if without_prefix(call.name) == CALL:
            return _build_call(call, arguments)
        listed = self.lister.last or await self.lister.list_tools()
        text, limit = arguments["query"], min(max(arguments.get("limit", DEFAULT_LIMIT), 1), _LARGEST_LIMIT)
        found = await asyncio.to_thread(listed.search, text, limit=limit, permits=self.adviser.permits)
        return ToolResult(
            call_id=call.id,
            name=call.name,
            content=_write_found(found, text, listed),
            structured={"tools": [_describe(tool) for tool in found]},
            tool=SEARCH,
            content_types=("text",),
            duration_s=time.monotonic() - began,
            answered_at=time.time(),
        )


def _read_arguments(call: ToolCall) -> dict[str, Any]:
    from tarsy_tasks.arguments import read_arguments  # what an agent reads here, a worker reads of other calls

    return read_arguments(call.arguments, _READ_SCHEMAS[without_prefix(call.name)]).arguments


def _build_call(call: ToolCall, arguments: dict[str, Any]) -> ToolCall:
    """The call that is asked for. Some models write the tool's arguments beside its name."""
    inner = arguments.get("arguments")
    beside = {name: value for name, value in arguments.items() if name not in _CALL_PROPERTIES}
    if isinstance(inner, Mapping):
        inner = {**beside, **cast("Mapping[str, Any]", inner)}
    asked = beside if inner is None and beside else inner
    return call.model_copy(update={"name": arguments["name"], "arguments": asked})


def _describe(tool: ToolDefinition) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": write_parameters(tool)}


def _write_found(found: Sequence[ToolDefinition], text: str, listed: ToolList) -> str:
    lines = [write_summary(tool) for tool in found]
    if not found:
        lines = [f"No tool was found for {write_line(text, _QUERY_CHARS_SHOWN)!r}. Use other words, in English."]
    for server in dict.fromkeys(tool.server for tool in found):
        if instructions := write_line(listed.instructions.get(server, ""), _INSTRUCTIONS_CHARS):
            lines.append(f"How to use {server}: {instructions}")
    if failed := [f"{name} ({write_line(why, _REASON_CHARS)})" for name, why in listed.failed_servers.items()]:
        lines.append(f"Not searched, because they are unavailable: {', '.join(failed)}")
    return "\n".join(lines)
