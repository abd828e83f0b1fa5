"""JSON text: the place of each key and item, and keys that are given twice.

Owns the walk through a text that the `json` module has read already. On the way to a key, that module skips what
lies beside it; keys that are given twice are found in one pass. So neither takes long in a file of many megabytes.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress

from tarsy_tasks.config.problems import KeyPath, Problem

__all__ = ["JsonTree"]

_SPACE = re.compile(r"[ \t\r\n]*+")
_PIECE = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\],]')
_DECODER = json.JSONDecoder()
_MOST_DUPLICATES = 100


class JsonTree:
    """A valid JSON text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: dict[int, dict[str | int, tuple[int, int]]] = {}

    def find(self, at: KeyPath) -> int:
        """The character offset of a key or item, or of the nearest place around it that exists."""
        offset = value = self._skip(0)
        with suppress(RecursionError):
            for key in at:
                if value not in self._known:
                    self._known[value] = {key: (start, inner) for key, start, inner in self._children(value)}
                if key not in self._known[value]:
                    break
                offset, value = self._known[value][key]
        return offset

    def find_duplicates(self) -> list[Problem]:
        """A problem for each key that its mapping has already; the first ones, if there are very many."""
        found: list[Problem] = []
        at: list[str | int] = []
        keys: list[dict[str, int] | None] = []
        """Of each mapping around a place, the offsets of its keys so far; None of a list."""
        is_key = False
        for match in _PIECE.finditer(self._text):
            piece, offset = match[0], match.start()
            if piece in "{[":
                is_key = piece == "{"
                at.append("" if is_key else 0)
                keys.append({} if is_key else None)
            elif piece in "}]":
                is_key = False
                del at[-1], keys[-1]
            elif piece != ",":
                if is_key and (first := keys[-1]) is not None:
                    at[-1] = key = json.loads(piece)
                    if first.setdefault(key, offset) != offset:
                        line = self._text.count("\n", 0, first[key]) + 1
                        found.append(Problem(tuple(at), f"duplicate key; it is first given in line {line}", offset))
                        if len(found) == _MOST_DUPLICATES:
                            break
                is_key = False
            elif isinstance(index := at[-1], int):
                at[-1] = index + 1
            else:
                is_key = True
        return found

    def _children(self, start: int) -> Iterator[tuple[str | int, int, int]]:
        """Of the mapping or list at an offset: each key or index, its offset, and that of its value."""
        if self._text[start] not in "{[":
            return
        offset, index = self._skip(start + 1), 0
        while self._text[offset] not in "}]":
            key, value = index, offset
            if self._text[start] == "{":
                key, end = _DECODER.raw_decode(self._text, offset)
                value = self._skip(self._skip(end) + 1)  # behind the colon
            yield key, offset, value
            _, end = _DECODER.raw_decode(self._text, value)
            offset, index = self._skip(end), index + 1
            if self._text[offset] == ",":
                offset = self._skip(offset + 1)

    def _skip(self, offset: int) -> int:
        match = _SPACE.match(self._text, offset)
        assert match is not None
        return match.end()
