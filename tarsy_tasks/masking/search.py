"""Searches for many patterns at once, in linear time and without the GIL.

Owns the use of RE2. It searches bytes: the ASCII projection of a text, in which every other character is a `?`, has the
same offsets as the text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import re2

__all__ = ["Places", "Search", "project", "unescape"]

_MEMORY_BYTES = 64 * 1024 * 1024
"""The limit for the states of one search; with less, RE2 would fall back to a slower algorithm."""
_ESCAPES = ((b"\\n", b" \n"), (b"\\r", b" \r"), (b"\\t", b" \t"), (b'\\"', b' "'))
_WINDOW = 16 * 1024
_OVERLAP = 4 * 1024
"""The longest text that a match needs to be recognized."""


def project(text: str) -> bytes:
    """One byte per character, so that offsets are the same."""
    return text.encode("ascii", "replace")


def unescape(projection: bytes) -> bytes:
    """The same with white space and quotes in place of their escapes: a word behind an escape in JSON or a log line is
    then a separate word."""
    if b"\\" not in projection:
        return projection
    for escape, meant in _ESCAPES:
        projection = projection.replace(escape, meant)
    return projection


class Search:
    """Finds the leftmost match of any of several patterns, and which one it is. They are in the syntax that RE2 and
    `re` share, each with at most one group."""

    def __init__(self, patterns: Sequence[str]) -> None:
        grouped = (each if re.compile(each).groups else f"({each})" for each in patterns)
        self._pattern = _compile("|".join(grouped))

    def next(self, projection: bytes, position: int = 0) -> tuple[int, int, int] | None:
        """The index of the pattern that matches first, and the span of its group, or of the whole match."""
        found = _search(self._pattern, projection, position)
        if found is None:
            return None
        index = found.match.lastindex
        assert index is not None
        start, end = found.match.span(index)
        return index - 1, start, end


class Places:
    """Finds where any of several patterns match, those of `Search`; groups have no meaning."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._pattern = _compile("|".join(patterns), never_capture=True)

    def next(self, projection: bytes, position: int = 0) -> int | None:
        """The beginning of the next match."""
        found = _search(self._pattern, projection, position)
        return None if found is None else found.start

    def find(self, projection: bytes, start: int = 0, end: int | None = None) -> Iterator[int]:
        """The beginning of each match, from left to right."""
        stop = len(projection) if end is None else end
        while start < stop:
            window_end = min(stop, start + _WINDOW)
            for match in self._pattern.finditer(projection, start, window_end):
                first, last = match.span()
                if last == window_end < stop:
                    match = self._pattern.match(projection, first, stop) or match
                    yield first
                    start = max(match.end(), first + 1)
                    break
                yield first
                start = max(last, first + 1)
            else:
                if window_end == stop:
                    return
                start = max(start, window_end - _OVERLAP)

    def are_in(self, projection: bytes) -> bool:
        """Whether there is a match."""
        if len(projection) <= _WINDOW:
            return self._pattern.search(projection) is not None
        return self.next(projection) is not None


class _Found(NamedTuple):
    """A match. Each call to it would cost as much as this one."""

    match: "re2.Match[bytes]"
    start: int
    end: int


def _search(pattern: "re2.Pattern", projection: bytes, start: int) -> _Found | None:
    """The first match. The search runs in windows: otherwise a possible earlier match would be followed to its end
    again for every match behind it."""
    stop = len(projection)
    while start < stop:
        end = min(stop, start + _WINDOW)
        match = pattern.search(projection, start, end)
        if match is not None:
            span = match.span()
            if span[1] == end < stop:
                match = pattern.match(projection, span[0], stop) or match
                span = match.span()
            return _Found(match, *span)
        if end == stop:
            return None
        start = end - _OVERLAP
    return None


def _compile(pattern: str, *, never_capture: bool = False) -> "re2.Pattern":
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_capture = never_capture
    return re2.compile(pattern.encode("ascii"), options)
