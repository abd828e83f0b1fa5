"""One tool in a few lines, for a model that has searched for it: how it is called, and what it does.

Owns the short form of a schema. It may say less than the schema: a worker checks the arguments, and a rejection names
what was expected. MCP servers wrote the texts: each is one line of visible characters, and has a limit.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["write_line", "write_parameters", "write_summary"]

_NAME_CHARS = 200
_DESCRIPTION_CHARS = 600
_PARAMETER_CHARS = 160
_TYPE_CHARS = 120
_PARAMETERS = 30
_DEPTH = 3
_SHORT = {"integer": "int", "boolean": "bool", "string": "str", "number": "number"}


def write_summary(tool: ToolDefinition) -> str:
    """`server.tool(a: str, b?: int)`, the description, and below it the parameters that have one."""
    schema = tool.input_schema
    lines = [f"{write_line(tool.name, _NAME_CHARS)}({', '.join(_signature(schema, schema))})"]
    if description := write_line(tool.description or tool.title, _DESCRIPTION_CHARS):
        lines[0] += f": {description}"
    for name, each in _properties(schema).items():
        if described := write_line(str(each.get("description") or ""), _PARAMETER_CHARS):
            lines.append(f"  {write_line(name, _NAME_CHARS)}: {described}")
    return "\n".join(lines)


def write_parameters(tool: ToolDefinition) -> dict[str, str]:
    """By parameter, its type in short, and what is said of it; `?` follows the names of those that may be left out."""
    schema, written = tool.input_schema, dict[str, str]()
    for part, each in zip(_signature(schema, schema), _properties(schema).values(), strict=False):
        name, _, kind = part.partition(": ")
        described = write_line(str(each.get("description") or ""), _PARAMETER_CHARS)
        written[name] = f"{kind}; {described}" if described else kind
    return written


def write_line(text: str, limit: int) -> str:
    """A text of a server as one line, of at most `limit` characters."""
    line = " ".join(text[: 2 * limit].split())
    return make_visible(line if len(line) <= limit else f"{line[: limit - 1]}…")


def _signature(node: Mapping[str, Any], root: Mapping[str, Any], depth: int = _DEPTH) -> list[str]:
    """The parameters of an object with their types; `root` is the schema that references are about."""
    required = node.get("required")
    needed: list[Any] = cast("list[Any]", required) if isinstance(required, list) else []
    written = [
        f"{write_line(name, _NAME_CHARS)}{'' if name in needed else '?'}: "
        f"{write_line(_kind(each, root, depth), _TYPE_CHARS)}"
        for name, each in _properties(node).items()
    ]
    return [*written, "…"] if len(_map(node.get("properties"))) > _PARAMETERS else written


def _properties(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = list(_map(schema.get("properties")).items())[:_PARAMETERS]
    return {name: _map(each) for name, each in found}


def _kind(node: dict[str, Any], root: Mapping[str, Any], depth: int) -> str:
    """The type of a value, as in signatures of Python."""
    if isinstance(reference := node.get("$ref"), str) and reference.startswith("#/") and depth:
        found: Any = root
        for part in reference[2:].split("/"):
            found = _map(found).get(part)
        return _kind(_map(found), root, depth - 1)
    if isinstance(values := node.get("enum"), list) and values:
        return "|".join(json.dumps(value) for value in cast("list[Any]", values)[:_PARAMETERS])
    if "const" in node:
        return json.dumps(node["const"])
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := node.get(key), list) and depth:
            kinds = [_kind(_map(branch), root, depth - 1) for branch in cast("list[Any]", branches)[:_PARAMETERS]]
            return "|".join(dict.fromkeys(kinds))
    kind = node.get("type")
    if isinstance(kind, list):
        return "|".join(_kind({**node, "type": each}, root, depth) for each in cast("list[Any]", kind)[:_PARAMETERS])
    if kind == "array":
        return f"{_kind(_map(node.get('items')), root, depth - 1)}[]" if depth else "array"
    if kind == "object" and depth and _properties(node):
        return "{" + ", ".join(_signature(node, root, depth - 1)) + "}"
    return _SHORT.get(kind, kind) if isinstance(kind, str) else "any"


def _map(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
