"""The list of tools that an MCP server offers.

Owns walking the pages of tools/list, and what of it all leaves the worker; what becomes of an entry, `definitions`
knows. A server that pages in circles or for ever is an error, not a loop.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from mcp import Client
from mcp_types import PaginatedRequestParams, Tool

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.definitions import build_definition, choose_name

if TYPE_CHECKING:
    from tarsy_tasks.worker.sessions.session import Session

__all__ = ["ListingError", "build_listing", "list_all_tools"]

_MAX_PAGES = 200
_MAX_TOOLS = 10_000
_INSTRUCTIONS_CHARS = 8_000


class ListingError(Exception):
    """The server has no usable tools/list; the text completes "it …"."""


async def list_all_tools(
    client: Client, server: str, masker: Masker
) -> tuple[dict[str, ToolDefinition], dict[str, Tool]]:
    """All pages of a server's tools, masked, by their names; past every cache.

    Returns:
        The tools, and as the server itself has them those whose names or schemas hold secrets.

    Raises:
        ListingError: The list has no end.
        MCPError: The server could not be asked.
    """
    tools: dict[str, ToolDefinition] = {}
    own: dict[str, Tool] = {}
    if client.server_capabilities.tools is None:
        return tools, own
    async for tool in _all_tools(client):
        name = choose_name(tool, masker, tools)
        definition = tools[name] = build_definition(server, name, tool, masker)
        if name != tool.name or definition.input_schema != tool.input_schema:
            own[name] = tool
    return tools, own


async def _all_tools(client: Client) -> AsyncIterator[Tool]:
    """Walk the pages of tools/list; a server that pages in circles or for ever is an error, not a loop."""
    cursor: str | None = None
    seen: set[str] = set()
    count = 0
    for _ in range(_MAX_PAGES):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        for tool in page.tools:
            yield tool
        count += len(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return
        if cursor in seen or count > _MAX_TOOLS:
            break
        seen.add(cursor)
    raise ListingError(f"has a tools/list without end (broken off after {len(seen)} pages and {count} tools)")


def build_listing(server: ServerConfig, session: "Session", masker: Masker) -> ToolListing:
    """What a server offers, for agents and for the catalogue: its tools, and the instructions that are configured, or
    else its own.
    """
    instructions = server.instructions or masker.mask(session.instructions)
    if len(instructions) > _INSTRUCTIONS_CHARS:
        instructions = f"{instructions[: _INSTRUCTIONS_CHARS - 1]}…"
    return ToolListing(server=server.name, tools=tuple(session.tools.values()), instructions=instructions)
