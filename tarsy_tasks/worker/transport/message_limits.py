"""How many values, parts and tools a message of a server may have: each costs the worker far more than its bytes.

Owns these limits. Values are counted before anything is parsed; the lists are looked at before the SDK validates them.
"""

from typing import Any, cast

from tarsy_tasks.broker.json_values import count_values
from tarsy_tasks.worker.transport.transport_errors import TooManyError

__all__ = [
    "LARGE_BYTES",
    "PARTS_LIMIT",
    "TOOLS_LIMIT",
    "VALUES_LIMIT",
    "check_values",
    "limit_lists",
]

LARGE_BYTES = 16 * 1024
"""A message up to this size cannot have too many of anything, and takes no time worth a thread."""
VALUES_LIMIT = 100_000
"""JSON values of one message, keys not counted."""
TOOLS_LIMIT = 2_000
"""Tools on one page of tools/list."""
PARTS_LIMIT = 1_000
"""Parts of a result's content; the rest is left out, and the last part says how many there were."""


def check_values(text: bytes) -> None:
    """Count the values of a JSON text, up to the limit.

    Raises:
        TooManyError: There are too many.
    """
    count = 0
    for more in count_values(text):
        count += more
        if count > VALUES_LIMIT:
            raise TooManyError(f"more than {VALUES_LIMIT} values")


def limit_lists(result: dict[str, Any]) -> None:
    """Leave out the parts of a tool's result that are too many.

    Raises:
        TooManyError: The result lists too many tools.
    """
    tools, content = result.get("tools"), result.get("content")
    if isinstance(tools, list) and (count := len(cast("list[Any]", tools))) > TOOLS_LIMIT:
        raise TooManyError(f"{count} tools, more than {TOOLS_LIMIT} on a page")
    if isinstance(content, list) and (count := len(cast("list[Any]", content))) > PARTS_LIMIT:
        note = f"[truncated: only the first {PARTS_LIMIT} of {count} parts are shown; ask for less]"
        content[PARTS_LIMIT:] = [{"type": "text", "text": note}]
