"""What is put in place of a secret, and where.

Owns the mask and the applying of edits to a text. It knows no secrets.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["MASK", "Edit", "apply_edits"]

MASK = "__MASKED__"
"""Plain letters, so that JSON, YAML, URLs, XML, shell and .env stay what they are."""


class Edit(NamedTuple):
    """Replace `text[start:end]`."""

    start: int
    end: int
    replacement: str = MASK


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with the edits made; of two that overlap, the second takes the part that is left."""
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
