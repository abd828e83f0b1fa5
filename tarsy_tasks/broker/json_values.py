"""How many values a JSON text has, before anything is parsed: each costs far more than its bytes.

Owns the counting.
"""

from collections.abc import Iterable, Iterator

__all__ = ["SLICE_BYTES", "count_values", "has_more_values"]

SLICE_BYTES = 64 * 1024
_FEW_QUOTES = 200
_BACKSLASHES = 32


def has_more_values(text: bytes, most: int) -> bool:
    """Whether it has more values than that. Most large texts are a few long strings, whose ends are found in no time;
    or they have fewer commas and brackets, within strings or not, which takes a tenth of the time of counting."""
    if len(text) <= most:
        return False
    if (count := _count_around(text)) is not None:
        return count > most
    return _is_over(_count_marks(text), most) and _is_over(count_values(text), most)


def _count_around(text: bytes) -> int | None:
    """The commas and opening brackets around a few strings; None if there are many quotes, or much between them."""
    count, at, is_string = 0, 0, False
    for _ in range(_FEW_QUOTES):
        end = text.find(b'"', at)
        if not is_string:
            stop = end if end >= 0 else len(text)
            if stop - at > SLICE_BYTES:
                return None
            count += _count(text[at:stop])
        elif end > at:
            before = text[max(at, end - _BACKSLASHES) : end]
            backslashes = len(before) - len(before.rstrip(b"\\"))
            if backslashes == _BACKSLASHES:
                return None
            if backslashes % 2:  # it is in the string
                at = end + 1
                continue
        if end < 0:
            return count
        at, is_string = end + 1, not is_string
    return None


def count_values(text: bytes, slice_bytes: int = SLICE_BYTES) -> Iterator[int]:
    """The commas and opening brackets outside of strings, counted slice by slice: one call on a whole message would
    hold the interpreter too long.
    """
    is_string, cut = False, b""
    for start in range(0, len(text), slice_bytes):
        piece = (cut + text[start : start + slice_bytes]).replace(rb"\\", b"")
        cut = b"\\" if piece.endswith(b"\\") else b""  # what it escapes is in the next slice
        pieces = piece.removesuffix(b"\\").replace(rb"\"", b"").split(b'"')
        structure = b"".join(pieces[is_string::2])
        yield _count(structure)
        is_string ^= len(pieces) % 2 == 0


def _count_marks(text: bytes) -> Iterator[int]:
    """The same, with those in strings."""
    for start in range(0, len(text), SLICE_BYTES):
        yield _count(text[start : start + SLICE_BYTES])


def _count(piece: bytes) -> int:
    return piece.count(b",") + piece.count(b"[") + piece.count(b"{")


def _is_over(counts: Iterable[int], most: int) -> bool:
    count = 0
    for more in counts:
        count += more
        if count > most:
            return True
    return False
