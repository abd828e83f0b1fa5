"""An MCP server in the process of a test, over Streamable HTTP, whose answers the test scripts.

Owns its thread and its port. Workers reach it as any other server, so sessions, arguments, masking and errors are real.
"""

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, cast

import uvicorn
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from tarsy_tasks.testing.canned import UNANSWERED, InTurn, as_text, is_function

__all__ = ["ScriptedServer", "ServedCall"]

_START_S = 20.0
_SLICE_S = 0.01


class ServedCall(NamedTuple):
    """A call that the server got."""

    tool: str
    arguments: dict[str, Any]


class _Scripted(NamedTuple):
    definition: Tool
    answer: Any


class ScriptedServer:
    """An MCP server whose tools answer what the test says. As a context manager it runs within its block.

    Attributes:
        calls: The calls that it got, in order, of all its starts.
        url: Its address; the same after `stop` and `start`.

    Example:
        >>> with ScriptedServer() as server:
        ...     server.answer("forecast", "sunny")
        ...     config = {"mcpServers": {"weather": {"url": server.url}}}
    """

    def __init__(self, name: str = "scripted", *, instructions: str | None = None) -> None:
        self.calls: list[ServedCall] = []
        self._tools: dict[str, _Scripted] = {}
        self._name, self._instructions = name, instructions
        self._running: tuple[uvicorn.Server, threading.Thread] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/mcp"

    def answer(
        self,
        tool: str,
        answer: Any,
        *,
        description: str = "",
        input_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
    ) -> None:
        """Add a tool, or replace it. Workers see a new tool when they list the server's tools again.

        Args:
            tool: Its name.
            answer: A text; any other JSON value, as structured content; a `CallToolResult`; an exception, as an error
                of the tool; `UNANSWERED`; a function, also a coroutine function, of the arguments that returns one of
                these; several of them `InTurn`.
            description: For models.
            input_schema: JSON Schema of its arguments. None: any.
            annotations: Its hints, such as `read_only_hint`.
        """
        schema = dict(input_schema) if input_schema is not None else {"type": "object"}
        definition = Tool(name=tool, description=description, input_schema=schema, annotations=annotations)
        self._tools[tool] = _Scripted(definition, answer)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, also again.

        Raises:
            RuntimeError: It does not start.
        """
        server: Server[Any] = Server(
            self._name, instructions=self._instructions, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        config = uvicorn.Config(
            server.streamable_http_app(),
            host="127.0.0.1",
            port=self._port,
            log_level="error",
            timeout_graceful_shutdown=1,
        )
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, name=f"scripted-{self._name}", daemon=True)
        thread.start()
        self._running = running, thread
        waited = threading.Event()
        for _ in range(int(_START_S / _SLICE_S)):
            if running.started:
                return
            if not thread.is_alive():
                break
            waited.wait(_SLICE_S)
        raise RuntimeError(f"the scripted server did not start on port {self._port}")

    def stop(self) -> None:
        """Stop it: its sessions are lost, as when a server dies."""
        if self._running is not None:
            (server, thread), self._running = self._running, None
            server.should_exit = True
            thread.join(_START_S)

    async def _list_tools(self, _: Any, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[each.definition for each in self._tools.values()])

    async def _call_tool(self, _: Any, params: CallToolRequestParams) -> CallToolResult:
        arguments = dict(params.arguments or {})
        self.calls.append(ServedCall(params.name, arguments))
        scripted = self._tools.get(params.name)
        if scripted is None:
            return _error(f"unknown tool {params.name}")
        answer = scripted.answer
        try:
            while isinstance(answer, InTurn) or is_function(answer):
                answer = answer.next() if isinstance(answer, InTurn) else await _call(answer, arguments)
        except Exception as error:
            answer = error
        if answer is UNANSWERED:
            await asyncio.Event().wait()
        if isinstance(answer, CallToolResult):
            return answer
        if isinstance(answer, Exception):
            return _error(str(answer))
        structured = cast("dict[str, Any] | None", answer if isinstance(answer, dict) else None)
        return CallToolResult(content=[TextContent(text=as_text(answer))], structured_content=structured)


async def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    found = function(arguments)
    return await found if inspect.isawaitable(found) else found


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)
