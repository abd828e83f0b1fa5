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
    r"[ \t\r\n]*+(?:\"(?P<string>(?:[^\"\\\x00-\x1f]++|\\[^\x00-\x1f])*+)(?P<closing>\")?|(?P<mark>[{}\[\]:,])"
    r"|(?P<word>-?\d[\d.eE+\-]*+|true|false|null)|(?P<end>\Z))"
)


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
        mark = match["mark"]
        if match["string"] is not None and expected in (*_KEYS, *_VALUES):
            is_key = expected in _KEYS
            yield Token(Kind.KEY if is_key else Kind.STRING, *match.span("string"))
            expected = _Expected.COLON if is_key else _Expected.COMMA_OR_CLOSE
            if match["closing"] is None:
                is_cut = position >= len(text) - 1  # a backslash may be left
                yield Token(Kind.CUT if is_cut else Kind.ERROR, position, position)
                return
        elif match["word"] is not None and expected in _VALUES:
            yield Token(Kind.WORD, *match.span("word"))
            expected = _Expected.COMMA_OR_CLOSE
        elif mark in _OPENING and expected in _VALUES:
            kind, closer, expected = _OPENING[mark]
            closers.append(closer)
            yield Token(kind, match.start("mark"), position)
        elif closers and mark == closers[-1] and expected in _CLOSING[mark]:
            closers.pop()
            yield Token(Kind.CLOSE, match.start("mark"), position)
            expected = _Expected.COMMA_OR_CLOSE
        elif mark == "," and closers and expected is _Expected.COMMA_OR_CLOSE:
            expected = _Expected.KEY if closers[-1] == "}" else _Expected.VALUE
        elif mark == ":" and expected is _Expected.COLON:
            expected = _Expected.VALUE
        elif match["end"] is not None:
            yield Token(Kind.CUT, position, position)
            return
        else:
            break
        if not closers:
            return
    yield Token(Kind.ERROR, position, position)
