"""What a model reads of a result: its text, and those of its attachments that the model's provider takes.

Owns the sentence about what is left out. `ToolResult.content` has a line for each attachment, so that a model knows of
all of them.
"""

import base64
import binascii
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from tarsy_tasks import Attachment, ToolResult

__all__ = ["Media", "ResultParts", "split_result"]


@dataclass(frozen=True)
class Media:
    """An image or a document of a result.

    Attributes:
        data: Its content in base64.
    """

    mime_type: str
    data: str

    @property
    def is_image(self) -> bool:
        return self.mime_type.startswith("image/")

    @property
    def url(self) -> str:
        """A `data:` URL."""
        return f"data:{self.mime_type};base64,{self.data}"

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.data)


@dataclass(frozen=True)
class ResultParts:
    """What a model reads; `text` is never empty, because providers refuse that."""

    text: str
    media: tuple[Media, ...]


def split_result(result: ToolResult, takes: Collection[str]) -> ResultParts:
    """The parts of a result.

    Args:
        takes: The MIME types of media that may be part of it. Others become a sentence.
    """
    media: list[Media] = []
    left_out: Counter[str] = Counter()
    for each in result.attachments:
        if each.data is None:
            continue  # its line in the text says what it is
        found = _read(each)
        if found is not None and found.mime_type in takes:
            media.append(found)
        else:
            left_out[each.mime_type or each.type] += 1
    text = result.content
    if left_out:
        what = ", ".join(f"{count} × {kind[:80]}" for kind, count in left_out.items())
        text += f"\n[left out, because this model cannot read it as the result of a tool: {what}]"
    return ResultParts(text or "The tool answered without content.", tuple(media))


def _read(attachment: Attachment) -> Media | None:
    try:
        base64.b64decode(attachment.data or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    mime_type = (attachment.mime_type or "").partition(";")[0].strip().lower()
    return Media("image/jpeg" if mime_type == "image/jpg" else mime_type, attachment.data or "")
