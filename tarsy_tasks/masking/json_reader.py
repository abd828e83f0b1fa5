"""JSON as it stands in a text: what opens, what closes, and where each key and value is.

Owns the grammar. It reads one value from its beginning to its end, or to where the text was cut off, in a single pass
and without recursion; nobody has to know beforehand whether it is JSON at all.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

__all__ = ["Kind", "Token", "read_tokens"]

_TOKEN = re.compile(
    r"[ \t\r\n]*+(?:\"((?:[^\"\\\x00-\x1f]++|\\[^\x00-\x1f])*+)(?:(\")|)|([{}\[\]:,])"
    r"|(-?\d[\d.eE+\-]*+|true|false|null)|(\Z))"
)
_UNCLOSED, _STRING, _MARK, _WORD, _END = range(1, 6)
"""The groups, of which each token has one; a string that is closed has two."""


class Kind(Enum):
    """What a token is."""

    OBJECT = auto()
    ARRAY = auto()
    CLOSE = auto()
    KEY = auto()
    STRING = auto()
    WORD = auto()
    CUT = auto()
    ERROR = auto()


class Token(NamedTuple):
    """A token and its place.

    Attributes:
        kind: What it is. OBJECT and ARRAY open one, CLOSE closes the innermost; CUT: the text ends before the value
            does; ERROR: it is no JSON, or no more.
        start: Offset of its first character; of a key or a string, of the first between the quotes.
        end: Offset behind its last character; likewise.
    """

    kind: Kind
    start: int
    end: int


class _Expected(Enum):
    VALUE = auto()
    VALUE_OR_CLOSE = auto()
    KEY = auto()
    KEY_OR_CLOSE = auto()
    COLON = auto()
    COMMA_OR_CLOSE = auto()


_VALUES = (_Expected.VALUE, _Expected.VALUE_OR_CLOSE)
_KEYS = (_Expected.KEY, _Expected.KEY_OR_CLOSE)
_OPENING = {
    "{": (Kind.OBJECT, "}", _Expected.KEY_OR_CLOSE),
    "[": (Kind.ARRAY, "]", _Expected.VALUE_OR_CLOSE),
}
_CLOSING = {
    "}": (_Expected.COMMA_OR_CLOSE, _Expected.KEY_OR_CLOSE),
    "]": (_Expected.COMMA_OR_CLOSE, _Expected.VALUE_OR_CLOSE),
}


def read_tokens(text: str, position: int) -> Iterator[Token]:
    """The tokens of the value that begins at a position, up to its end, a CUT or an ERROR."""
    closers: list[str] = []
    expected = _Expected.VALUE
    while (match := _TOKEN.match(text, position)) is not None:
        position = match.end()
        group = match.lastindex
        if group is _STRING or group is _UNCLOSED:
            if expected in _KEYS:
                yield Token(Kind.KEY, *match.span(_UNCLOSED))
                expected = _Expected.COLON
            elif expected in _VALUES:
                yield Token(Kind.STRING, *match.span(_UNCLOSED))
                expected = _Expected.COMMA_OR_CLOSE
            else:
                break
            if group is _UNCLOSED:
                is_cut = position >= len(text) - 1  # a backslash may be left
                yield Token(Kind.CUT if is_cut else Kind.ERROR, position, position)
                return
        elif group is _MARK:
            mark = text[position - 1]
            if mark == ":" and expected is _Expected.COLON:
                expected = _Expected.VALUE
            elif mark == "," and closers and expected is _Expected.COMMA_OR_CLOSE:
                expected = _Expected.KEY if closers[-1] == "}" else _Expected.VALUE
            elif mark in _OPENING and expected in _VALUES:
                kind, closer, expected = _OPENING[mark]
                closers.append(closer)
                yield Token(kind, position - 1, position)
            elif closers and mark == closers[-1] and expected in _CLOSING[mark]:
                closers.pop()
                yield Token(Kind.CLOSE, position - 1, position)
                expected = _Expected.COMMA_OR_CLOSE
            else:
                break
        elif group is _WORD and expected in _VALUES:
            yield Token(Kind.WORD, *match.span(_WORD))
            expected = _Expected.COMMA_OR_CLOSE
        elif group is _END:
            yield Token(Kind.CUT, position, position)
            return
        else:
            break
        if not closers:
            return
    yield Token(Kind.ERROR, position, position)
