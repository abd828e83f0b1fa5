"""Secrets in the columns and rows of tables: aligned as by kubectl, with `|` as in Markdown and SQL, or as CSV.

Owns the syntax of tables. A column is secret because of its heading, a cell because of the one before it.
"""

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.names import STEMS, Strength, rate_name
from tarsy_tasks.masking.rules.vocabulary import NESTED_VALUE_KEYS, PAIR_VALUE_KEYS, PROSE_WORDS
from tarsy_tasks.masking.search import Places
from tarsy_tasks.masking.values import is_code, is_made_up, is_prose, is_secret, looks_random

__all__ = ["HEADINGS", "find_in_tables"]

_LINE_LIMIT = 4096
_SEARCHED_ROWS = 50
"""The number of rows without a secret after which a table is abandoned: a text of nothing but headings must not take
long."""
HEADINGS = (
    rf"(?:{STEMS}|_key\b)[\w.\-]*(?:[ \t]?\\*[\"'`*])*(?:[ \t]*[|,;?]|[ \t]{{2,}}\S|\t|[ \t\r\\]*(?:\n|$))"
    r"|\bPermissions[\s|?\"']+Value\b"
)
"""A name in a cell; a projection has `?` for characters that are not ASCII, such as those of boxes."""
_HEADINGS_OF_KEYS = ["KeyName", "Permissions", "Value"]
"""`az storage account keys list`: the last is one."""

_search = Places([HEADINGS])
_BARS = "|\u2502\u2503\u2551"
_BAR = re.compile(f"[{_BARS}]")
_CELLS = {
    "|": re.compile(rf"[^{_BARS}\n]+"),
    ",": re.compile(r'"[^"\n]*"|[^,\n]+|(?<=,)(?=,|$)'),
    ";": re.compile(r'"[^"\n]*"|[^;\n]+|(?<=;)(?=;|$)'),
    "\t": re.compile(r"[^\t\n]+"),
    "  ": re.compile(r"\S+(?: \S+)*"),
    " ": re.compile(r"\S+"),
}
_ROWS_ABOVE = 20
_TYPES = frozenset(
    {"string", "str", "int", "integer", "bool", "boolean", "duration", "none", "null", "required", "optional"}
)
"""Words in a reference table about a name, which is then not a heading."""
_FILE = re.compile(r"[\w@.\-]+/[\w@./\-]+\.[a-z]{1,4}")
_NAME_LIKE = re.compile(r"[a-z]+(?:[-_.][a-z]+)+|[A-Z]+\d?(?:[ _][A-Z]+\d?)*")
_ASSIGNMENTS = ("=", ":=", ":")
"""The second column of aligned settings."""
_CAPITALS = re.compile(r"[A-Z_]{2,}(?: [A-Z_]{2,})+[ \r]*")
"""A heading with one blank between its words."""
_RULE = re.compile(r"[\s|+:=\-\u2500-\u257f]*")
_HEADINGS = {
    mark: re.compile(
        r"[A-Za-z][\w.\-]{0,40}(?: [\w.\-]{1,40}){0,3}"
        if mark in ",;"
        else r"[A-Za-z][\w()/\-]{0,40}(?: [\w()/\-]{1,40}){0,2}"
    )
    for mark in _CELLS
}
_BLANKS = " \t\r\"'`"
_EMPHASIS = _BLANKS + "*#"


def find_in_tables(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, from left to right; `projection` is `search.project(text)`."""
    position = rows_end = 0
    while (found := _search.next(projection, position)) is not None:
        line_start = text.rfind("\n", max(0, found - _LINE_LIMIT), found) + 1
        line_end = text.find("\n", found, found + _LINE_LIMIT)
        line_end = min(len(text), found + _LINE_LIMIT) if line_end < 0 else line_end
        position = max(found + 1, line_end)
        table = _Table.read(text, line_start, line_end) if found - line_start < _LINE_LIMIT else None
        if table is None:
            continue
        edits: list[Edit] = []
        above = table.above(text, line_start)
        is_row = above is not None or table.is_aligned(text, line_start)
        if line_start >= rows_end and not is_row and not table.is_list(text, line_end + 1):  # a row is not a heading
            edits, rows_end = table.find_in_columns(text, line_end + 1)
        edits = edits or list(table.find_in_row(text, above, is_pair=table.is_pair(text, above, line_end + 1)))
        if edits:
            position = max(position, edits[-1].end)
        yield from edits


class _Table(NamedTuple):
    """A line that may be the heading of a table, or a row; `starts` are the columns of the cells in the line,
    `strengths` those of cells that are names."""

    start: int
    separator: str
    cells: list[tuple[int, int]]
    starts: dict[int, int]
    strengths: dict[int, Strength]
    is_heading: bool

    @classmethod
    def read(cls, text: str, start: int, end: int) -> "_Table | None":
        """The line as a part of a table; None when it is not one, or has no name of a secret."""
        separator = _separator(text[start:end])
        if separator is None:
            return None
        cells = list(_cells(text, start, end, separator))
        names = [text[slice(*cell)].strip(_EMPHASIS) for cell in cells]
        are_names = [_HEADINGS[separator].fullmatch(name) is not None for name in names]
        strengths = {
            index: min(strength, Strength.WEAK) if "/" in name else strength
            for index, name in enumerate(names)
            if are_names[index] and (strength := rate_name(name)) is not None
        }
        if names[-3:] == _HEADINGS_OF_KEYS:
            strengths[len(names) - 1] = Strength.STRONG
        if not strengths or len(cells) < 2 or any(name.startswith(_ASSIGNMENTS) for name in names):
            return None
        starts = {cell[0] - start: index for index, cell in enumerate(cells)}
        is_heading = all(are_names) and _TYPES.isdisjoint(map(str.lower, names))
        if separator in ",;":
            is_heading = is_heading and PROSE_WORDS.isdisjoint(word.lower() for name in names for word in name.split())
        return cls(start, separator, cells, starts, strengths, is_heading)

    def above(self, text: str, start: int) -> list[str] | None:
        """The cells of the first row of the table to which this line belongs; None when there is no table, or for CSV,
        because prose has commas, too."""
        first: list[str] | None = None
        if self.separator not in ("|", "  "):
            return None
        for line_start, line_end in islice(_lines_before(text, start), _ROWS_ABOVE):
            if _RULE.fullmatch(text, line_start, line_end) and line_end > line_start:
                continue
            cells = list(_cells(text, line_start, line_end, self.separator))
            if not self._is_like(line_start, cells):
                break
            first = [text[slice(*_trim(text, *cell))] for cell in cells]
        return first

    def is_aligned(self, text: str, start: int) -> bool:
        """Whether it has the columns of the line above, which may have more."""
        above = next(_lines_before(text, start), None)
        if above is None or self.separator != "  " or text[self.start : self.cells[-1][1]].isupper():
            return False
        starts = {cell[0] - above[0] for cell in _cells(text, *above, self.separator)}
        return len(starts & self.starts.keys()) > 1

    def is_list(self, text: str, position: int) -> bool:
        """Whether there are names below a name, each next to its value."""
        if self.separator != "  " or len(self.cells) != 2 or list(self.strengths) != [0]:
            return False
        start, end = next(_lines(text, position), (position, position))
        cells = list(_cells(text, start, end, self.separator))
        return (
            text[slice(*self.cells[0])].islower()
            and self._is_like(start, cells)
            and not _RULE.fullmatch(text, start, end)
            and _HEADINGS["  "].fullmatch(text, *cells[0]) is not None
        )

    def is_pair(self, text: str, above: list[str] | None, position: int) -> bool:
        """Whether the line is a name and its value, according to its table or the lines around it."""
        return len(self.cells) == 2 and (
            (above is not None and above[1].lower() in PAIR_VALUE_KEYS) or self.is_list(text, position)
        )

    def _is_like(self, line_start: int, cells: list[tuple[int, int]]) -> bool:
        """Whether another line has the same columns."""
        if len(cells) != len(self.cells) or len(cells) < 2:
            return False
        return self.separator == "|" or {start - line_start for start, _ in cells} == self.starts.keys()

    def find_in_columns(self, text: str, position: int) -> tuple[list[Edit], int]:
        """The secrets below the headings, and the end of the rows that were examined."""
        edits: list[Edit] = []
        patience = _SEARCHED_ROWS
        for start, end in _lines(text, position) if self.is_heading else ():
            is_rule = end > start and _RULE.fullmatch(text, start, end) is not None
            placed = {} if is_rule else self._place(text, start, end)
            if (not placed and not is_rule) or not patience:
                break
            found = [
                edit
                for index, strength in self.strengths.items()
                if index in placed
                if self._may_be_secret(text, index, placed[index])
                for edit in _secret_cell(text, *placed[index], strength)
            ]
            edits += found
            patience = _SEARCHED_ROWS if found else patience - 1
            position = end + 1
        return edits, position

    def _place(self, text: str, start: int, end: int) -> dict[int, tuple[int, int]]:
        """The cells of a row under their headings; empty when it is not a row of this table."""
        cells = list(_cells(text, start, end, self.separator))
        if len(cells) == len(self.cells):
            return dict(enumerate(cells))
        if self.separator != "  ":
            return {}
        shift = self.start - start
        placed = {
            index: cell for cell in cells if (index := self._column(cell[0] + shift, cell[1] + shift)) is not None
        }
        return placed if len(placed) > 1 else {}

    def _column(self, start: int, end: int) -> int | None:
        """The heading that a cell is aligned with at either end, or else the only one above it."""
        if (start - self.start) in self.starts:
            return self.starts[start - self.start]
        under = [index for index, heading in enumerate(self.cells) if heading[0] < end and start < heading[1]]
        aligned = [index for index in under if self.cells[index][1] == end]
        return (aligned or under)[0] if len(aligned or under) == 1 else None

    def _may_be_secret(self, text: str, index: int, cell: tuple[int, int]) -> bool:
        """Whether a cell is not part of a sentence, below a sentence with as many commas."""
        content = text[slice(*cell)]
        heading = text[slice(*self.cells[index])]
        is_plain = self.separator in ",;" and " " in heading.strip() and heading[:1] not in ("'", '"')
        is_plain = is_plain or self.separator == " "
        return not is_plain or looks_random(content.strip(_BLANKS)) or is_made_up(content.strip(_BLANKS))

    def find_in_row(self, text: str, above: list[str] | None, *, is_pair: bool) -> Iterator[Edit]:
        """`| password | x |`, `DB_PASSWORD   x`: a name, and in the next cell its value. `above` are the cells of the
        first row of the table; `is_pair`: the lines around are names and values, too."""
        if self.separator in ",; ":
            return
        has_heading = above is not None and above[1:] == ["Value"]
        for index, (_, cell) in enumerate(pairwise(self.cells)):
            start, end = _trim(text, *cell)
            content = text[start:end]
            is_some = (
                looks_random(content) or is_made_up(content) or (is_pair and (has_heading or not content.isalpha()))
            )
            if above is None:
                is_value_column = index == 0 or self.separator != "  "
            else:
                is_value_column = len(above) < 3 or above[index + 1].lower() in NESTED_VALUE_KEYS
            if (
                index in self.strengths
                and is_some
                and is_value_column
                and not (_FILE.fullmatch(content) or is_code(content))
            ):
                yield from _secret_cell(text, start, end, self.strengths[index])


def _separator(line: str) -> str | None:
    if _BAR.search(line):
        return "|"
    for mark in ("\t", "  ", ";", ","):
        if mark in line.strip():
            return mark
    return " " if _CAPITALS.fullmatch(line) else None


def _cells(text: str, start: int, end: int, separator: str) -> Iterator[tuple[int, int]]:
    start, end = _trim(text, start, end, " \t\r" if separator in ",;\t" else _BLANKS)
    for cell in _CELLS[separator].finditer(text, start, end):
        if cell.end() > cell.start() or separator in ",;":
            yield cell.span()


def _secret_cell(text: str, start: int, end: int, strength: Strength) -> Iterator[Edit]:
    start, end = _trim(text, start, end)
    content = text[start:end]
    is_text = content.isdigit() or is_prose(content, is_quoted=True) or _is_name(content)
    if not is_text and is_secret(content, strength, is_quoted=True):
        yield Edit(start, end)


def _is_name(content: str) -> bool:
    """Whether a cell is, or contains, the name of a secret."""
    first = content.split()[0] if content else ""
    is_some = rate_name(content) is not None and _NAME_LIKE.fullmatch(content) is not None
    return is_some or first in ("True", "False")


def _trim(text: str, start: int, end: int, blanks: str = _BLANKS) -> tuple[int, int]:
    while start < end and text[start] in blanks:
        start += 1
    while end > start and text[end - 1] in blanks:
        end -= 1
    return start, end


def _lines_before(text: str, position: int) -> Iterator[tuple[int, int]]:
    """The lines above a position, from bottom to top."""
    while position > 0:
        end = position - 1
        start = text.rfind("\n", max(0, end - _LINE_LIMIT), end) + 1
        if end - start >= _LINE_LIMIT or (not start and end > _LINE_LIMIT):
            return
        yield start, end
        position = start


def _lines(text: str, position: int) -> Iterator[tuple[int, int]]:
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        yield position, end
        position = end + 1
