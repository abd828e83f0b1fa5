"""The list of tools that an MCP server offers.

Owns walking the pages of tools/list, what becomes of an entry, and what of it all leaves the worker. A server that
pages in circles or for ever is an error, not a loop.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from mcp import Client
from mcp_types import PaginatedRequestParams, Tool

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.worker.masking import Masker

if TYPE_CHECKING:
    from tarsy_tasks.worker.session import Session

__all__ = ["ListingError", "build_listing", "list_all_tools"]

_MAX_PAGES = 200
_MAX_TOOLS = 10_000
_INSTRUCTIONS_CHARS = 8_000


class ListingError(Exception):
    """The server has no usable tools/list; the text completes "it …"."""


async def list_all_tools(client: Client, server: str, mask: Callable[[str], str]) -> Mapping[str, ToolDefinition]:
    """All pages of a server's tools, by the server's own tool name, their descriptions masked; past every cache.

    Raises:
        ListingError: The list has no end.
        MCPError: The server could not be asked.
    """
    if client.server_capabilities.tools is None:
        return {}
    return {tool.name: _definition(server, tool, mask) async for tool in _all_tools(client)}


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


def _definition(server: str, tool: Tool, mask: Callable[[str], str]) -> ToolDefinition:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return ToolDefinition(
        name=f"{server}.{tool.name}",
        server=server,
        tool=tool.name,
        description=mask(tool.description or tool.title or ""),
        input_schema=tool.input_schema,
        annotations=annotations,
    )


def build_listing(server: ServerConfig, session: "Session", masker: Masker) -> ToolListing:
    """What a server offers, for agents and for the catalogue: its tools, and the instructions that are configured, or
    else its own.
    """
    instructions = server.instructions or masker.mask(session.instructions)
    if len(instructions) > _INSTRUCTIONS_CHARS:
        instructions = f"{instructions[: _INSTRUCTIONS_CHARS - 1]}…"
    return ToolListing(server=server.name, tools=tuple(session.tools.values()), instructions=instructions)
