"""tools/list: all pages of it, masked.

Tools that are not valid are left out, and named. A server whose pages repeat or never end, or that lists too much, is
an error, not a loop. Definitions are masked in slices, away from the event loop. Everything in a definition is masked,
names included, so agents, operators and approvals all see the same definition. Only arguments are validated against the
unmasked schema: a masked value may be the only valid one.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp import Client
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.telemetry.printable import make_visible
from tarsy_tasks.tool_names import listed_name
from tarsy_tasks.worker.long_work import ASKED_S, LongWork
from tarsy_tasks.worker.maskers import Masker, known_secrets
from tarsy_tasks.worker.sessions.definition_fields import (
    DESCRIPTION_CHARS,
    SHOWN_CHARS,
    count_chars,
    cut_text,
    dump_part,
    is_short,
    mask_object,
)
from tarsy_tasks.worker.sessions.paging import ListingError, read_pages
from tarsy_tasks.worker.transport.tool_check import digest_of, find_left_out

__all__ = [
    "Listed",
    "ListedTools",
    "ListingError",
    "UnmaskedTool",
    "build_definition",
    "choose_name",
    "keep_visibility",
    "list_all_tools",
]

_MAX_CHARS = 4 * 1024 * 1024
"""Of all definitions together, with all that is kept of them."""
_DECORATIONS_CHARS = 1024 * 1024
"""Of the icons and the `_meta` of all tools together; further ones are left out, the tools are not."""
_INSTRUCTIONS_CHARS = 8_000
_SLICE_TOOLS = 25
_MAX_LEFT_OUT = 50


async def list_all_tools(
    client: Client, server: str, masker: Masker, long_work: LongWork, before: "ListedTools | None" = None
) -> "ListedTools":
    """A server's tools, past every cache. If the server says the same as `before`, that is returned: a check lists them
    every few seconds.

    Raises:
        ListingError: The list does not end, or is too long.
        MCPError: The request failed.
    """
    listed = ListedTools(server, masker)
    if client.server_capabilities.tools is not None:

        async def fetch(cursor: str | None) -> ListToolsResult:
            return await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)

        async for page in read_pages("tools/list", fetch, _count_tools):
            listed.said.append(digest_of(page) or object())
            if before is not None and page.next_cursor is None and listed.said == before.said:
                return before
            await long_work.run(listed.note_left_out, find_left_out(page), allowed_s=ASKED_S)
            for start in range(0, len(page.tools), _SLICE_TOOLS):
                await long_work.run(listed.add, page.tools[start : start + _SLICE_TOOLS], allowed_s=ASKED_S)
    return listed


def _count_tools(page: ListToolsResult) -> int:
    return len(page.tools)


@dataclass(frozen=True)
class UnmaskedTool:
    """What a call needs of a tool whose definition contains secrets; `name` is what the server calls it."""

    name: str
    input_schema: Mapping[str, Any]


class ListedTools:
    """The tools that a server has listed so far.

    Attributes:
        tools: All of them by name, masked.
        unmasked: Those whose names or schemas contain secrets, by name.
        output_schemas: By the name that the server uses.
        left_out: Those that are not valid in MCP, and why; masked.
        said: From what all of this was made, to compare: the state of the known secrets, and a digest of each page.
    """

    def __init__(self, server: str, masker: Masker) -> None:
        self.said: list[object] = [known_secrets.changes]
        self.tools: dict[str, ToolDefinition] = {}
        self.unmasked: dict[str, UnmaskedTool] = {}
        self.output_schemas: dict[str, dict[str, Any]] = {}
        self.left_out: dict[str, str] = {}
        self._server = server
        self._masker = masker
        self._chars = self._decorations = 0

    def add(self, tools: Sequence[Tool]) -> None:
        for tool in tools:
            name = choose_name(tool, self._masker, self.tools)
            definition = build_definition(self._server, name, tool, self._masker)
            self._decorations += count_chars((definition.icons, definition.meta))
            if self._decorations > _DECORATIONS_CHARS:
                definition = definition.model_copy(update={"icons": (), "meta": keep_visibility(definition.meta)})
            self.tools[name] = definition
            if name != tool.name or definition.input_schema != tool.input_schema:
                self.unmasked[name] = UnmaskedTool(tool.name, tool.input_schema)
                self._chars += count_chars((tool.name, tool.input_schema))
            if tool.output_schema is not None:
                is_same = definition.output_schema == tool.output_schema
                self.output_schemas[tool.name] = definition.output_schema if is_same else tool.output_schema
                self._chars += 0 if is_same else count_chars(tool.output_schema)
            shown = (name, definition.title, definition.description, definition.annotations)
            self._chars += count_chars((*shown, definition.input_schema, definition.output_schema))
            if self._chars > _MAX_CHARS:
                raise ListingError(f"lists tools with definitions of more than {_MAX_CHARS} characters")

    def note_left_out(self, tools: Mapping[str, str]) -> None:
        for name, why in tools.items():
            if len(self.left_out) < _MAX_LEFT_OUT:
                self.left_out[self._show(name)] = self._show(why)

    def _show(self, text: str) -> str:
        return make_visible(self._masker.mask_start(text, SHOWN_CHARS))


def keep_visibility(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be kept of a `_meta` that is left out: who may see the tool (MCP Apps)."""
    ui: Any = meta.get("ui")
    visibility: Any = cast("dict[str, Any]", ui).get("visibility") if isinstance(ui, dict) else None
    if not isinstance(visibility, list):
        return {}
    return {"ui": {"visibility": [name for name in ("model", "app") if name in visibility]}}


def choose_name(tool: Tool, masker: Masker, taken: Container[str]) -> str:
    """The name that agents use for the tool: its own, unless that contains a secret, or what is not part of a name."""
    alias = name = listed_name(masker.mask(tool.name))
    number = 1
    while alias != tool.name and name in taken:
        number += 1
        name = f"{alias}-{number}"
    return name


def build_definition(server: str, name: str, tool: Tool, masker: Masker) -> ToolDefinition:
    """The definition that agents, operators and Redis see."""
    description = tool.description or tool.title or ""
    icons, meta = [*map(dump_part, tool.icons or ())], dict(tool.meta or {})
    return ToolDefinition(
        name=f"{server}.{name}",
        server=server,
        tool=name,
        description=cut_text(masker.mask_start(description, DESCRIPTION_CHARS + 1), DESCRIPTION_CHARS),
        input_schema=mask_object(tool.input_schema, masker),
        annotations=mask_object(dump_part(tool.annotations), masker),
        title=masker.mask_start(tool.title or "", SHOWN_CHARS),
        output_schema=mask_object(tool.output_schema or {}, masker),
        icons=tuple(mask_object(icon, masker) for icon in icons) if is_short(icons) else (),
        meta=mask_object(meta if is_short(meta) else keep_visibility(meta), masker),
        execution=dump_part(tool.execution),
    )


@dataclass(frozen=True)
class Listed:
    """What a server listed at one time, also when there is no session any more.

    Attributes:
        instructions: Its own, unmasked.
        capabilities: As of its session.
    """

    server: ServerConfig
    tools: Mapping[str, ToolDefinition]
    left_out: Mapping[str, str]
    instructions: str
    capabilities: tuple[str, ...]
    masker: Masker

    def build(self) -> ToolListing:
        """What agents and the catalogue get: its tools, and the configured instructions or else its own. Safe to call
        from any thread."""
        own = self.server.instructions or self.masker.mask_start(self.instructions, _INSTRUCTIONS_CHARS + 1)
        cut = cut_text(own, _INSTRUCTIONS_CHARS)
        tools, left_out = tuple(self.tools.values()), dict(self.left_out)
        return ToolListing(server=self.server.name, tools=tools, left_out=left_out, instructions=cut)
