"""Secrets in the columns and rows of tables: aligned as by kubectl, with `|` as in Markdown and SQL, or as CSV.

Owns what a table looks like. A column is secret by its heading, a cell by the one before it.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.names import STEMS, Strength, rate_name
from tarsy_tasks.masking.search import Search
from tarsy_tasks.masking.values import is_made_up, is_secret, looks_random

__all__ = ["HEADINGS", "find_in_tables"]

_LINE_LIMIT = 4096
_PATIENCE_ROWS = 50
"""So many rows without a secret are looked at; else a text of nothing but headings would take for ever."""
HEADINGS = rf"{STEMS}[\w.\-]*[\"']?(?:[ \t]*[|,;]|[ \t]{{2,}}\S|\t|[ \t\r]*(?:\n|$))"
"""A name in a cell."""

_search = Search([HEADINGS])
_CELLS = {
    "|": re.compile(r"[^|\n]+"),
    ",": re.compile(r'"[^"\n]*"|[^,\n]+|(?<=,)(?=,|$)'),
    ";": re.compile(r'"[^"\n]*"|[^;\n]+|(?<=;)(?=;|$)'),
    "\t": re.compile(r"[^\t\n]+"),
    "  ": re.compile(r"\S+(?: \S+)*"),
}
_RULE = re.compile(r"[\s|+:=\-]*")
_HEADINGS = {mark: re.compile(r"[A-Za-z][\w.\-]{0,40}" if mark in ",;" else r"[A-Za-z][\w .()/\-]{0,40}") for mark in _CELLS}
_BLANKS = " \t\r\"'"


def find_in_tables(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, from left to right.

    Args:
        text: What is searched.
        projection: The same, as `search.project` has it.
    """
    position = 0
    while (found := _search.next(projection, position)) is not None:
        _, start, end = found
        line_start = text.rfind("\n", max(0, start - _LINE_LIMIT), start) + 1
        line_end = text.find("\n", start, start + _LINE_LIMIT)
        line_end = min(len(text), start + _LINE_LIMIT) if line_end < 0 else line_end
        position = max(end, line_end)
        if start - line_start >= _LINE_LIMIT:
            continue
        for edit in _find(text, line_start, line_end):
            position = max(position, edit.end)
            yield edit


def _find(text: str, start: int, end: int) -> Iterator[Edit]:
    separator = _separator(text[start:end])
    if separator is None:
        return
    is_heading = _HEADINGS[separator]
    heading = list(_cells(text, start, end, separator))
    columns = {
        index: strength
        for index, cell in enumerate(heading)
        if is_heading.fullmatch(name := text[slice(*cell)].strip(_BLANKS)) and (strength := rate_name(name)) is not None
    }
    if not columns or len(heading) < 2:
        return
    if all(is_heading.fullmatch(text[slice(*cell)].strip(_BLANKS)) for cell in heading):
        found = list(_find_in_columns(text, end, separator, heading, columns))
        yield from found
        if found:
            return
    yield from _find_in_row(text, heading, columns, separator)


def _separator(line: str) -> str | None:
    for mark in ("|", "\t", "  ", ";", ","):
        if mark in line.strip():
            return mark
    return None


def _cells(text: str, start: int, end: int, separator: str) -> Iterator[tuple[int, int]]:
    for cell in _CELLS[separator].finditer(text, start, end):
        if cell.end() > cell.start() or separator in ",;":
            yield cell.span()


def _find_in_columns(
    text: str, end: int, separator: str, heading: list[tuple[int, int]], columns: dict[int, Strength]
) -> Iterator[Edit]:
    """The cells below the headings that say secret, for as long as the lines are rows."""
    line_start = text.rfind("\n", 0, heading[0][0]) + 1
    starts = [cell[0] - line_start for cell in heading]
    patience = _PATIENCE_ROWS
    for row_start, row_end in _lines(text, end + 1):
        patience -= 1
        if patience < 0:
            return
        if row_end > row_start and _RULE.fullmatch(text, row_start, row_end):
            continue
        cells = list(_cells(text, row_start, row_end, separator))
        if separator == "  ":
            placed = {starts.index(cell[0] - row_start): cell for cell in cells if cell[0] - row_start in starts}
        elif len(cells) == len(heading):
            placed = dict(enumerate(cells))
        else:
            return
        if not placed or (separator == "  " and len(placed) < min(2, len(cells))):
            return
        for index, strength in columns.items():
            if index in placed:
                for edit in _secret_cell(text, *placed[index], strength):
                    patience = _PATIENCE_ROWS
                    yield edit


def _find_in_row(
    text: str, cells: list[tuple[int, int]], names: dict[int, Strength], separator: str
) -> Iterator[Edit]:
    """`| password | x |`, `DB_PASSWORD   x`: a name, and in the next cell its value."""
    if separator in ",;":
        return
    for index, (_, cell) in enumerate(pairwise(cells)):
        if index in names:
            start, end = _trim(text, *cell)
            content = text[start:end]
            if looks_random(content) or is_made_up(content):
                yield from _secret_cell(text, start, end, names[index])


def _secret_cell(text: str, start: int, end: int, strength: Strength) -> Iterator[Edit]:
    start, end = _trim(text, start, end)
    content = text[start:end]
    if MASK not in content and not content.isdigit() and is_secret(content, strength, is_quoted=True):
        yield Edit(start, end)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start] in _BLANKS:
        start += 1
    while end > start and text[end - 1] in _BLANKS:
        end -= 1
    return start, end


def _lines(text: str, position: int) -> Iterator[tuple[int, int]]:
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        yield position, end
        position = end + 1
