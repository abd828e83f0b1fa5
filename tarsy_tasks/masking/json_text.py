"""Secrets in JSON anywhere in a text: a whole document, lines of it, in a log line, in a string, cut off.

Owns where it begins and ends, and which parts are read. Only values change, so JSON stays JSON with its numbers and its
layout. The masker searches the content of strings, as texts of their own.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, cast

from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.json_frames import Frame, is_relevant_name, rate
from tarsy_tasks.masking.json_reader import Kind, Token, read_tokens
from tarsy_tasks.masking.json_values import JsonValues
from tarsy_tasks.masking.kubernetes import DATA_KEYS, LIST_KIND, SECRET_KIND, STRING_DATA, are_encoded
from tarsy_tasks.masking.rules.answers import RESOURCES, is_value_key
from tarsy_tasks.masking.search import Search

__all__ = ["JsonText", "confine", "find_json", "may_hold_json"]

_starts = Search(
    [
        r"\{\s*[\"}]",
        r"\[\s*(?:[\"{\[\]]|(?:-?\d[\d.eE+\-]*|true|false|null)\s*[,\]])",
        r"(\")\s*[{\[]\s*\\\"",  # in a string of something else
    ]
)
_OBJECT, _ARRAY, _CLOSE, _KEY, _STRING, _WORD = Kind.OBJECT, Kind.ARRAY, Kind.CLOSE, Kind.KEY, Kind.STRING, Kind.WORD
_PLAIN = re.compile(r"[A-Za-z_.\-/]{0,30}")
"""A name."""

_NAME_LIMIT = 100
_NAME_BEFORE = re.compile(r"\"([^\"\\\n]*)\"[ \t]*:\s*$")
_STRING_ALONE = re.compile(r"[ \t\r\n]*+\".*\"[ \t\r\n]*+\Z", re.DOTALL)
_scan_json = cast("Any", json.JSONDecoder()).scan_once
_SKIP_LIMIT = 2 * 1024 * 1024
"""In a text up to this length, stretches without a hit are skipped in C, which holds the GIL; in a longer one they are
read."""
_FAILURES_LIMIT = 50
"""Text that is not JSON costs more there, because its error message counts all lines before it."""
_SHORTEST_SKIP, _LONGEST_SKIP = 128, 64 * 1024
"""Skipping shorter ones saves nothing."""
_RESOURCE_DEPTH = 5
_ATTEMPTS = 2
"""Before each hit; the value around it cannot be skipped."""


class JsonText(NamedTuple):
    """One stretch of JSON, and the secrets in it."""

    start: int
    end: int
    edits: list[Edit]


def may_hold_json(text: str, projection: bytes) -> bool:
    """Whether a search for JSON is worthwhile."""
    has_bracket = b"{" in projection or b"[" in projection
    return (has_bracket and _starts.next(projection) is not None) or _STRING_ALONE.match(text) is not None


def find_json(
    text: str, projection: bytes, hits: Sequence[int], mask_string: Callable[[str], str]
) -> Iterator[JsonText]:
    """The stretches of JSON that may contain a secret, from left to right. There may be one at each of `hits`, which
    are in order; `mask_string` masks the content of a string."""
    if _STRING_ALONE.match(text):
        reader = _Reader(text, hits, 0, mask_string)
        if reader.read(0) == len(text.rstrip()):
            yield JsonText(0, len(text), reader.edits)
            return
    position, failures = 0, 0
    while (found := _starts.next(projection, position)) is not None:
        _, start, _ = found
        name = _NAME_BEFORE.search(text, max(0, start - _NAME_LIMIT), start)  # of a part of a document
        next_hit = bisect_left(hits, name.start() if name else start)
        if next_hit == len(hits):
            return
        if failures < _FAILURES_LIMIT and len(text) <= _SKIP_LIMIT:
            end = _end_of_json(text, start)
            failures += not end
            if 0 < end <= hits[next_hit]:
                position = _skip_lines(text, end, hits[next_hit])
                continue
        reader = _Reader(text, hits, next_hit, mask_string, name[1] if name else "")
        position = max(reader.read(start), start + 1)
        if reader.is_document and hits[next_hit] < position:
            yield JsonText(start, position, reader.edits)


def _skip_lines(text: str, end: int, hit: int) -> int:
    """The end of the last JSON line that follows a value and comes before a hit."""
    while text.startswith("\n{", end) and 0 < (next_end := _end_of_json(text, end + 1)) <= hit:
        end = next_end
    return end


def _end_of_json(text: str, start: int) -> int:
    """The end of the value that begins there; 0 if it is not JSON."""
    try:
        return _scan_json(text, start)[1]
    except (ValueError, StopIteration, RecursionError):
        return 0


class _Reader:
    """Applies the rules to one value."""

    def __init__(
        self, text: str, hits: Sequence[int], next_hit: int, mask_string: Callable[[str], str], name: str = ""
    ) -> None:
        self._text = text
        self._values = JsonValues(text)
        self._hits = hits
        self._next = next_hit
        self._hit = hits[next_hit] if next_hit < len(hits) else len(text)
        self._name = name
        self._mask_string = mask_string
        self._frames: list[Frame] = []
        self._is_json = True
        self._has_object = False
        self._has_resource = False
        self._attempts = _ATTEMPTS

    @property
    def edits(self) -> list[Edit]:
        """The secrets in it, from left to right."""
        return sorted(self._values.edits.values())

    @property
    def is_document(self) -> bool:
        """Whether it was JSON, and not just `["x"]`, which is an index in most languages."""
        return self._is_json and (self._has_object or bool(self._values.edits))

    def read(self, position: int) -> int:
        """Read the value that begins there; returns where it ends, or where it stops being JSON."""
        token = Token(Kind.ERROR, position, position)
        for token in read_tokens(self._text, position, self._skip):
            kind = token.kind
            if kind is _KEY:
                self._read_key(token)
            elif kind is _STRING or kind is _WORD:
                self._read_scalar(token)
            elif kind is _CLOSE:
                self._close(self._frames.pop())
            elif kind is _OBJECT or kind is _ARRAY:
                self._open(is_object=kind is _OBJECT)
            elif kind is Kind.CUT:
                self._give_up(is_json=True)
            else:
                self._is_json = self._give_up(is_json=False)
        return token.end + (token.kind is _STRING)

    def _skip(self, start: int) -> int:
        """The end of an object or array, if nothing in it can be a secret; else its beginning."""
        if self._hit < start:
            self._pass_hits(start)
        hit = self._hit
        if hit - start < _SHORTEST_SKIP or not self._attempts or not self._frames or self._is_of_use():
            return start
        stretch = self._text[start : min(hit, start + _LONGEST_SKIP)]
        if not (length := _end_of_json(stretch, 0)):
            self._attempts -= 1
            return start
        self._has_object = self._has_object or "{" in stretch[:length]
        return start + length

    def _is_of_use(self) -> bool:
        """Whether the next value belongs to the data of a Secret, or is under a name that matters."""
        outer = self._frames[-1]
        name = outer.name_below
        if name == "keys" or self._resource() is not None:
            return True
        return outer.owner is not None or (outer.is_object and name in DATA_KEYS) or is_relevant_name(name)

    def _pass_hits(self, position: int) -> None:
        """Skip the hits before a position."""
        self._next = bisect_left(self._hits, position, self._next)
        self._hit = self._hits[self._next] if self._next < len(self._hits) else len(self._text)
        self._attempts = _ATTEMPTS

    def _open(self, *, is_object: bool) -> None:
        outer = self._frames[-1] if self._frames else None
        self._frames.append(Frame(is_object=is_object, outer=outer, name=self._name))
        self._has_object = self._has_object or is_object
        if outer is not None and outer.is_object and outer.key == STRING_DATA:
            outer.is_secret = True

    def _close(self, frame: Frame) -> None:
        outer = self._frames[-1] if self._frames else None
        kind = self._values.said(frame.scalars.get("kind"))
        if frame.is_secret or kind in (SECRET_KIND, LIST_KIND):
            self._values.mask_all(frame.data)
        if kind == LIST_KIND:
            self._values.mask_all(frame.undecided)
        self._mask_by_others(frame)
        if outer is not None and not kind:
            outer.undecided += frame.data + frame.undecided

    def _mask_by_others(self, frame: Frame) -> None:
        """Mask values that other keys of the object mark as secret."""
        if frame.has_value_key:
            self._values.mask_pair(frame)
        if frame.arguments:
            self._values.mask_arguments(frame.arguments)
        if frame.has_value_key or self._has_resource:
            self._values.mask_answer(frame, self._resource())

    def _give_up(self, *, is_json: bool) -> bool:
        """The text ends, or is no longer JSON: there may be open Secrets whose `kind` did not come. Returns whether to
        treat it as JSON."""
        while self._frames:
            frame = self._frames.pop()
            if is_json:
                self._mask_by_others(frame)
            data = frame.data + frame.undecided
            kind = self._values.said(frame.scalars.get("kind"))
            if kind in (SECRET_KIND, LIST_KIND) or (
                not kind and are_encoded([self._text[each.start : each.end] for each in data])
            ):
                is_json = is_json or bool(data)
                self._values.mask_all(data)
            elif self._frames and not kind:
                self._frames[-1].undecided += data
        return is_json

    def _read_key(self, token: Token) -> None:
        frame = self._frames[-1]
        frame.key = self._values.said(token)
        frame.rating = rate(frame.key)
        if self._hit < token.end:
            self._search(token)

    def _read_scalar(self, token: Token) -> None:
        is_masked = False
        if self._frames:
            frame = self._frames[-1]
            if frame.owner is not None:
                frame.owner.data.append(token)
            if frame.is_object:
                name = frame.key
                frame.scalars[name] = token
                if is_value_key(name):
                    frame.has_value_key = True
                if name == "type" and self._text[token.start : token.end] in RESOURCES:
                    self._has_resource = True
                if name in DATA_KEYS:
                    frame.data.append(token)  # no mapping, but the same key
                is_masked = frame.rating is not None and self._values.mask_as(token, frame.rating, name)
                if not is_masked and frame.is_name_relevant:
                    is_masked = self._values.mask_below(token, frame)
            elif token.kind is _STRING:
                is_masked = self._values.mask_item(token, frame)
        if not is_masked and token.kind is _STRING and self._hit < token.end:
            self._search(token)

    def _resource(self) -> str | None:
        """The type of the current Terraform resource, if it may contain secrets."""
        for outer in reversed(self._frames[-_RESOURCE_DEPTH:] if self._has_resource else ()):
            kind = outer.scalars.get("type")
            if kind is not None and (said := self._text[kind.start : kind.end]) in RESOURCES:
                return said
        return None

    def _search(self, token: Token) -> None:
        """Mask the content of a string, if there may be a secret in it."""
        if self._hit < token.start - 1:
            self._pass_hits(token.start - 1)  # what begins a line may begin with its quote
        if self._hit < token.end:
            said = self._values.said(token)
            if not _PLAIN.fullmatch(said):
                self._values.replace(token, self._mask_string(said))


def confine(text: str, stretch: JsonText, edits: Sequence[Edit]) -> Iterator[Edit]:
    """Edits in a stretch of JSON, from left to right, that keep it valid: within one string as they are, else the
    values that they touch are masked whole."""
    first = 0
    for token in read_tokens(text, stretch.start):
        if token.kind not in (_STRING, _WORD, _KEY):
            continue
        while first < len(edits) and edits[first].end <= token.start:
            first += 1
        touching = list(takewhile(lambda edit, end=token.end: edit.start < end, edits[first : first + 1000]))
        is_string = token.kind is not _WORD
        if is_string and all(_lies_in(text, edit, token) for edit in touching):
            yield from touching
        elif touching:
            yield Edit(token.start, token.end, MASK if is_string else f'"{MASK}"')


def _lies_in(text: str, edit: Edit, token: Token) -> bool:
    within = token.start <= edit.start and edit.end <= token.end
    return within and "\\" not in text[max(token.start, edit.start - 6) : min(token.end, edit.end + 1)]
