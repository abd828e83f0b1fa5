"""Secrets in columns of HTML tables: below `<th>Password</th>`.

Owns the syntax of these tables. Plain-text tables are in `tables`.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.names import rate_name
from tarsy_tasks.masking.values import is_label, is_prose, is_secret

__all__ = ["find_in_html_tables"]

_MAX_ROWS = 200
_CELL = re.compile(
    r"<(?P<tag>th|td)\b[^<>]{0,200}>(?P<text>[^<]*(?:<(?!/?t[hdr]\b)[^<]*)*)|(?P<row></?tr\b)|(?P<end></table\b)", re.I
)
_TEXT = re.compile(r"(?:\s|<[^<>]*>)*+([^<\s](?:[^<]*[^<\s])?)")


def find_in_html_tables(text: str) -> Iterator[Edit]:
    """The secrets of a text, from left to right."""
    if "<th" not in text:
        return
    names: list[str] = []
    column = rows = 0
    for cell in _CELL.finditer(text):
        if cell["end"]:
            names = []
        elif cell["row"]:
            rows += column > 0
            column = 0
        else:
            content = _TEXT.match(text, *cell.span("text"))
            said = content[1] if content else ""
            if cell["tag"].lower() == "th":
                if column == 0:
                    names = []
                names.append(said)
                rows = 0
            elif content is not None and column < len(names) and rows <= _MAX_ROWS:
                strength = rate_name(names[column])
                is_none = is_prose(said, is_quoted=True) or is_label(names[column], said)
                if strength is not None and not is_none and is_secret(said, strength, is_quoted=True):
                    yield Edit(*content.span(1))
            column += 1
