"""The corpus: texts that models write, and the arguments that each becomes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tarsy_tasks.arguments import parse_arguments
from tarsy_tasks.errors import ArgumentsError

__all__ = ["ROWS", "SCHEMAS", "Row", "as_json", "outcome"]

_DATA = Path(__file__).parent.parent / "data" / "arguments_corpus.yaml"


@dataclass(frozen=True)
class Row:
    section: str
    text: str
    schema_name: str | None
    want: Any
    why: str

    @property
    def schema(self) -> dict[str, Any] | None:
        return SCHEMAS[self.schema_name] if self.schema_name else None

    @property
    def table_line(self) -> str:
        """The row as a line of a table in docs/arguments.md."""
        becomes = "rejected" if self.want == "reject" else _code(json.dumps(self.want, ensure_ascii=False))
        return f"| {_code(self.text)} | {self.schema_name or '–'} | {becomes} | {self.why} |"


def _code(text: str) -> str:
    shown = text.replace("\n", "⏎").replace("|", "\\|")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


_LOADED = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
SCHEMAS: dict[str, dict[str, Any]] = _LOADED["schemas"]
ROWS = [
    Row(section["title"], row["text"], row["schema"], row["want"], row["why"])
    for section in _LOADED["sections"]
    for row in section["rows"]
]


def outcome(text: Any, schema: Mapping[str, Any] | None) -> Any:
    """The arguments of a text, or "reject"."""
    try:
        return parse_arguments(text, schema)
    except ArgumentsError:
        return "reject"


def as_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, sort_keys=True)
