"""How many values a JSON text has, before anything is parsed: each costs far more than its bytes.

Owns the counting.
"""

from collections.abc import Iterator

__all__ = ["SLICE_BYTES", "count_values"]

SLICE_BYTES = 64 * 1024


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
        yield structure.count(b",") + structure.count(b"[") + structure.count(b"{")
        is_string ^= len(pieces) % 2 == 0
