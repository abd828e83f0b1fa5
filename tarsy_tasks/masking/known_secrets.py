"""Secrets with known values, such as those of the configuration: masked wherever they appear, in any encoding.

Owns the values and the forms in which they appear: plain, in base64, in a URL, in JSON, in HTML.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote, quote_plus

import re2

from tarsy_tasks.masking.edits import MASK, Edit

__all__ = ["KnownSecrets"]

_MIN_LENGTH = 6
_MIN_LETTERS = 12
"""A password that is a word, such as `postgres`, appears in too many harmless places."""
_MIN_BASE64 = 8
_MAX_ESCAPED = 5
_LONG_LINE = re.compile(r"(?!-----)\S{16,}")
_COMPILED_TOGETHER = 16
"""Compiling the forms of so many takes some milliseconds, in which no other thread runs."""
_STANDS_ALONE = 12
"""A shorter one counts only without a letter or digit next to it."""
_LEAST_BEGINNING = 8
"""Characters; or a third of the secret, if that is more: many begin with a word, such as `postgres://`."""


class _Group(NamedTuple):
    """Values that were compiled together, and what finds their forms; `plain` are those that are not ASCII."""

    values: frozenset[str]
    pattern: "re2.Pattern"
    plain: tuple[str, ...]


class KnownSecrets:
    """A changing set of values. Safe to share between threads.

    Attributes:
        changes: Grows when others are masked than before.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.changes = 0
        self._values: set[str] = set()
        self._groups: tuple[_Group, ...] = ()
        self._lock = Lock()
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Add values. Those that are too short are ignored: masking them would mask half of every text."""
        worthy = {each for value in values for each in (value, *_long_lines(value)) if _is_worthy(each)}
        with self._lock:
            new = worthy - self._values
            if not new:
                return
            self._values |= new
            complete = tuple(each for each in self._groups if self._is_complete(each))
            open_values = {value for each in self._groups if each not in complete for value in each.values}
            self._groups = (*complete, _compile(new | open_values & self._values))
            self.changes += 1

    def _is_complete(self, group: _Group) -> bool:
        return len(group.values) >= _COMPILED_TOGETHER and group.values <= self._values

    def forget(self, values: Iterable[str]) -> None:
        """Stop masking values that are no longer valid, from the next `add` on: with hundreds of tokens, each
        text would be searched for all of them."""
        with self._lock:
            self._values -= set(values)

    @property
    def values(self) -> frozenset[str]:
        """All that are masked."""
        return frozenset[str]().union(*(group.values for group in self._groups))

    def find(self, text: str, projection: bytes) -> Iterator[Edit]:
        """The places where any of them appears."""
        for group in self._groups:
            for match in group.pattern.finditer(projection):
                start, end = match.span()
                if end - start >= _STANDS_ALONE or _stands_alone(text, start, end):
                    yield Edit(start, end)
            for form in group.plain:
                start = text.find(form)
                while start >= 0:
                    yield Edit(start, start + len(form))
                    start = text.find(form, start + len(form))

    def find_beginning(self, text: str) -> int:
        """Where the text ends with the beginning of one, whose rest may follow elsewhere; its length if it does not."""
        found = len(text)
        for value in self._values.copy():
            least = max(_LEAST_BEGINNING, len(value) // 3)
            start = text.find(value[:least], max(0, len(text) - len(value)))
            while 0 <= start < found:
                if value.startswith(text[start:]):
                    found = start
                start = text.find(value[:least], start + 1)
        return found


def _compile(values: Iterable[str]) -> _Group:
    values = frozenset(values)
    forms = {form for value in values for form in _forms(value)}
    ascii_forms = sorted((form for form in forms if form.isascii()), key=len, reverse=True)
    options = re2.Options()
    options.max_mem = 64 * 1024 * 1024
    pattern = re2.compile("|".join(map(re2.escape, ascii_forms)), options)
    return _Group(values, pattern, tuple(form for form in forms if not form.isascii()))


def _long_lines(value: str) -> Iterator[str]:
    """The lines of a multi-line value, such as a key, that are long enough on their own: logs are shown line by
    line."""
    for line in value.split("\n") if "\n" in value else ():
        if _LONG_LINE.fullmatch(line.strip()):
            yield line.strip()


def _is_worthy(value: str) -> bool:
    return len(value.strip()) >= (_MIN_LETTERS if value.isalpha() else _MIN_LENGTH) and MASK not in value


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not (start and text[start - 1].isalnum()) and not text[end : end + 1].isalnum()


def _forms(value: str) -> Iterator[str]:
    yield value
    if value != value.strip():
        yield value.strip()
    yield quote(value, safe="")
    yield quote(value)
    yield quote_plus(value)
    yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), quote(value, safe=""))
    yield from _escaped_forms(value)
    if "\n" in value:
        yield from _escaped_forms(value.replace("\r\n", "\n").replace("\n", "\r\n"))
    yield repr(value)[1:-1]
    yield html.escape(value)
    yield html.escape(value, quote=False)
    yield value.encode().hex()
    yield value.encode().hex().upper()
    if len(value) >= _MIN_BASE64:
        yield from _base64_forms(value.encode())


def _escaped_forms(value: str) -> Iterator[str]:
    """As in JSON, in a string of JSON in a string, and so on."""
    for is_ascii in (True, False):
        form = value
        for _ in range(_MAX_ESCAPED):
            yield form
            form = json.dumps(form, ensure_ascii=is_ascii)[1:-1]


def _base64_forms(value: bytes) -> Iterator[str]:
    """The part of the base64 of a longer text that depends only on the value, for each of the three alignments."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + value).decode().rstrip("=")
        first = -(-shift * 8 // 6)
        last = (shift + len(value)) * 8 // 6
        form = encoded[first:last]
        yield form
        yield form.replace("+", "-").replace("/", "_")
