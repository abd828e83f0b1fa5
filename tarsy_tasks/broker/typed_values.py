"""Dates, decimals, UUIDs and bytes in the results of users' own tasks, as kombu writes them into JSON.

Owns which of them are made again, and their bounds: `{"__type__": "decimal", "__value__": "1.5"}` is a `Decimal`. kombu
asks a table that any library may extend, while it reads, and fails in a different way for each; here the table is
closed, what is not valid stays as it was written, and results of MCP servers are left alone.
"""

import uuid
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime, time
from decimal import Decimal
from typing import Any, cast

__all__ = ["restore_values"]

_MARK = ("__type__", "__value__")
_LONGEST_CHARS = 1000
"""Of a value that is not bytes."""
_TYPES: Mapping[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda text: uuid.UUID(hex=text),
    "bytes": str.encode,
    "base64": b64decode,
}
_OWN = ({"v", "call_id", "outcome"}, {"v", "server", "tools"})
"""Keys of the results of this package's tasks, whose contents MCP servers write."""


def restore_values(text: bytes | str, found: Any) -> Any:
    """What was read, with the values made that its text names.

    Args:
        text: The JSON; most has none of them, and is not searched further.
        found: What was read from it, no deeper than `received_json` allows.
    """
    mark = _MARK[0]
    return _restore(found) if (mark in text if isinstance(text, str) else mark.encode() in text) else found


def _restore(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    if len(found) == len(_MARK) and all(key in found for key in _MARK):
        return _build(found)
    if any(keys <= found.keys() for keys in _OWN):
        return found
    return {key: _restore(each) for key, each in found.items()}


def _build(found: dict[str, Any]) -> Any:
    kind, text = (found[key] for key in _MARK)
    if kind == "uuid" and isinstance(text, dict):
        text = cast("dict[str, Any]", text).get("hex")
    if not (isinstance(kind, str) and isinstance(text, str)) or kind not in _TYPES:
        return found
    if len(text) > _LONGEST_CHARS and kind not in ("bytes", "base64"):
        return found
    try:
        return _TYPES[kind](text)
    except (ValueError, ArithmeticError):
        return found
