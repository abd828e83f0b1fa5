"""The tools of a server, as its page shows them: definition, changes and metrics of each.

Owns joining the catalogue and the metrics. Descriptions and schemas come from the MCP server and may be any JSON.
Workers masked them with the server's secrets; they are masked again by the general rules, because an approval may be
older than the masking.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from tarsy_tasks.catalogue import ListedServer, diff_lines
from tarsy_tasks.masking.masker import Masker
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.telemetry.metrics import NO_TOOL, ToolMetrics

__all__ = ["Parameter", "ToolView", "build_tools"]

Change = Literal["", "added", "changed", "removed", "unlisted"]
_LONGEST = 20_000
_HINTS = {"readOnlyHint": "read-only", "idempotentHint": "idempotent", "destructiveHint": "destructive"}


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str
    is_required: bool
    description: str


@dataclass(frozen=True)
class ToolView:
    """One tool.

    Attributes:
        change: How it differs from the approved tool; `unlisted` if it has only metrics.
        schema: The JSON Schema of its arguments, indented.
        hints: The annotations of the server, in words.
        diff: How a changed tool differs from the approved one, masked: lines that begin with `+`, `-` or a space.
    """

    name: str
    change: Change
    description: str
    parameters: list[Parameter]
    schema: str
    hints: list[str]
    metrics: ToolMetrics
    diff: tuple[str, ...] = ()

    @property
    def call_count(self) -> int:
        return sum(self.metrics.calls.values())


def build_tools(
    server: str, listed: ListedServer | None, metrics: Iterable[ToolMetrics], masker: Masker
) -> list[ToolView]:
    """The tools that are listed, removed, or only have metrics, by name."""
    by_tool = {each.tool: each for each in metrics if each.tool != NO_TOOL}
    definitions: dict[str, ToolDefinition] = {}
    changes: dict[str, Change] = {}
    if listed is not None:
        definitions = {**listed.diff.removed, **{tool.tool: tool for tool in listed.listing.tools}}
        changes |= dict.fromkeys(listed.diff.removed, "removed")
        changes |= dict.fromkeys(listed.diff.added, "added")
        changes |= dict.fromkeys(listed.diff.changed, "changed")
    changes |= dict.fromkeys(by_tool.keys() - definitions.keys(), "unlisted")
    changed = listed.diff.changed if listed is not None else {}
    return [
        _build(
            name,
            definitions.get(name),
            changes.get(name, ""),
            by_tool.get(name, ToolMetrics(server, name)),
            masker,
            _diff(*changed[name], masker) if name in changed else (),
        )
        for name in sorted({*definitions, *by_tool})
    ]


def _diff(before: ToolDefinition | None, now: ToolDefinition, masker: Masker) -> tuple[str, ...]:
    if before is None:
        return ("  the approved definition cannot be read",)
    return tuple(_shorten(masker.mask("\n".join(diff_lines(before, now)))).split("\n"))


def _build(
    name: str,
    definition: ToolDefinition | None,
    change: Change,
    metrics: ToolMetrics,
    masker: Masker,
    diff: tuple[str, ...],
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
        diff=diff,
    )


def _parameters(schema: Mapping[str, Any]) -> list[Parameter]:
    properties: Any = schema.get("properties")
    required: Any = schema.get("required")
    if not isinstance(properties, dict):
        return []
    names = cast("list[Any]", required) if isinstance(required, list) else []
    found: list[Parameter] = []
    for name, each in cast("dict[str, Any]", properties).items():
        property_schema = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        description: Any = property_schema.get("description")
        description = _shorten(description) if isinstance(description, str) else ""
        found.append(Parameter(_shorten(name), _kind(property_schema), name in names, description))
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value, in a few words."""
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
    """A text cut for a page. JSON may contain lone surrogates, which cannot be encoded."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "replace").decode()
