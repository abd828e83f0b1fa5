"""The demo's server, pinned to a protocol era, with tools that tell what reached it.

`python either_era.py [--handshake] [--ledger FILE] [--http PORT [--json] [--stateless] [--sse]]`. The SDK serves the
era that a client opens with, and ours opens with 2026-07-28; `--handshake` plays a server from before, which does not
know that version. `--ledger` makes it a witness, as `witness_stdio` is.
"""

import argparse
import asyncio
import hashlib
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND, ErrorData, JSONRPCError, JSONRPCRequest, ToolAnnotations
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tarsy_tasks.demo.server import build_server


def add_witnesses(server: MCPServer) -> None:
    begun: set[str] = set()
    cancelled: set[str] = set()

    @server.tool()
    async def dawdle(key: str) -> None:
        """Work until it is cancelled."""
        begun.add(key)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.add(key)
            raise

    @server.tool()
    def fate(key: str) -> str:
        """What became of the `dawdle` with that key."""
        return "cancelled" if key in cancelled else "begun" if key in begun else "unknown"

    @server.tool()
    async def march(steps: int, context: Context) -> bool:
        """Report so many steps, each with a log line; whether somebody asked for that."""
        for step in range(1, steps + 1):
            await context.report_progress(step, steps, f"step {step}")
            await context.info(f"line {step}", logger_name="march")  # pyright: ignore[reportDeprecated]
        meta = context.request_context.meta or {}
        return "progressToken" in meta or "progress_token" in meta

    @server.tool()
    def has_header(name: str, value_sha256: str, context: Context) -> bool:
        """Whether a header of this call has that value; its digest, because the value itself would be masked."""
        value = (context.headers or {}).get(name, "")
        return hashlib.sha256(value.encode()).hexdigest() == value_sha256


def add_ledger(server: MCPServer, ledger: Path) -> None:
    """Tools that write down that they run; in the first process of a ledger, a key that begins with `held` keeps them
    running.
    """
    is_first = not ledger.exists()

    def record(line: str) -> None:
        with ledger.open("a") as file:
            file.write(f"{line}\n")

    async def run(tool: str, key: str) -> str:
        record(f"run {tool} {key}")
        if is_first and key.startswith("held"):
            await asyncio.Event().wait()
        return key

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def look(key: str) -> str:
        return await run("look", key)

    @server.tool()
    async def add(key: str) -> str:
        return await run("add", key)

    @server.tool()
    async def grow(context: Context) -> str:
        """Add the tool `grown`, and tell all who want to know."""
        server.add_tool(lambda: "here", name="grown")
        if context.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await context.notify_tools_changed()
        else:
            await context.session.send_tool_list_changed()
        return "grown"

    record("start")


async def serve_handshake(server: MCPServer, streams: AbstractAsyncContextManager[tuple[Any, Any]]) -> None:
    """Answers `server/discover` like a server that never heard of it; the SDK's own sees only what comes after."""
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()

    async def pass_on(read: Any, write: Any) -> None:
        async with to_server:
            async for item in read:
                message = item.message if isinstance(item, SessionMessage) else None
                if isinstance(message, JSONRPCRequest) and message.method == "server/discover":
                    error = ErrorData(code=METHOD_NOT_FOUND, message="Method not found")
                    await write.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.id, error=error)))
                else:
                    await to_server.send(item)

    core = server._lowlevel_server
    async with streams as (read, write), anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on, read, write)
        await core.run(from_client, write, core.create_initialization_options())
        tasks.cancel_scope.cancel()


def handshake_sse_app(server: MCPServer) -> ASGIApp:
    transport = SseServerTransport("/messages/")

    class Stream:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await serve_handshake(server, transport.connect_sse(scope, receive, send))

    return Starlette(routes=[Route("/sse", Stream()), Mount("/messages/", transport.handle_post_message)])


def refuse_new_era(app: ASGIApp) -> ASGIApp:
    """What a server of the handshake era says to a protocol version that it does not know."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        version = dict(scope.get("headers", ())).get(b"mcp-protocol-version", b"").decode()
        if version in MODERN_PROTOCOL_VERSIONS:
            error = {"code": -32600, "message": f"Bad Request: Unsupported protocol version: {version}"}
            await JSONResponse({"jsonrpc": "2.0", "id": "server-error", "error": error}, 400)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return wrapped


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of a server with a ledger, in either era."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--handshake", action="store_true")
    parser.add_argument("--http", type=int)
    return parser


def serve(server: MCPServer, options: argparse.Namespace) -> None:
    """Over Streamable HTTP, or without a port over stdio."""
    if options.http is not None:
        app = server.streamable_http_app()
        served = refuse_new_era(app) if options.handshake else app
        uvicorn.run(served, host="127.0.0.1", port=options.http, log_level="warning", timeout_graceful_shutdown=1)
    elif options.handshake:
        anyio.run(serve_handshake, server, stdio_server())
    else:
        server.run("stdio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--handshake", action="store_true")
    parser.add_argument("--http", type=int)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--sse", action="store_true")
    options = parser.parse_args()
    server = build_server()
    add_witnesses(server)
    if options.ledger is not None:
        add_ledger(server, options.ledger)
    if options.http is not None:
        app: ASGIApp
        if options.sse:
            app = handshake_sse_app(server) if options.handshake else server.sse_app()
        else:
            app = server.streamable_http_app(json_response=options.json, stateless_http=options.stateless)
        uvicorn.run(
            refuse_new_era(app) if options.handshake else app,
            host="127.0.0.1",
            port=options.http,
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
    elif options.handshake:
        anyio.run(serve_handshake, server, stdio_server())
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
