"""JSON that comes from Redis, where somebody else may have written it.

Owns its bounds. It is plain JSON: kombu's reader makes an object of whatever asks for that (`__type__`), and fails in a
different way for each.
"""

import json
from typing import Any, cast

from tarsy_tasks.broker.json_values import has_more_values

__all__ = ["DEEPEST", "LARGEST_BYTES", "MOST_VALUES", "read_json"]

LARGEST_BYTES = 64 * 1024 * 1024
"""Of a message, also when it is uncompressed."""
DEEPEST = 200
"""Levels of lists and objects. What can be read a thousand levels deep cannot be written, masked or shown."""
MOST_VALUES = 200_000
"""Of a message, keys not counted: millions of small ones take seconds and gigabytes."""


def read_json(text: bytes | str, *, most_values: int | None = MOST_VALUES) -> Any:
    """The value of a text.

    Args:
        most_values: How many values it may have; None: any number.

    Raises:
        ValueError: It is too large, too deep, or not JSON; the reason quotes nothing of it.
    """
    if len(text) > LARGEST_BYTES:
        raise ValueError(f"it is larger than {LARGEST_BYTES} bytes")
    if most_values is not None and _has_more(text, most_values):
        raise ValueError(f"it has more than {most_values} values")
    try:
        found: Any = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({type(error).__name__})") from None
    if _count_openings(text) > DEEPEST and _is_too_deep(found):
        raise _too_deep()
    return found


def _has_more(text: bytes | str, most_values: int) -> bool:
    if len(text) <= most_values:
        return False
    return has_more_values(text if isinstance(text, bytes) else text.encode(errors="replace"), most_values)


def _count_openings(text: bytes | str) -> int:
    return text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")


def _is_too_deep(found: Any) -> bool:
    level = [found]
    for _ in range(DEEPEST):
        level = [child for each in level for child in _children(each) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(value: Any) -> Any:
    return cast("dict[str, Any]", value).values() if isinstance(value, dict) else value


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEEPEST} levels deep")
