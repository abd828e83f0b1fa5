"""The tools of a server, as its page shows them: definition, changes and metrics of each.

Owns joining the catalogue and the metrics. Descriptions and schemas come from the MCP server and may be any JSON.
Workers masked them with the server's secrets; they are masked again by the general rules, because an approval may be
older than the masking.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
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
    """One tool. What costs time, masking above all, is built when it is first asked for: a page shows only some.

    Attributes:
        change: How it differs from the approved tool; `unlisted` if it has only metrics.
        definition: As it is listed, or as it was approved if it was removed; None of one with only metrics.
        approved: The approved definition of a changed tool; None if that cannot be read.
    """

    name: str
    change: Change
    definition: ToolDefinition | None
    approved: ToolDefinition | None
    metrics: ToolMetrics
    masker: Masker

    @property
    def call_count(self) -> int:
        return sum(self.metrics.calls.values())

    @cached_property
    def description(self) -> str:
        return _shorten(self.masker.mask(self.definition.description)) if self.definition else ""

    @property
    def hints(self) -> list[str]:
        """The annotations of the server, in words."""
        annotations = self.definition.annotations if self.definition else {}
        return [word for hint, word in _HINTS.items() if annotations.get(hint) is True]

    @cached_property
    def _schema(self) -> Any:
        return self.masker.mask_json(self.definition.input_schema) if self.definition else {}

    @property
    def schema(self) -> str:
        """The JSON Schema of its arguments, indented; empty if it has no definition."""
        return _shorten(json.dumps(self._schema, indent=2, ensure_ascii=False)) if self.definition else ""

    @property
    def parameters(self) -> list[Parameter]:
        schema = self._schema
        return _parameters(cast("dict[str, Any]", schema)) if isinstance(schema, dict) else []

    @cached_property
    def diff(self) -> tuple[str, ...]:
        """How a changed tool differs from the approved one, masked: lines that begin with `+`, `-` or a space."""
        if self.change != "changed" or self.definition is None:
            return ()
        if self.approved is None:
            return ("  the approved definition cannot be read",)
        lines = diff_lines(self.approved, self.definition) or ["  no difference in what is shown of it"]
        return tuple(_shorten(self.masker.mask("\n".join(lines))).split("\n"))


def build_tools(
    server: str, listed: ListedServer | None, metrics: Iterable[ToolMetrics], masker: Masker
) -> list[ToolView]:
    """The tools that are listed, removed, or only have metrics, by name."""
    by_tool = {each.tool: each for each in metrics if each.tool != NO_TOOL}
    definitions: dict[str, ToolDefinition] = {}
    changes: dict[str, Change] = {}
    approved: dict[str, ToolDefinition | None] = {}
    if listed is not None:
        definitions = {**listed.diff.removed, **{tool.tool: tool for tool in listed.listing.tools}}
        changes |= dict.fromkeys(listed.diff.removed, "removed")
        changes |= dict.fromkeys(listed.diff.added, "added")
        changes |= dict.fromkeys(listed.diff.changed, "changed")
        approved = {name: before for name, (before, _) in listed.diff.changed.items()}
    changes |= dict.fromkeys(by_tool.keys() - definitions.keys(), "unlisted")
    return [
        ToolView(
            name=name,
            change=changes.get(name, ""),
            definition=definitions.get(name),
            approved=approved.get(name),
            metrics=by_tool.get(name) or ToolMetrics(server, name),
            masker=masker,
        )
        for name in sorted({*definitions, *by_tool})
    ]


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
