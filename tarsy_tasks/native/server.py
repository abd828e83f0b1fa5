"""Tools that are functions, as an MCP server over stdio.

Owns how they run: functions in threads, coroutine functions on the loop. What a worker does with every server it does
with this one, so nothing is masked, limited or recorded here.
"""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable
from functools import partial
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from tarsy_tasks.native.threads import BoundedThreads, ThreadsHang
from tarsy_tasks.native.tool import NativeTool, NotJson, write_json

__all__ = ["NativeServer", "serve"]


class NativeServer:
    """Answers requests about tools."""

    def __init__(self, tools: dict[str, NativeTool]) -> None:
        self._tools = tools
        self._threads = BoundedThreads()

    async def list_tools(self, _: Any, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_describe(tool) for tool in self._tools.values()])

    async def call_tool(self, _: Any, params: CallToolRequestParams) -> CallToolResult:
        if (tool := self._tools.get(params.name)) is None:
            return _error(f"There is no tool `{params.name}`; the module of this server has changed.")
        try:
            values = tool.read_arguments(params.arguments or {})
        except ValueError as error:
            return _error(str(error))
        try:
            value = await self._call(tool, values)
        except ThreadsHang:
            return _error(
                f"`{tool.definition.name}` was not called: all threads of its server run functions that did not return "
                "in time. An operator has to reconnect the server."
            )
        except Exception as error:
            traceback.print_exception(error)
            return _error(tool.describe_error(error))
        try:
            return _build_result(value)
        except NotJson:
            return _error(tool.describe_not_json(value))

    async def _call(self, tool: NativeTool, values: dict[str, Any]) -> Any:
        """Raises what the function raises, as an `Exception` in any case."""
        function = partial(tool.function, **values)
        value: Any = function() if inspect.iscoroutinefunction(tool.function) else await self._threads.run(function)
        return await _await(value) if inspect.isawaitable(value) else value


async def _await(value: Awaitable[Any]) -> Any:
    """In a task of its own: a function that raises `CancelledError` has not cancelled the request."""
    task = asyncio.ensure_future(_guard(value))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():
        raise RuntimeError("it raised CancelledError")
    return task.result()


async def _guard(value: Awaitable[Any]) -> Any:
    try:
        return await value
    except (SystemExit, KeyboardInterrupt) as error:  # it would end this process
        raise RuntimeError(f"it raised {type(error).__name__}") from error


def _describe(tool: NativeTool) -> Tool:
    found = tool.definition
    hints = ToolAnnotations.model_validate(found.annotations) if found.annotations else None
    return Tool(name=found.tool, description=found.description, input_schema=found.input_schema, annotations=hints)


def _build_result(value: Any) -> CallToolResult:
    if value is None:
        return CallToolResult(content=[])
    if isinstance(value, str):
        return CallToolResult(content=[TextContent(type="text", text=value)])
    text, structured = write_json(value)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


async def serve(server_id: str, tools: dict[str, NativeTool]) -> None:
    """Serve tools until stdin is closed."""
    native = NativeServer(tools)
    server: Server[Any] = Server(server_id, on_list_tools=native.list_tools, on_call_tool=native.call_tool)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
