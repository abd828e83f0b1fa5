"""An MCP server whose resources change: `python noticeboard.py LEDGER [--handshake] [--http PORT] [--ttl-ms NUMBER]`.

The SDK's server in either era, as `either_era`. It writes down in the ledger what is read, listed and subscribed to.
The tool `pin` changes the text of a notice and notifies its subscribers; `pin_parts` says that many parts of one have
changed; `add` adds one, which changes the list. `ask_back` asks the client for a sampling and for its roots.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    INVALID_PARAMS,
    EmptyResult,
    SamplingMessage,
    SubscribeRequestParams,
    TextContent,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.servers.either_era import build_parser, serve

NOTICE = "notice://board/today"
SECRET = "password: hunter2hunter2"
LARGE = "notice://board/large"
MISSING = "notice://board/missing"
HELD = "notice://board/held"
"""Is read and subscribed to only when the gate beside the ledger (`tests.gates`) is open, `<ledger>.gate`."""


class Board:
    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.texts = {NOTICE: "closed", LARGE: "a line of text\n" * 69_000, "notice://board/secret": SECRET}
        self.subscribers: dict[str, list[Any]] = {}
        self._gate = ledger.with_name(f"{ledger.name}.gate")

    def note(self, line: str) -> None:
        with self.ledger.open("a") as file:
            file.write(f"{line}\n")

    async def wait(self, uri: str) -> None:
        if uri == HELD:
            with suppress(FileNotFoundError):
                await anyio.to_thread.run_sync(self._gate.read_bytes, abandon_on_cancel=True)


def build_server(board: Board, ttl_ms: int | None) -> MCPServer:
    hint = None if ttl_ms is None else CacheHint(ttl_ms)
    hints: Any = {} if hint is None else dict.fromkeys(("resources/list", "resources/read"), hint)
    server = MCPServer("noticeboard", cache_hints=hints)

    @server.resource("notice://board/{name}")
    async def read(name: str) -> str:
        uri = f"notice://board/{name}"
        if uri == MISSING:
            raise ValueError("no such notice")
        board.note(f"read {uri}")
        await board.wait(uri)
        return board.texts.get(uri, uri)

    @server.resource("notice://rules")
    def rules() -> str:
        board.note("read notice://rules")
        return "no shouting"

    @server.tool()
    async def pin(uri: str, text: str, context: Context) -> str:
        board.texts[uri] = text
        if context.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await context.notify_resource_updated(uri)
        for session in board.subscribers.get(uri, ()):
            await session.send_resource_updated(uri)
        return text

    @server.tool()
    async def pin_parts(uri: str, count: int) -> str:
        for number in range(count):
            for session in board.subscribers.get(uri, ()):
                await session.send_resource_updated(f"{uri}/{number}")
        return "pinned"

    @server.tool()
    async def add(context: Context) -> str:
        if context.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await context.notify_resources_changed()
        else:
            await context.session.send_resource_list_changed()
        return "added"

    @server.tool()
    async def ask_back(context: Context) -> list[str]:
        refused: list[str] = []
        content = TextContent(type="text", text="Write a notice.")
        asked = (
            context.session.create_message([SamplingMessage(role="user", content=content)], max_tokens=9),
            context.session.list_roots(),
        )
        for each in asked:
            try:
                await each
            except MCPError as error:
                refused.append(error.message)
        return refused

    core = server._lowlevel_server

    async def subscribe(context: Any, params: SubscribeRequestParams) -> EmptyResult:
        board.note(f"subscribe {params.uri}")
        if params.uri == MISSING:
            raise MCPError(INVALID_PARAMS, f"no such notice; {SECRET}")
        await board.wait(params.uri)
        board.subscribers.setdefault(str(params.uri), []).append(context.session)
        return EmptyResult()

    async def unsubscribe(context: Any, params: UnsubscribeRequestParams) -> EmptyResult:
        board.note(f"unsubscribe {params.uri}")
        board.subscribers.pop(str(params.uri), None)
        return EmptyResult()

    core.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    core.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
    core.notification_options = NotificationOptions(resources_changed=True)
    return server


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--ttl-ms", type=int)
    options = parser.parse_args()
    serve(build_server(Board(options.ledger), options.ttl_ms), options)


if __name__ == "__main__":
    main()
