"""Kubernetes Secrets: every value under `data` and `stringData` is secret, whatever its name.

Owns the rule, and finding it in YAML: line by line, so that it also works for a document that was cut off. `kind` may
come last, be quoted or followed by a comment, or be missing, as in the items of a SecretList. `json_text` uses the
rule, too.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.search import Places
from tarsy_tasks.masking.values import is_made_up, looks_random

__all__ = ["DATA_KEYS", "LIST_KIND", "SECRET_KIND", "STRING_DATA", "are_encoded", "find_in_yaml", "find_inline"]

SECRET_KIND = "Secret"  # noqa: S105
LIST_KIND = "SecretList"
STRING_DATA = "stringData"
DATA_KEYS = frozenset({"data", STRING_DATA})

_BEFORE = r"[ \t]*(?:-[ \t]+)*"
_kinds = Places([rf"(?m:^){_BEFORE}[\"']?kind[\"']?[ \t]*:[ \t]"])
_datas = Places([rf"(?m:^){_BEFORE}[\"']?(?:data|stringData)[\"']?[ \t]*:(?:\s|$)"])
_documents = Places([r"(?m:^)(?:---|\.\.\.)(?:\s|$)"])
_KIND = re.compile(rf"(?P<lead>{_BEFORE})[\"']?kind[\"']?[ \t]*:[ \t]+(?:!!str[ \t]+)?[\"']?(?P<kind>\w+)")
_DATA = re.compile(rf"(?P<lead>{_BEFORE})[\"']?(?:data|stringData)[\"']?[ \t]*:(?P<rest>[^\r\n]*)")
_inline_secrets = Places(
    [r"[{,\[ \t(]\\*[\"']?[Kk]ind\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?Secret(?:List)?\\*[\"']?[ \t]*[,})\] ]"]
)
_INLINE_DATA = re.compile(r"(?:[Dd]ata|[Ss]tringData)\\*[\"']?[ \t]*[:=][ \t]*(?:map)?(?:\[\w+\][\[\]\w]*)?(?=[{\[])")
_BRACKETS = re.compile(r"[{}\[\]\n]")
_INLINE_VALUE = re.compile(rf"[:=][ \t]*\\*[\"']?(?!{MASK})[^\s\"'\\]")
_INLINE_LIMIT = 64 * 1024
_BLANKS = re.compile(r"[ \t]*")
_DASHES = re.compile(r"(?:-[ \t]+)*")
_KEY = re.compile(r"[ \t]*(?:-[ \t]+)*(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'{}\[\]|>#][^:\n]*):(?=\s|$)[ \t]*")
_CONTENT = re.compile(r"[ \t]*(?:[-?:][ \t]+)*")
_BLOCK = re.compile(r"[|>][+\-]?\d?[+\-]?[ \t]*(?:#.*)?")
_EMPTY = frozenset({"", "null", "~", "{}", '""', "''", "[]"})
_REFERENCE = re.compile(r"\$\{[\w:\-]+\}|\{\{[^{}\n]*\}\}")
"""Placeholders of a template."""
_WORD = re.compile(r"[^\s/:@?&=\"']+")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{4,}={0,2}")


class _Line(NamedTuple):
    """A line of YAML; `column` is that of its key, after the dashes of list items."""

    start: int
    end: int
    indent: int
    column: int

    @property
    def is_blank(self) -> bool:
        return self.start + self.indent >= self.end


class _Document:
    """One document. The text after `last_key`, its last line with a key, is not YAML."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text = text
        self.lines = list(_lines(text, start, end))
        self._index = {line.start: index for index, line in enumerate(self.lines)}
        self._mappings: dict[int, range] = {}
        keys = (index for index, line in enumerate(self.lines) if _KEY.match(text, line.start, line.end))
        self.last_key = max(keys, default=-1)

    def mapping(self, match: re.Match[str]) -> range:
        """The lines of the mapping that contains a key."""
        index, column = self._index[match.start()], len(match["lead"])
        known = self._mappings.get(column)
        if known is None or index not in known:
            known = self._mappings[column] = self._find_mapping(index, column)
        return known

    def _find_mapping(self, index: int, column: int) -> range:
        first = last = index
        while first and not self._begins_item(first, column) and self._is_inside(first - 1, column):
            first -= 1
        while last + 1 < len(self.lines) and self.lines[last + 1].indent >= column:
            last += 1
        while last + 1 < len(self.lines) and self.lines[last + 1].is_blank:
            last += 1
        return range(first, last + 1)

    def _begins_item(self, index: int, column: int) -> bool:
        line = self.lines[index]
        return line.indent < column == line.column

    def _is_inside(self, index: int, column: int) -> bool:
        line = self.lines[index]
        return line.is_blank or line.indent >= column or self._begins_item(index, column)

    def below(self, match: re.Match[str]) -> Iterator[_Line]:
        """The lines of a key's value."""
        column = len(match["lead"])
        for index in range(self._index[match.start()] + 1, len(self.lines)):
            line = self.lines[index]
            if line.is_blank:
                continue
            if line.indent < column or line.indent == column == line.column:
                return
            yield line


def are_encoded(values: Sequence[str]) -> bool:
    """Whether all of them are base64 of text or of random data, as the data of a Secret is. The last may be cut off."""
    if not values:
        return False
    *whole, last = values
    return all(map(_is_encoded, whole)) and (_is_encoded(last) or (bool(whole) and _BASE64.fullmatch(last) is not None))


def _is_encoded(value: str) -> bool:
    if len(value) % 4 or not _BASE64.fullmatch(value):
        return False
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    return decoded.decode("ascii", "replace").isprintable() or (len(value) >= 32 and looks_random(value[:64]))


def find_in_yaml(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text that is or contains YAML, in no order; `projection` is `search.project(text)`."""
    if _datas.are_in(projection):
        borders = [0, *_documents.find(projection), len(text)]
        for start, end in pairwise(borders):
            yield from _find_in_document(text, projection, start, end)


def find_inline(text: str, projection: bytes) -> Iterator[Edit]:
    """The same for a Secret in one line of YAML, and for printed data structures of programs."""
    position = 0
    for place in _inline_secrets.find(projection):
        start, end = max(position, place - _INLINE_LIMIT), min(len(text), place + _INLINE_LIMIT)
        position = max(position, end)
        while (data := _INLINE_DATA.search(text, start, end)) is not None:
            start = _end_of_brackets(text, data.end(), end)
            if _INLINE_VALUE.search(text, data.end(), start):
                yield Edit(data.end(), start)


def _end_of_brackets(text: str, position: int, limit: int) -> int:
    """The end of the bracket at a position, or the end of its line."""
    depth = 0
    for bracket in _BRACKETS.finditer(text, position, limit):
        if bracket[0] == "\n":
            return bracket.start()
        depth += 1 if bracket[0] in "{[" else -1
        if not depth:
            return bracket.end()
    return limit


def _find_in_document(text: str, projection: bytes, start: int, end: int) -> Iterator[Edit]:
    data = [match for place in _datas.find(projection, start, end) if (match := _DATA.match(text, place))]
    kinds = [match for place in _kinds.find(projection, start, end) if (match := _KIND.match(text, place))]
    is_cut = end == len(text) and not any(not kind["lead"] for kind in kinds)
    if not data or not (is_cut or end == len(text) or any(kind["kind"] in (SECRET_KIND, LIST_KIND) for kind in kinds)):
        return
    document = _Document(text, start, end)
    kind_of: dict[tuple[int, int], str] = {}
    for kind in kinds:
        kind_of[len(kind["lead"]), document.mapping(kind).start] = kind["kind"]
    lists = [document.mapping(kind) for kind in kinds if kind["kind"] == LIST_KIND]
    for each in data:
        mapping = document.mapping(each)
        kind = kind_of.get((len(each["lead"]), mapping.start))
        index = mapping.start
        is_secret = kind == SECRET_KIND or any(index in secrets for secrets in lists)
        if is_secret or kind is None:
            edits = list(_find_values(document, each))
            at_end = mapping.stop > document.last_key and end == len(text)
            if is_secret or ((is_cut or at_end) and are_encoded([_bare(text, edit) for edit in edits])):
                yield from edits


def _find_values(document: _Document, data: re.Match[str]) -> Iterator[Edit]:
    """The value of a key, in its line and below it."""
    text = document.text
    rest = data["rest"].partition(" #")[0].strip()
    if rest not in _EMPTY and not rest.startswith("#"):
        start = data.start("rest") + data["rest"].index(rest)
        yield from _mask(text, start, start + len(rest))
    block_indent: int | None = None
    for line in document.below(data):
        if block_indent is not None and line.indent > block_indent:
            yield from _mask(text, line.start + line.indent, line.end)
            continue
        key = _KEY.match(text, line.start, line.end) or _CONTENT.match(text, line.start, line.end)
        start = key.end() if key else line.start
        value = text[start : line.end].strip()
        block_indent = line.indent if _BLOCK.fullmatch(value) else None
        if block_indent is None and value not in _EMPTY and not value.startswith("#"):
            yield from _mask(text, start, line.end)


def _mask(text: str, start: int, end: int) -> Iterator[Edit]:
    while end > start and text[end - 1] in " \t\r":
        end -= 1
    quote = text[start] if text[start] in "\"'" else ""
    if text[start:end] not in (MASK, f"{quote}{MASK}{quote}") and not _is_template(text[start:end]):
        yield Edit(start, end, f"{quote}{MASK}{quote}")


def _is_template(value: str) -> bool:
    """Whether a value is a template placeholder, and nothing else in it is secret."""
    rest, filled = _REFERENCE.subn(" ", value)
    return filled > 0 and not any(looks_random(word) or is_made_up(word) for word in _WORD.findall(rest))


def _bare(text: str, edit: Edit) -> str:
    return text[edit.start : edit.end].strip("\"'")


def _lines(text: str, start: int, stop: int) -> Iterator[_Line]:
    while start < stop:
        end = text.find("\n", start, stop)
        end = stop if end < 0 else end
        blanks = _BLANKS.match(text, start, end)
        first = blanks.end() if blanks else start
        dashes = _DASHES.match(text, first, end)
        yield _Line(start, end, first - start, (dashes.end() if dashes else first) - start)
        start = end + 1
