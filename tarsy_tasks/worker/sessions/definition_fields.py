"""The fields of what servers list, masked and bounded: of tools, resources and prompts alike.

Owns what is kept of a text, an object and a decoration. Which fields a definition has, its module knows.
"""

from typing import Any, cast

from mcp_types import Prompt, Resource, ResourceTemplate
from pydantic import BaseModel

from tarsy_tasks.worker.maskers import Masker

__all__ = [
    "DESCRIPTION_CHARS",
    "SHOWN_CHARS",
    "count_chars",
    "cut_text",
    "describe",
    "dump_part",
    "is_short",
    "mask_listed",
    "mask_object",
]

DESCRIPTION_CHARS = 16 * 1024
SHOWN_CHARS = 200
_DECORATION_CHARS = 16 * 1024
"""Of the icons or the `_meta` of one definition; longer ones are left out."""


def dump_part(part: BaseModel | None) -> dict[str, Any]:
    """A part of a definition in its wire spelling."""
    return {} if part is None else part.model_dump(by_alias=True, exclude_none=True)


def is_short(decoration: Any) -> bool:
    """Whether the icons or the `_meta` of a definition may be kept."""
    return count_chars(decoration) <= _DECORATION_CHARS


def cut_text(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def mask_object(value: dict[str, Any], masker: Masker) -> dict[str, Any]:
    masked = masker.mask_json(value)
    return masked if isinstance(masked, dict) else {}  # too deep to be searched


def describe(text: str | None, masker: Masker) -> str:
    """The description of a definition, masked and cut."""
    return cut_text(masker.mask_start(text or "", DESCRIPTION_CHARS + 1), DESCRIPTION_CHARS)


def mask_listed(found: Prompt | Resource | ResourceTemplate, masker: Masker) -> dict[str, Any]:
    """The fields that all definitions but those of tools have in common, except their names."""
    icons, meta = [*map(dump_part, found.icons or ())], dict(found.meta or {})
    return {
        "title": masker.mask_start(found.title or "", SHOWN_CHARS),
        "description": describe(found.description, masker),
        "icons": tuple(mask_object(icon, masker) for icon in icons) if is_short(icons) else (),
        "meta": mask_object(meta, masker) if is_short(meta) else {},
    }


def count_chars(value: Any) -> int:
    """About as many as in its JSON."""
    chars = 0
    left: list[Any] = [value]
    for each in left:  # which grows meanwhile
        chars += len(each) + 2 if isinstance(each, str) else 4
        if isinstance(each, dict):
            left += [*each, *cast("dict[str, Any]", each).values()]
        elif isinstance(each, list | tuple):
            left += cast("list[Any]", each)
    return chars
