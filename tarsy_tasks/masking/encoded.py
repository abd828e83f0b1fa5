"""Secrets in base64-encoded text.

Owns finding and decoding. The decoded text is masked and encoded again, so that the rest of it is kept.
"""

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.search import Search

__all__ = ["ENCODED", "find_encoded", "mask_encoded"]

_PROBE = 32
_SAMPLE = 4096
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_TEXT_BYTES = bytes((*range(32, 127), 9, 10, 13, *range(128, 248)))
_LATIN_BYTES = bytes((*_TEXT_BYTES, *range(248, 256)))
_WIDTHS = range(60, 80, 4)
_WRAPPED = re.compile(r"(\r?\n[ \t]*)[A-Za-z0-9+/]+={0,2}(?![^\s\"'`<])(?:\1[A-Za-z0-9+/]+={0,2}(?![^\s\"'`<]))*")
"""The continuation lines of base64, as in mail."""
ENCODED = r"(?:^|[^A-Za-z0-9+/])((?:[CDI-Za-f][A-Za-z0-9+/]{3}){5}[A-Za-z0-9+/]*={0,2})"
"""Every four characters encode three letters, the first of which determines the first character; rare in a checksum."""
_search = Search([ENCODED])


def find_encoded(text: str, projection: bytes, mask_string: Callable[[str], str]) -> Iterator[Edit]:
    """Base64 of text with secrets, from left to right, as edits that replace it with base64 of the masked text."""
    position = 0
    while (found := _search.next(projection, position)) is not None:
        _, start, position = found
        width = position - start
        wrapped = _WRAPPED.match(text, position) if width in _WIDTHS else None
        if wrapped is not None:
            position = wrapped.end()
        masked = _mask("".join(text[start:position].split()), mask_string)
        if masked is not None:
            yield Edit(start, position, _wrap(masked, wrapped[1], width) if wrapped else masked)


def mask_encoded(data: str, mask_string: Callable[[str], str], is_secret_in: Callable[[str], bool]) -> str:
    """Base64 of a text, such as an attachment, with its secrets masked; other data unchanged, or "" if it contains a
    secret: `is_secret_in` gets it with one character for each byte. Base64 may have either alphabet, and line breaks.
    """
    try:
        bare = "".join(data.split()).rstrip("=").translate(_STANDARD_ALPHABET)
        content = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        return data if mask_string(data) == data else ""
    for encoding in _encodings(content):
        try:
            decoded = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        masked = mask_string(decoded)
        if masked != decoded:
            return base64.b64encode(masked.encode(encoding)).decode()
        if not encoding.startswith("utf-16"):  # which anything may look like
            return data
    # Without the zeros, what is ASCII in UTF-16 is ASCII.
    views = {content.decode("latin-1"), content.replace(b"\0", b"").decode("latin-1")}
    return "" if any(map(is_secret_in, views)) else data


def _encodings(content: bytes) -> tuple[str, ...]:
    """The encodings in which the bytes may be text."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return ("utf-16",)
    sample = content[:_SAMPLE]
    if sample.count(0) * 3 > len(sample):
        return (("utf-16-be" if sample[0] == 0 else "utf-16-le"),) if sample[:2].count(0) == 1 else ()
    return ("utf-8",) if sample.translate(None, _LATIN_BYTES) else ("utf-8", "latin-1")


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


def _wrap(encoded: str, line_break: str, width: int) -> str:
    return line_break.join(encoded[place : place + width] for place in range(0, len(encoded), width))


def _is_text(encoded: str) -> bool:
    """Whether it begins like text; a cheap test that excludes most data."""
    try:
        decoded = base64.b64decode(encoded[: len(encoded) // 4 * 4])
    except (binascii.Error, ValueError):
        return False
    return not decoded.translate(None, _TEXT_BYTES)
