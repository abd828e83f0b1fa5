"""JSON that comes from Redis, where somebody else may have written it.

Owns its bounds. It is plain JSON: kombu's reader makes an object of whatever asks for that (`__type__`), and fails in a
different way for each.
"""

import json
from typing import Any, cast

__all__ = ["DEEPEST", "LARGEST_BYTES", "read_json"]

LARGEST_BYTES = 64 * 1024 * 1024
"""Of a message, also when it is uncompressed."""
DEEPEST = 200
"""Levels of lists and objects. What can be read a thousand levels deep cannot be written, masked or shown."""


def read_json(text: bytes | str) -> Any:
    """The value of a text.

    Raises:
        ValueError: It is too large, too deep, or not JSON; the reason quotes nothing of it.
    """
    if len(text) > LARGEST_BYTES:
        raise ValueError(f"it is larger than {LARGEST_BYTES} bytes")
    try:
        found: Any = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({type(error).__name__})") from None
    if _count_openings(text) > DEEPEST and _is_too_deep(found):
        raise _too_deep()
    return found


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
