"""Text about tools for a model's system prompt.

Owns its form and its limits. MCP servers wrote most of what is in it: nothing of that may look like another part of the
text, hide words, or fill the prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["write_prompt"]

_NAME_CHARS = 200
_PARAMETERS = 100
_DESCRIPTION_CHARS = 4_000
_INSTRUCTIONS_CHARS = 8_000
_REASON_CHARS = 1_000
_TOOLS_CHARS = 200_000


def write_prompt(
    by_server: Mapping[str, Sequence[ToolDefinition]],
    instructions: Mapping[str, str],
    failed_servers: Mapping[str, str],
    name_of: Callable[[ToolDefinition], str],
    *,
    describes: bool,
) -> str:
    """As `ToolList.prompt_section`; `describes` is its `tools`."""
    lines = ["# Tools"]
    if describes:
        lines += ["", "Call a tool by its full name, exactly as written here, with a JSON object of arguments."]
    left = _TOOLS_CHARS
    for server, tools in by_server.items():
        quoted = _quote(instructions.get(server, ""))
        if not (describes or quoted):
            continue
        written: list[str] = []
        for tool in tools:
            name = _name(name_of(tool))
            written.append(_describe(tool, name) if describes else f"`{name}`")
            left -= len(written[-1])
            if left < 0:
                written[-1] = f"and {len(tools) - len(written) + 1} more, which do not fit here"
                break
        if describes:
            heading = [f"## {server}", *quoted, *([""] if quoted else [])] if server else []
            lines += ["", *heading, *(f"- {each}" for each in written)]
        else:
            lines += ["", f"## {server}", f"Instructions for {', '.join(written)}:", "", *quoted]
    if failed_servers:
        failed = [f"- {server}: {_one_line(why, _REASON_CHARS)}" for server, why in failed_servers.items()]
        lines += ["", "## Currently unavailable", *failed]
    return "\n".join(lines) if describes or len(lines) > 1 else ""


def _quote(text: str) -> list[str]:
    lines = _shorten(text, _INSTRUCTIONS_CHARS).splitlines()
    return [f"> {make_visible(line, keep=chr(9))}".rstrip() for line in lines]


def _describe(tool: ToolDefinition, name: str) -> str:
    description = _one_line(tool.description, _DESCRIPTION_CHARS)
    return f"`{name}({_parameters(tool.input_schema)})`" + (f": {description}" if description else "")


def _parameters(schema: dict[str, Any]) -> str:
    """The names of the parameters; `?` marks those that may be left out."""
    properties: Any = schema.get("properties")
    required: Any = schema.get("required")
    if not isinstance(properties, dict):
        return ""
    needed = set(map(str, cast("list[Any]", required))) if isinstance(required, list) else set[str]()
    names = [str(name) for name in cast("dict[str, Any]", properties)]
    shown = [_name(name) if name in needed else f"{_name(name)}?" for name in names[:_PARAMETERS]]
    return ", ".join(shown) + (", …" if len(names) > _PARAMETERS else "")


def _name(text: str) -> str:
    """A name between backticks."""
    return _one_line(text, _NAME_CHARS).replace("`", "'")


def _one_line(text: str, limit: int) -> str:
    return make_visible(_shorten(" ".join(text[: 2 * limit].split()), limit))


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
