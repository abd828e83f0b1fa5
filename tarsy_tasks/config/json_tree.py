"""JSON text: the place of each key and item, and keys that are given twice.

Owns the walk through a text that the `json` module has read already. What lies beside the way is skipped by that
module, so that finding a key in a file of many megabytes takes no longer than reading it.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress

from tarsy_tasks.config.problems import KeyPath, Problem

__all__ = ["JsonTree"]

_SPACE = re.compile(r"[ \t\r\n]*+")
_DECODER = json.JSONDecoder()


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
        """A problem for each key that its mapping has already."""
        found: list[Problem] = []
        with suppress(RecursionError):  # then those that were found until there
            self._collect(self._skip(0), (), found)
        return found

    def _collect(self, start: int, at: KeyPath, found: list[Problem]) -> None:
        first: dict[str | int, int] = {}
        for key, offset, value in self._children(start):
            if key in first:
                line = self._text.count("\n", 0, first[key]) + 1
                text = f"duplicate key; it is first given in line {line}"
                found.append(Problem((*at, key), text, offset))
            else:
                first[key] = offset
            self._collect(value, (*at, key), found)

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
