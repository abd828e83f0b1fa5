"""Secrets in SQL statements with the columns in one place and the values in another.

Owns these statements: INSERT, REPLACE and COPY. `assignments` and `forms` find `PASSWORD 'x'` and similar ones.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.search import Places
from tarsy_tasks.masking.values import is_prose, is_secret

__all__ = ["STATEMENTS", "find_in_sql"]

_SEARCHED_ROWS = 50
_VALUE_LIMIT = 64 * 1024
_TOKENS_A_VALUE = 20
"""A row with more values is treated as unclosed."""
_TABLE = r"[\w.\"`\[\]\\]+"
_COLUMNS = r"\([\w\s,.\"`\[\]\\]+\)"
STATEMENTS = (
    rf"(?i:\b(?:insert|replace|copy)\b[\w \t]*[ \t]{_TABLE}\s*{_COLUMNS}\s*(?:overriding \w+ value\s+)?"
    r"(?:values?\b|from stdin))"
)
"""The list of columns."""

_search = Places([STATEMENTS])
_STATEMENT = re.compile(STATEMENTS)
_COLUMN_LIST = re.compile(_COLUMNS)
_VALUE = re.compile(
    r"\s*(?:(?P<open>\()|(?P<comma>,)|(?P<close>\))"
    r"|(?:[A-Za-z_]\w*\s*(?=\\*['\"]))?\\*(?P<quote>['\"])(?P<quoted>(?:''|\\[^'\"]|\\(?=['\"])['\"]|[^'\"\\\n])*)\\{0,8}(?P=quote)"
    r"|(?P<bare>[^\s,()'\";]+))"
)
_PAIR_COLUMNS = re.compile(r"(?:.*_)?(?:name|key)")


def find_in_sql(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, from left to right; `projection` is `search.project(text)`."""
    position = 0
    while (found := _search.next(projection, position)) is not None:
        statement = _STATEMENT.match(text, found)
        if statement is None:
            position = found + 1
            continue
        position = statement.end()
        columns = _COLUMN_LIST.search(text, found, position)
        assert columns is not None
        names = [name.strip(' \t\r\n"`[]\\') for name in columns[0][1:-1].split(",")]
        strengths = {index: strength for index, name in enumerate(names) if (strength := rate_name(name)) is not None}
        is_copy = statement[0][-1] in "nN"
        rows = _rows_of_copy(text, position) if is_copy else _rows(text, position, len(names))
        patience = _SEARCHED_ROWS
        for cells in rows if strengths or len(names) > 1 else ():
            edits = list(_find_in_row(text, names, strengths, cells))
            yield from edits
            position = max(position, cells[-1][1])
            patience = _SEARCHED_ROWS if edits else patience - 1
            if not patience:
                break


def _find_in_row(
    text: str, names: list[str], strengths: dict[int, Strength], cells: list[tuple[int, int]]
) -> Iterator[Edit]:
    if len(cells) != len(names):
        return
    for index, (name, (start, end)) in enumerate(zip(names, cells, strict=True)):
        strength = strengths.get(index)
        if strength is None and index and _PAIR_COLUMNS.fullmatch(names[index - 1].lower()) and "value" in name.lower():
            strength = rate_name(text[slice(*cells[index - 1])])
        content = text[start:end]
        if strength is None or content.isdigit():
            continue
        if is_secret(content, strength, is_quoted=True) and not is_prose(content, is_quoted=True):
            yield Edit(start, end)


def _rows(text: str, position: int, width: int) -> Iterator[list[tuple[int, int]]]:
    """The values in each pair of brackets; a value that is not a literal is empty."""
    cells: list[tuple[int, int]] = []
    depth = 0
    is_new = True
    patience = most = width * _TOKENS_A_VALUE
    while patience and (token := _VALUE.match(text, position, position + _VALUE_LIMIT)) is not None:
        position = token.end()
        patience -= 1
        if token["open"]:
            depth += 1
            if depth == 1:
                cells, is_new = [], True
        elif token["close"]:
            depth -= 1
            if depth < 0:
                return
            if not depth and cells:
                yield cells
                patience = most
        elif token["comma"]:
            is_new = is_new or depth == 1
        elif not depth:
            return
        elif token["quoted"] is not None:
            if is_new:
                cells.append(token.span("quoted"))
            is_new = False
        elif is_new:
            cells.append((token.start("bare"), token.start("bare")))
            is_new = False


def _rows_of_copy(text: str, position: int) -> Iterator[list[tuple[int, int]]]:
    """The lines below, with tabs between the values, up to `\\.`."""
    position = text.find("\n", position) + 1
    while 0 < position < len(text) and not text.startswith("\\.", position):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        cells: list[tuple[int, int]] = []
        for cell in text[position:end].split("\t"):
            cells.append((position, position + len(cell)))
            position += len(cell) + 1
        yield cells
        position = end + 1
