"""How many values, parts and entries of a list a message may have: each costs the worker far more than its bytes.

Owns these bounds. Values are counted before anything is parsed; the lists are looked at before the SDK validates them.
"""

from typing import Any, cast

from tarsy_tasks.broker.json_values import has_more_values
from tarsy_tasks.worker.transport.transport_errors import TooManyError

__all__ = [
    "ENTRIES_LIMIT",
    "LARGE_BYTES",
    "PARTS_LIMIT",
    "VALUES_LIMIT",
    "check_values",
    "limit_lists",
]

LARGE_BYTES = 16 * 1024
"""A message up to this size cannot have too many of anything, and takes no time worth a thread."""
VALUES_LIMIT = 100_000
"""JSON values of one message, keys not counted."""
ENTRIES_LIMIT = 2_000
"""Tools on one page of tools/list, and so on."""
PARTS_LIMIT = 1_000
"""Parts of a result's content, or of a resource; the rest is left out, and the last part says how many there were."""
_ENTRIES = {
    "tools": "tools",
    "resources": "resources",
    "resourceTemplates": "resource templates",
    "prompts": "prompts",
    "messages": "messages",
}
"""What lists have, in words."""


def check_values(text: bytes) -> None:
    """Count the values of a JSON text, up to the limit.

    Raises:
        TooManyError: There are too many.
    """
    if has_more_values(text, VALUES_LIMIT):
        raise TooManyError(f"more than {VALUES_LIMIT} values")


def limit_lists(result: dict[str, Any]) -> None:
    """Leave out the parts of a result that are too many.

    Raises:
        TooManyError: The result is a page of a list with too many entries.
    """
    for key in _ENTRIES.keys() & result.keys():
        if (count := _count(result[key])) > ENTRIES_LIMIT:
            raise TooManyError(f"{count} {_ENTRIES[key]}, more than {ENTRIES_LIMIT} on a page")
    for key in ("content", "contents"):
        parts: Any = result.get(key)
        if (count := _count(parts)) > PARTS_LIMIT:
            note = f"[truncated: only the first {PARTS_LIMIT} of {count} parts are shown; ask for less]"
            is_resource = key == "contents"
            parts[PARTS_LIMIT:] = [{"uri": "", "text": note} if is_resource else {"type": "text", "text": note}]


def _count(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list) else 0
