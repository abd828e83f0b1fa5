"""The functions of one module as an MCP server over stdio: `python -m tarsy_tasks.native.server SERVER MODULE`.

A worker starts it for a server with the key `native`, as any other program; so its policies, limits, masking, recovery
and sandbox hold, and a function can harm only this process. Functions run in threads, coroutine functions on the loop.
"""

import asyncio
import inspect
import sys
import traceback
from collections.abc import Awaitable
from functools import partial
from importlib import import_module
from typing import Any

import anyio
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

from tarsy_tasks.native.mark import find_mark
from tarsy_tasks.native.threads import BoundedThreads, ThreadsHang
from tarsy_tasks.native.tool import NativeTool, NotJson, build_native_tool, write_json

__all__ = ["NativeServer", "load_tools", "main"]


def load_tools(server: str, module: str) -> dict[str, NativeTool]:
    """The marked functions of a module, by the names of the tools.

    Args:
        server: Id of the server.
        module: Its import path. A marked function that it has imported counts, too.

    Raises:
        ValueError: The module cannot be imported, has no such function, or one that cannot be a tool.
    """
    try:
        found = import_module(module)
    except BaseException as error:  # whatever it does
        raise ValueError(f"`{module}` cannot be imported: {type(error).__name__}: {error}") from error
    functions = {id(each): each for each in vars(found).values() if callable(each) and find_mark(each)}
    if not functions:
        raise ValueError(f"`{module}` has no tools: mark its functions with `@tarsy_tasks.native_tool`")
    tools: dict[str, NativeTool] = {}
    for function in functions.values():
        tool = build_native_tool(function, server)
        if tools.setdefault(tool.definition.tool, tool) is not tool:
            raise ValueError(f"`{module}` has two tools with the name `{tool.definition.tool}`")
    return tools


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


async def _serve(server_id: str, tools: dict[str, NativeTool]) -> None:
    native = NativeServer(tools)
    server: Server[Any] = Server(server_id, on_list_tools=native.list_tools, on_call_tool=native.call_tool)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


def main() -> None:
    """Serve until stdin is closed. Exits with 1 if the module cannot be served."""
    server_id, module = sys.argv[1:]
    try:
        tools = load_tools(server_id, module)
    except ValueError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        sys.exit(f"native: {error}")
    anyio.run(_serve, server_id, tools)


if __name__ == "__main__":
    main()
