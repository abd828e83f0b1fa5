"""Replacements in a text, and the mask.

Owns the mask and the application of edits to a text. It knows no secrets.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["MASK", "Edit", "apply_edits"]

MASK = "__MASKED__"
"""Only letters and underscores, so that JSON, YAML, URLs, XML, shell and .env stay valid."""


class Edit(NamedTuple):
    """Replace `text[start:end]`."""

    start: int
    end: int
    replacement: str = MASK


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with the edits applied; of two that overlap, the second replaces the rest."""
    parts: list[str] = []
    copied = 0
    for start, end, replacement in sorted(edits):
        if end <= copied:
            continue
        if start >= copied:
            parts += text[copied:start], replacement
        copied = end
    if not copied:
        return text
    parts.append(text[copied:])
    return "".join(parts)
