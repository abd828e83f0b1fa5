"""Searches for many patterns at once, in linear time and without the interpreter's lock.

Owns the use of RE2. It searches bytes: a text's ASCII projection, in which every other character is a `?`, has the same
offsets as the text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import re2

__all__ = ["Places", "Search", "project", "unescape"]

_MEMORY_BYTES = 64 * 1024 * 1024
"""The most that the states of one search may take; with less, RE2 would give up its fast way."""
_ESCAPES = ((b"\\n", b" \n"), (b"\\r", b" \r"), (b"\\t", b" \t"), (b'\\"', b' "'))
_WINDOW = 16 * 1024
_OVERLAP = 4 * 1024
"""No match needs more to show that it is one."""


def project(text: str) -> bytes:
    """A character a byte, so that offsets are the same."""
    return text.encode("ascii", "replace")


def unescape(projection: bytes) -> bytes:
    """The same with white space in place of its escapes, and bare quotes: in a JSON string, or a log line, the word
    behind one is a word of its own."""
    if b"\\" not in projection:
        return projection
    for escape, meant in _ESCAPES:
        projection = projection.replace(escape, meant)
    return projection


class Search:
    """Finds the leftmost match of any of some patterns, and tells of which.

    Args:
        patterns: In the syntax that RE2 and `re` share, each with at most one group.

    Raises:
        re2.error: One of them is none.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        grouped = (each if re.compile(each).groups else f"({each})" for each in patterns)
        self._pattern = _compile("|".join(grouped))

    def next(self, projection: bytes, position: int = 0) -> tuple[int, int, int] | None:
        """Index of the pattern that matches first, and where its group, or the whole of it, begins and ends."""
        found = _search(self._pattern, projection, position)
        if found is None:
            return None
        index = found.match.lastindex
        assert index is not None
        start, end = found.match.span(index)
        return index - 1, start, end


class Places:
    """Finds where any of some patterns match.

    Args:
        patterns: As for `Search`; groups have no meaning.

    Raises:
        re2.error: One of them is none.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._pattern = _compile("|".join(patterns), never_capture=True)

    def next(self, projection: bytes, position: int = 0) -> int | None:
        """Where the next match begins."""
        found = _search(self._pattern, projection, position)
        return None if found is None else found.start

    def find(self, projection: bytes, start: int = 0, end: int | None = None) -> Iterator[int]:
        """Where each match begins, from left to right."""
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
        """Whether there is any."""
        return self.next(projection) is not None


class _Found(NamedTuple):
    """A match. Each question to it would cost as much as this one."""

    match: "re2.Match[bytes]"
    start: int
    end: int


def _search(pattern: "re2.Pattern", projection: bytes, start: int, stop: int | None = None) -> _Found | None:
    """The first match. It is looked for in windows: an earlier match that only may be has to be followed until it is
    none, and that anew for each match behind it."""
    stop = len(projection) if stop is None else stop
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
