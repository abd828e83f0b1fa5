"""A call's arguments as they are shown: masked and shortened.

Owns the shortening, and which arguments the audit never has. No value is cut before it is masked: half a secret would
not be recognized.
"""

import json
from collections.abc import Callable
from typing import Any, cast

from tarsy_tasks.methods import ANSWER_INPUT
from tarsy_tasks.telemetry.audit import build_canonical

__all__ = ["build_shown", "select_audited", "shorten"]

_SHOWN_CHARS = 2000
_MASKED_CHARS = 32 * 1024
_BRACKETS = 2
_ID_CHARS = 200


def select_audited(operation: str, arguments: Any) -> Any:
    """What the audit may have of arguments that nobody has checked: all of them, but no values that people gave."""
    if operation != ANSWER_INPUT:
        return arguments
    found = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
    call = found.get("call")
    return {"call": call[:_ID_CHARS]} if isinstance(call, str) else {}


def build_shown(canonical: str, mask: Callable[[str], str]) -> str:
    """Arguments for an audit entry; `canonical` is what `build_canonical` gave."""
    masked = mask(shorten(canonical))
    return masked if len(masked) <= _SHOWN_CHARS else f"{masked[:_SHOWN_CHARS]}…"


def shorten(canonical: str) -> str:
    """The same arguments, without the values that are too long to be masked for a line."""
    if len(canonical) <= _MASKED_CHARS:
        return canonical
    try:
        return build_canonical(_Space().fit(json.loads(canonical)))
    except (ValueError, RecursionError):
        return f"[{len(canonical)} characters]"


class _Space:
    """Space for a number of characters; a text that does not fit is replaced by its length."""

    def __init__(self) -> None:
        self._left = _MASKED_CHARS

    def fit(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._fit_text(value)
        self._left -= len(str(value)) if isinstance(value, int | float) else _BRACKETS
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value)
            kept: dict[str, Any] = {}
            for key, item in items.items():
                if self._left <= 0:
                    kept["…"] = f"[{len(items) - len(kept)} more]"
                    break
                name = self._fit_text(key)
                kept[name] = self.fit(item)
            return kept
        if isinstance(value, list):
            members = cast("list[Any]", value)
            found: list[Any] = []
            for member in members:
                if self._left <= 0:
                    found.append(f"[{len(members) - len(found)} more]")
                    break
                found.append(self.fit(member))
            return found
        return value

    def _fit_text(self, text: str) -> str:
        if len(text) > self._left:
            return f"[{len(text)} characters]"
        self._left -= len(text) + 1
        return text
