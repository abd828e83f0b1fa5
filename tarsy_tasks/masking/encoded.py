"""Secrets in base64 of a text.

Owns the finding and decoding. What is found is masked in the text and encoded again, so that the rest of it stays.
"""

import base64
import binascii
from collections.abc import Callable, Iterator

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.search import Search

__all__ = ["find_encoded", "mask_encoded"]

_PROBE = 32
_search = Search([r"(?:^|[^A-Za-z0-9+/])((?:[CDI-Za-f][A-Za-z0-9+/]{3}){5}[A-Za-z0-9+/]*={0,2})"])
"""Each four characters of it are three letters, of which the first shows in the first; of a checksum that is rarely so.
"""


def find_encoded(text: str, projection: bytes, mask_string: Callable[[str], str]) -> Iterator[Edit]:
    """What is base64 of a text with secrets, from left to right, to be replaced by base64 of the masked text.

    Args:
        text: What is searched.
        projection: The same, as `search.project` has it.
        mask_string: Masks the decoded text.
    """
    position = 0
    while (found := _search.next(projection, position)) is not None:
        _, start, position = found
        masked = _mask(text[start:position], mask_string)
        if masked is not None:
            yield Edit(start, position, masked)


def mask_encoded(data: str, mask_string: Callable[[str], str]) -> str:
    """Base64 of a text, such as an attachment, with what is secret in it masked; of anything else, what was given."""
    try:
        decoded = base64.b64decode(data).decode()
    except (binascii.Error, ValueError):
        return data
    masked = mask_string(decoded)
    return data if masked == decoded else base64.b64encode(masked.encode()).decode()


def _mask(encoded: str, mask_string: Callable[[str], str]) -> str | None:
    if not _is_text(encoded[:_PROBE]):
        return None
    whole = encoded.rstrip("=")
    whole = whole[: len(whole) - (len(whole) % 4 == 1)]
    try:
        decoded = base64.b64decode(whole + "=" * (-len(whole) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    masked = mask_string(decoded)
    return None if masked == decoded else base64.b64encode(masked.encode()).decode()


def _is_text(encoded: str) -> bool:
    """Whether it begins like one; it costs little to know of the many that do not."""
    try:
        decoded = base64.b64decode(encoded[: len(encoded) // 4 * 4])
    except (binascii.Error, ValueError):
        return False
    return not decoded.translate(None, _TEXT_BYTES)


_TEXT_BYTES = bytes((*range(32, 127), 9, 10, 13, *range(128, 248)))
