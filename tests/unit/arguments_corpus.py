"""The corpus of texts that models write, and what becomes of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ROWS", "SCHEMAS", "Row"]

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


_LOADED = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
SCHEMAS: dict[str, dict[str, Any]] = _LOADED["schemas"]
ROWS = [
    Row(section["title"], row["text"], row["schema"], row["want"], row["why"])
    for section in _LOADED["sections"]
    for row in section["rows"]
]
