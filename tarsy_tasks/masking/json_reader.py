"""JSON inside a text: what opens, what closes, and where each key and value is.

Owns the grammar. It reads one value to its end, or to where the text was cut off, in one pass and without recursion;
the text need not be valid JSON.
"""

import re
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import NamedTuple

__all__ = ["Kind", "Token", "read_tokens"]

_BLANKS = r"[ \t\r\n]*+"
_TOKEN = re.compile(
    rf"{_BLANKS}(?:\"((?:[^\"\\\x00-\x1f]++|\\[^\x00-\x1f])*+)(?:\"(?:{_BLANKS}(?:(:)|(,))|())|)"
    rf"|(-?\d[\d.eE+\-]*+|true|false|null)(?:{_BLANKS}(,))?|([}}\]])(?:{_BLANKS}(,))?|([{{\[])|(,)|(\Z))"
)
_UNCLOSED, _NAME, _STRING_AND_COMMA, _STRING, _WORD, _WORD_AND_COMMA, _CLOSE, _CLOSE_AND_COMMA, _OPEN, _COMMA, _END = (
    range(1, 12)
)
"""The last matched group is the kind of token: a match includes the separator before the next one."""
_STRINGS = frozenset({_UNCLOSED, _NAME, _STRING_AND_COMMA, _STRING})
_COMMAS = frozenset({_STRING_AND_COMMA, _WORD_AND_COMMA, _CLOSE_AND_COMMA})


class Kind(Enum):
    """OBJECT and ARRAY open one, CLOSE closes the innermost; CUT: the text ends before the value does; ERROR: it is not
    JSON, or no longer."""

    OBJECT = auto()
    ARRAY = auto()
    CLOSE = auto()
    KEY = auto()
    STRING = auto()
    WORD = auto()
    CUT = auto()
    ERROR = auto()


class Token(NamedTuple):
    """A token and its position: of a key or a string, that between the quotes."""

    kind: Kind
    start: int
    end: int


# To look up a member takes as long as the rest of a step.
_OBJECT, _ARRAY, _CLOSED, _KEY, _TEXT, _SCALAR, _CUT, _ERROR = Kind
_FOR_VALUE, _FOR_VALUE_OR_CLOSE, _FOR_KEY, _FOR_KEY_OR_CLOSE, _FOR_COLON, _FOR_COMMA_OR_CLOSE = range(6)
_VALUES = (_FOR_VALUE, _FOR_VALUE_OR_CLOSE)
_KEYS = (_FOR_KEY, _FOR_KEY_OR_CLOSE)
_OPENING = {"{": (_OBJECT, "}", _FOR_KEY_OR_CLOSE), "[": (_ARRAY, "]", _FOR_VALUE_OR_CLOSE)}
_CLOSING = {"}": (_FOR_COMMA_OR_CLOSE, _FOR_KEY_OR_CLOSE), "]": (_FOR_COMMA_OR_CLOSE, _FOR_VALUE_OR_CLOSE)}


def read_tokens(text: str, position: int, skip: Callable[[int], int] = lambda start: start) -> Iterator[Token]:
    """The tokens of the value at a position, up to its end, a CUT or an ERROR. `skip` is called at the beginning of
    each object and array, and returns where to continue: behind it or inside."""
    closers: list[str] = []
    expected = _FOR_VALUE
    while (match := _TOKEN.match(text, position)) is not None:
        position = match.end()
        group = match.lastindex
        if group in _STRINGS:
            start, end = match.span(_UNCLOSED)
            if expected in _KEYS:
                yield Token(_KEY, start, end)
                if group is _NAME:
                    expected = _FOR_VALUE
                    continue
                expected = _FOR_COLON
            elif expected in _VALUES:
                yield Token(_TEXT, start, end)
                expected = _FOR_COMMA_OR_CLOSE
            else:
                break
            if group is _UNCLOSED:
                is_cut = position >= len(text) - 1  # a backslash may be left
                yield Token(_CUT if is_cut else _ERROR, position, position)
                return
        elif group is _OPEN and expected in _VALUES:
            if (end := skip(position - 1)) >= position:
                position, expected = end, _FOR_COMMA_OR_CLOSE
            else:
                kind, closer, expected = _OPENING[text[position - 1]]
                closers.append(closer)
                yield Token(kind, position - 1, position)
                continue
        elif group is _CLOSE or group is _CLOSE_AND_COMMA:
            start, end = match.span(_CLOSE)
            if not closers or text[start] != closers[-1] or expected not in _CLOSING[closers[-1]]:
                break
            closers.pop()
            yield Token(_CLOSED, start, end)
            expected = _FOR_COMMA_OR_CLOSE
        elif (group is _WORD or group is _WORD_AND_COMMA) and expected in _VALUES:
            yield Token(_SCALAR, *match.span(_WORD))
            expected = _FOR_COMMA_OR_CLOSE
        elif group is _END:
            yield Token(_CUT, position, position)
            return
        elif group is not _COMMA or expected is not _FOR_COMMA_OR_CLOSE:
            break
        if not closers:
            return
        if group is _COMMA or group in _COMMAS:
            if expected is not _FOR_COMMA_OR_CLOSE:
                break
            expected = _FOR_KEY if closers[-1] == "}" else _FOR_VALUE
        elif group is _NAME:
            break
    yield Token(_ERROR, position, position)
