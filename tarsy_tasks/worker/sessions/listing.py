"""tools/list: all pages of it, masked.

A server whose pages repeat or never end is an error, not a loop. Everything in a definition is masked, names included,
so agents, operators and approvals all see the same definition. Only arguments are validated against the unmasked
schema: a masked value may be the only valid one.
"""

from collections.abc import AsyncIterator, Container, Mapping
from typing import Any

from mcp import Client
from mcp_types import PaginatedRequestParams, Tool

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.worker.maskers import Masker

__all__ = ["ListingError", "build_definition", "build_listing", "choose_name", "list_all_tools"]

_MAX_PAGES = 200
_MAX_TOOLS = 10_000
_INSTRUCTIONS_CHARS = 8_000


class ListingError(Exception):
    """The server has no usable tools/list; the text continues a sentence that begins with "it"."""


async def list_all_tools(
    client: Client, server: str, masker: Masker
) -> tuple[dict[str, ToolDefinition], dict[str, Tool]]:
    """A server's tools by name, past every cache.

    Returns:
        All tools, masked; and unmasked those whose names or schemas contain secrets.

    Raises:
        ListingError: The list does not end.
        MCPError: The request failed.
    """
    tools: dict[str, ToolDefinition] = {}
    unmasked: dict[str, Tool] = {}
    if client.server_capabilities.tools is None:
        return tools, unmasked
    async for tool in _all_tools(client):
        name = choose_name(tool, masker, tools)
        definition = tools[name] = build_definition(server, name, tool, masker)
        if name != tool.name or definition.input_schema != tool.input_schema:
            unmasked[name] = tool
    return tools, unmasked


def choose_name(tool: Tool, masker: Masker, taken: Container[str]) -> str:
    """The name that agents use for the tool: its own, unless that contains a secret."""
    masked = name = masker.mask(tool.name)
    number = 1
    while masked != tool.name and name in taken:
        number += 1
        name = f"{masked}-{number}"
    return name


def build_definition(server: str, name: str, tool: Tool, masker: Masker) -> ToolDefinition:
    """The definition that agents, operators and Redis see."""
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return ToolDefinition(
        name=f"{server}.{name}",
        server=server,
        tool=name,
        description=masker.mask(tool.description or tool.title or ""),
        input_schema=_mask_object(tool.input_schema, masker),
        annotations=_mask_object(annotations, masker),
    )


def _mask_object(value: dict[str, Any], masker: Masker) -> dict[str, Any]:
    masked = masker.mask_json(value)
    return masked if isinstance(masked, dict) else {}  # too deep to be searched


async def _all_tools(client: Client) -> AsyncIterator[Tool]:
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
    raise ListingError(f"has an endless tools/list (stopped after {len(seen)} pages and {count} tools)")


def build_listing(
    server: ServerConfig, tools: Mapping[str, ToolDefinition], instructions: str, masker: Masker
) -> ToolListing:
    """What agents and the catalogue get from a server: its tools, and the configured instructions or else its own."""
    instructions = server.instructions or masker.mask(instructions)
    if len(instructions) > _INSTRUCTIONS_CHARS:
        instructions = f"{instructions[: _INSTRUCTIONS_CHARS - 1]}…"
    return ToolListing(server=server.name, tools=tuple(tools.values()), instructions=instructions)
