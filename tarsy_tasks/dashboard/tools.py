"""The tools of a server, as its page shows them: what each is, what changed in it, how its calls fared.

Owns bringing the catalogue and the numbers together. Descriptions and schemas are the MCP server's own words, and may
be any JSON. Workers have masked them with what they know of the server; here they are masked again, with less, because
an approval may be older than that.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from tarsy_tasks.catalogue import ListedServer
from tarsy_tasks.masking.masker import Masker
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.telemetry.metrics import NO_TOOL, ToolMetrics

__all__ = ["Parameter", "ToolView", "build_tools"]

Change = Literal["", "added", "changed", "removed", "unlisted"]
_LONGEST = 20_000
_HINTS = {"readOnlyHint": "read-only", "idempotentHint": "idempotent", "destructiveHint": "destructive"}


@dataclass(frozen=True)
class Parameter:
    """A property of a tool's arguments."""

    name: str
    kind: str
    is_required: bool
    description: str


@dataclass(frozen=True)
class ToolView:
    """One tool.

    Attributes:
        change: How it differs from what was approved; `unlisted` when only its numbers are left.
        schema: The JSON Schema of its arguments, indented.
        hints: What the server claims of it, in words.
    """

    name: str
    change: Change
    description: str
    parameters: list[Parameter]
    schema: str
    hints: list[str]
    metrics: ToolMetrics

    @property
    def call_count(self) -> int:
        return sum(self.metrics.calls.values())


def build_tools(
    server: str, listed: ListedServer | None, metrics: Iterable[ToolMetrics], masker: Masker
) -> list[ToolView]:
    """Those that are listed or removed, and those that only have numbers, by name."""
    numbers = {each.tool: each for each in metrics if each.tool != NO_TOOL}
    definitions: dict[str, ToolDefinition] = {}
    changes: dict[str, Change] = {}
    if listed is not None:
        definitions = {**listed.diff.removed, **{tool.tool: tool for tool in listed.listing.tools}}
        changes |= dict.fromkeys(listed.diff.removed, "removed")
        changes |= dict.fromkeys(listed.diff.added, "added")
        changes |= dict.fromkeys(listed.diff.changed, "changed")
    changes |= dict.fromkeys(numbers.keys() - definitions.keys(), "unlisted")
    return [
        _build(name, definitions.get(name), changes.get(name, ""), numbers.get(name, ToolMetrics(server, name)), masker)
        for name in sorted({*definitions, *numbers})
    ]


def _build(
    name: str, definition: ToolDefinition | None, change: Change, metrics: ToolMetrics, masker: Masker
) -> ToolView:
    if definition is None:
        return ToolView(name, change, "", [], "", [], metrics)
    masked = masker.mask_json(definition.input_schema)
    schema = masked if isinstance(masked, dict) else {}
    return ToolView(
        name=name,
        change=change,
        description=_shorten(masker.mask(definition.description)),
        parameters=_parameters(schema),
        schema=_shorten(json.dumps(masked, indent=2, ensure_ascii=False)),
        hints=[word for hint, word in _HINTS.items() if definition.annotations.get(hint) is True],
        metrics=metrics,
    )


def _parameters(schema: Mapping[str, Any]) -> list[Parameter]:
    properties: Any = schema.get("properties")
    required: Any = schema.get("required")
    if not isinstance(properties, dict):
        return []
    names = cast("list[Any]", required) if isinstance(required, list) else []
    found: list[Parameter] = []
    for name, each in cast("dict[str, Any]", properties).items():
        told = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        description: Any = told.get("description")
        description = _shorten(description) if isinstance(description, str) else ""
        found.append(Parameter(_shorten(name), _kind(told), name in names, description))
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in a few words."""
    values: Any = schema.get("enum")
    if isinstance(values, list):
        return _shorten(" | ".join(_as_json(value) for value in cast("list[Any]", values)), 200)
    words = _types(schema)
    items: Any = schema.get("items")
    if words == "array" and isinstance(items, dict):
        words = f"array of {_types(cast('dict[str, Any]', items))}"
    return _shorten(f"{words} = {_as_json(schema['default'])}" if "default" in schema else words, 200)


def _types(schema: Mapping[str, Any]) -> str:
    found: Any = schema.get("type")
    words = cast("list[Any]", found) if isinstance(found, list) else [found]
    return " | ".join(word for word in words if isinstance(word, str)) or "any"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shorten(text: str, limit: int = _LONGEST) -> str:
    """A text that fits a page. JSON may hold half a character, which no page can."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "replace").decode()
