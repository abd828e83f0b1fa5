"""Values one level below the name of a secret: `password:` and in a line below it `value: x`, `password: {value: x}`.

Owns where they are in YAML, in HCL and in the literals of programs. It does not decide whether they are secrets.
`json_text` reads those of JSON.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.name_match import NameMatch
from tarsy_tasks.masking.rules.vocabulary import NESTED_VALUE_KEYS
from tarsy_tasks.masking.value_spans import Value, read_value

__all__ = ["read_nested"]

_SEARCHED_LINES = 32
_SEARCHED_CHARS = 1024
_LONGEST_LINE = 1024
_LEAD_LIMIT = 100
"""The number of characters in front of a name that are looked at."""
_LEAD = re.compile(r"[+~>#|\-]?[ \t]*(?:-[ \t]+)*[\"']?")
"""In front of a key: the sign of a diff or a comment, blanks, dashes of items, a quote."""
_LINE_END = re.compile(r"[ \t]*(?:#[^\n]{0,200})?\r?\n")
_KEY = re.compile(r"(?P<key>[A-Za-z_]\w{0,40})[\"']?[ \t]*(?::(?=\s)|=>?(?!=))")
_BRACE = re.compile(r"[ \t]*(?:[&*]?[A-Za-z_][\w.]{0,60}(?=\{))?[{\[]")
_PART = re.compile(
    r"(?P<open>[\[({])|(?P<close>[\])}])"
    r"|(?P<quote>[\"']?)(?P<key>[A-Za-z_]\w{0,40})(?P=quote)[ \t]*(?::(?!:)|=>?(?!=))"
    r"|\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'|\w++"
)


def read_nested(named: NameMatch) -> Iterator[Value]:
    """The values below a name, from left to right, if there is nothing but their beginning behind the name."""
    text, position = named.text, named.tail.end()
    if brace := _BRACE.match(text, position):
        yield from _read_braces(text, brace.end())
    elif line_end := _LINE_END.match(text, position):
        line_start = text.rfind("\n", max(0, named.start - _LEAD_LIMIT), named.start) + 1
        is_whole = named.start - line_start <= _LEAD_LIMIT
        if is_whole and (lead := _LEAD.fullmatch(text, line_start, named.start)) is not None:
            yield from _read_lines(text, line_end.end(), _column(lead))


def _read_lines(text: str, position: int, name_column: int) -> Iterator[Value]:
    """Of the keys in the first column below a name, deeper than it."""
    column = None
    for _ in range(_SEARCHED_LINES):
        line_start = position
        line_end = text.find("\n", line_start, line_start + _LONGEST_LINE)
        if line_end < 0:
            line_end = min(len(text), line_start + _LONGEST_LINE)
        lead = _LEAD.match(text, line_start, line_end)
        assert lead is not None
        position = line_end + 1
        if not text[lead.end() : line_end].strip():
            if position >= len(text):
                return
            continue
        found = _column(lead)
        if found <= name_column:
            return
        column = found if column is None else column
        if found < column:
            return
        key = _KEY.match(text, lead.end(), line_end) if found == column else None
        if key is not None and key["key"].lower() in NESTED_VALUE_KEYS:
            value = read_value(text, key.end(), line_start=line_start)
            if value is not None:
                yield value
                position = max(position, text.find("\n", value.end) + 1 or len(text))


def _column(lead: re.Match[str]) -> int:
    return len(lead[0].rstrip("\"'"))


def _read_braces(text: str, position: int) -> Iterator[Value]:
    """Of the keys in a mapping that begins before a position."""
    depth = 1
    for part in _PART.finditer(text, position, position + _SEARCHED_CHARS):
        if part["open"]:
            depth += 1
        elif part["close"]:
            depth -= 1
            if not depth:
                return
        elif depth == 1 and part["key"] and part["key"].lower() in NESTED_VALUE_KEYS:
            value = read_value(text, part.end())
            if value is not None:
                yield value
