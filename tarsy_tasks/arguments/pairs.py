"""`key: value` lines and `key=value` pairs: arguments without braces.

Owns where one pair ends and the next begins. A pair is a guess, so the reader gives up when there are two readings. It
knows only the names of the schema, and is linear in the text.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tarsy_tasks.arguments.almost_json import NotJsonError, read_json, read_json_at
from tarsy_tasks.arguments.shape import find_near
from tarsy_tasks.arguments.values import Written, read_scalar, unquoted

__all__ = ["read_pairs"]

_KEY = re.compile(r"""(["'`]|\*\*)?([^\W\d][\w./-]*+)(?(1)(?:["'`]|\*\*))[ \t]*+([:=])[ \t]*+""")
# `==`, `=~`, `=>`, `::`, `:=` are operators, and `://` belongs to a URL.
_OPERATOR = re.compile(r"=[=~>]|:[:=]|://|:\\")
_URI_SCHEMES = {"mailto", "urn", "data", "tel", "arn", "sha256", "sha1", "sha512", "jdbc", "about", "javascript"}
_PORT = re.compile(r"[0-9]{2,5}(?:/\S*)?\s*\Z")
_QUOTED = re.compile(r""""([^"\\]*+(?:\\.[^"\\]*+)*+)"|'([^']*+(?:''[^']*+)*+)'""", re.DOTALL)
_BARE_VALUE = re.compile(r'[^,\n"]*+(?:"[^"\n]*"[^,\n"]*+|"(?![^"\n]*")[^,\n"]*+)*+')
_PLAIN = re.compile(r'[^:="\n]*+')
_BOUNDARY = re.compile(r"[ \t\r]*(?:,|\n|\Z)")
_GAP = re.compile(r"[\s,]*")
_SPACED = re.compile(r"""([^\W\d][\w./-]*+)=("[^"]*"|'[^']*'|[^\s,"'=]\S*)(?:\s+|\Z)""")
_DOCUMENT = re.compile(r"---[ \t]*\r?\n")
_BLOCK = re.compile(r"[|>][+-]?[0-9]?")
_MAX_FAILED_STRUCTURES = 8
_MAX_PAIRS = 300


@dataclass(slots=True)
class _Part:
    """One piece between commas and newlines; without a key it is not a pair."""

    start: int
    end: int
    key: str = ""
    separator: str = ""
    value_start: int = 0
    value: Any = None
    bare: bool = True
    continued: bool = False
    open_brackets: int = 0


def read_pairs(text: str, properties: Collection[str]) -> dict[str, Any] | None:
    """The pairs of a text that consists of pairs, or None.

    Without names every piece between commas and newlines must be a pair. If the tool's properties are known, a piece
    that names none of them continues the value before it, if it has the same shape or is on the same line.

    Returns:
        Values as `Written` where they were bare, else text.
    """
    text = _DOCUMENT.sub("", text, count=1)
    if spaced := _read_spaced(text):
        return spaced
    pairs: dict[str, _Part] = {}
    last: _Part | None = None
    for part in _parts(text):
        if part is _BROKEN:
            return None
        if last is not None and _continues(text, last, part, properties):
            last.open_brackets += _count_open(text, part.start, part.end)
            last.end, last.continued = part.end, True
            continue
        if not part.key or part.key in pairs or (properties and last is None and part.key not in properties):
            return None
        pairs[part.key] = last = part
    for part in pairs.values():
        if part.continued:
            whole = text[part.value_start : part.end].rstrip()
            part.value = Written(whole, whole)
    return {key: part.value for key, part in pairs.items()} or None


_BROKEN = _Part(0, 0)


def _parts(text: str) -> Iterator[_Part]:
    failed_structures = pairs = 0
    at = _GAP.match(text, 0).end()  # type: ignore[union-attr]
    while at < len(text):
        part = _pair(text, at) or _Part(at, at)
        pairs += bool(part.key)
        first = text[part.value_start : part.value_start + 1] if part.key else ""
        if not part.key:
            part.end = _bare_end(text, at)
        elif first in ('"', "'"):
            _take_quoted(text, part)
        elif first in ("{", "["):
            failed_structures += not _take_structure(text, part)
        else:
            _take_bare(text, part)
        if part.end < 0 or failed_structures > _MAX_FAILED_STRUCTURES or pairs > _MAX_PAIRS:
            yield _BROKEN
            return
        yield part
        at = _GAP.match(text, part.end).end()  # type: ignore[union-attr]


def _pair(text: str, at: int) -> _Part | None:
    found = _KEY.match(text, at)
    if found is None or _OPERATOR.match(text, found.start(3)):
        return None
    key, separator, value_start = found[2], found[3], found.end()
    if separator == ":" and value_start == found.end(3):
        port = ("." in key or key == "localhost") and _PORT.match(text, value_start, value_start + 64)
        if key.lower() in _URI_SCHEMES or port:
            return None
    return _Part(at, at, key, separator, value_start)


def _bare_end(text: str, at: int) -> int:
    """The end of text that is not a pair: pieces without a separator are taken together."""
    plain = _PLAIN.match(text, at)
    if plain and (comma := text.rfind(",", at, plain.end())) > at:
        return comma
    found = _BARE_VALUE.match(text, at)
    return max(found.end(), at + 1) if found else at + 1


def _take_bare(text: str, part: _Part) -> None:
    found = _BARE_VALUE.match(text, part.value_start)
    part.end = found.end() if found else part.value_start
    value = text[part.value_start : part.end].strip()
    inner = unquoted(value)
    part.value = Written(read_scalar(value), value) if inner is None else inner
    part.bare = inner is None
    part.open_brackets = _count_open(text, part.value_start, part.end)
    # Nothing, Base64 padding, or the sign of a block that was cut off.
    if not value.strip("=") or _BLOCK.fullmatch(value):
        part.end = -1


def _count_open(text: str, start: int, end: int) -> int:
    return sum(text.count(begin, start, end) for begin in "([{") - sum(text.count(close, start, end) for close in ")]}")


def _take_quoted(text: str, part: _Part) -> None:
    found = _QUOTED.match(text, part.value_start)
    if found is None:
        part.end = -1
    elif boundary := _BOUNDARY.match(text, found.end()):
        part.end, part.bare = boundary.end(), False
        part.value = found[1] or (found[2] or "").replace("''", "'")
        if found[1]:
            with suppress(NotJsonError):
                part.value = read_json(found[0])
    else:
        _take_bare(text, part)


def _take_structure(text: str, part: _Part) -> bool:
    try:
        value, end = read_json_at(text, part.value_start)
    except NotJsonError:
        _take_bare(text, part)
        return False
    if boundary := _BOUNDARY.match(text, end):
        part.value = Written(value, text[part.value_start : end])
        part.end, part.bare = boundary.end(), False
    else:
        _take_bare(text, part)
    return True


def _continues(text: str, last: _Part, part: _Part, properties: Collection[str]) -> bool:
    """Whether `part` belongs to the value of `last`."""
    if not last.bare or part.key in properties:
        return False
    between = text[last.end : part.start]
    if "\n" in between and not between.endswith((" ", "\t")):
        return False
    if not part.key:
        # Without names any remark after a comma would become part of an argument.
        return last.key in properties
    if "\n" not in between and last.open_brackets > 0:
        return True  # the comma between the arguments of a function
    if "," in between and "\n" not in between and last.key in properties:
        # `title: Crash, error: 500` may be two pairs; a text of several words, or of the only property, continues.
        words = text.find(" ", last.value_start, last.end) >= 0
        if words or len(properties) == 1:
            similar = [name for name in properties if name[0:1].lower() == part.key[0].lower()]
            if not similar or find_near(part.key, similar) is None:
                return True
    if part.separator == "=" and between == "," and last.key in properties:
        return text.find("=", last.value_start, last.end) >= 0  # a label selector: `kubectl get pods -l a=b,c=d`
    inner = _pair(text, last.value_start)
    return inner is not None and inner.separator == part.separator and (last.separator == ":" or last.key in properties)


def _read_spaced(text: str) -> dict[str, Any] | None:
    """`a=1 b="x y"`: pairs without space around `=`, separated by spaces only."""
    pairs: dict[str, Any] = {}
    at = 0
    while at < len(text):
        found = _SPACED.match(text, at)
        if found is None or found[1] in pairs or found[2].endswith((",", ";")):
            return None
        value = found[2]
        quoted = value[0] in "\"'"
        inner = value[1:-1] if quoted else unquoted(value)
        pairs[found[1]] = Written(read_scalar(value), value) if inner is None else inner
        at = found.end()
    return pairs if len(pairs) > 1 and "\n" not in text else None
