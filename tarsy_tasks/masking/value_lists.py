"""Several values under one name: in brackets, one per line, or in one text with separators.

Owns the syntax of such lists. Each value is judged on its own, because there may be ordinary words among them.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.blocks import indent_of, read_block
from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.name_match import NameMatch
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.value_spans import Value
from tarsy_tasks.masking.values import is_code, is_item, is_prose, is_secret, looks_random

__all__ = ["is_enumeration", "read_list"]

_SEARCHED_CHARS = 1024
"""The length after which the search for a secret in a list ends."""
_SEARCHED_LINES = 20
_SEARCHED_MASKED = 100
_SEARCHED_UNCLOSED = 16 * 1024
"""The length after which the search for a closing quote ends."""
_LONGEST_ITEM = 4096
_MAX_VALUES = 100
_BRACKET = re.compile(
    r"\s{0,40}(?:!!\w+[ \t]+|new[ \t]+)?(?:(?:Arrays\.asList|(?:Immutable)?(?:List|Set)(?:\.of)?"
    r"|frozenset|set|list|tuple|array"
    r"|listOf|setOf|arrayOf|vec!|%w|Seq|Array)(?=[\[({]))?(?:\w*\[\]\w*[ \t]*(?=\{))?\(?([\[({])"
)
_IN_BRACKETS = re.compile(
    rf"\\*(?P<quote>[\"'`])(?P<quoted>(?:[^\"'`\\\n]|\\.|(?!(?P=quote))[\"'`]){{0,{_LONGEST_ITEM}}}+)(?P=quote)"
    r"[ \t]*(?P<is_key>[:=])?"
    r"|(?P<unclosed>[\"'`])|(?P<bare>[^\s,;\"'`\[\](){}]+)|(?P<bracket>[\[\](){}])"
)
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_LINE_END = re.compile(r"[ \t]*\r?\n(?:[ \t]*\r?\n)?")
_LINE = re.compile(
    r"(?P<indent>[ \t]*)(?P<bullet>[-*][ \t]+|\d{1,3}[.):][ \t]+)?"
    r"(?:(?P<quote>[\"'`])(?P<quoted>[^\"'`\n]+)(?P=quote)|(?P<bare>[^\s\"'=:\[\]{}()<>#;,|\-][^\s\"'=:\[\]{}()<>#;,|]*)"
    r"|(?P<free>(?<=[ \t])[^\s\"'`\[{&*!|>%@][^\s\"'`]*))"
    r"[ \t]*(?:,[ \t]*)?(?:\r?\n|\Z)"
)
_BLOCK_ITEM = re.compile(r"[ \t]*(?:-[ \t]+)+(?=[|>!&])")
_BLANK_LINES = re.compile(r"(?:[ \t]*+\r?\n)++")
_ROW = re.compile(r"[ \t]*([A-Za-z0-9\-_]{6,32}(?:[ \t]{2,}[A-Za-z0-9\-_]{6,32}){1,4})[ \t]*(?:\r?\n|\Z)")
_WORD = re.compile(r"\S+")
_SIGNS = re.compile(r"[\s,;|]+")


def read_list(named: NameMatch) -> Iterator[Value]:
    """The secrets of the list that follows a name, from left to right."""
    text, position = named.text, named.end if named.tail.lastgroup == "headed" else named.tail.end()
    if bracket := _BRACKET.match(text, position):
        yield from _read_brackets(named, bracket.start(1))
    elif line_end := _LINE_END.match(text, position):
        yield from _read_lines(named, line_end.end())


def is_enumeration(named: NameMatch, content: str) -> bool:
    """Whether a value is a list of values."""
    values = _SIGNS.split(content.strip())
    return 1 < len(values) <= _MAX_VALUES and all(is_item(value, named.strength) for value in values)


def _read_brackets(named: NameMatch, position: int) -> Iterator[Value]:
    """Values that are quoted, or random; none of a mapping."""
    text = named.text
    closers: list[str] = []
    found: list[Value] = []
    patience = _SEARCHED_UNCLOSED
    for item in _IN_BRACKETS.finditer(text, position):
        if item.start() > (found[-1].end if found else position) + _SEARCHED_CHARS:
            break
        if bracket := item["bracket"]:
            if bracket in _CLOSING:
                closers.append(_CLOSING[bracket])
            elif bracket != closers.pop():
                return
            if not closers:
                break
        elif item["unclosed"]:
            looked_at = text[item.start() : item.start() + _LONGEST_ITEM]
            patience -= len(looked_at.partition("\n")[0])
            if patience < 0:
                break
        elif item["is_key"] or (item["bare"] or "")[-1:] in (":", "="):
            return
        elif item["quoted"] is not None:
            if is_item(item["quoted"], named.strength):
                found.append(Value(*item.span("quoted"), is_quoted=True))
        elif _is_bare_item(named, item["bare"]):
            found.append(Value(*item.span("bare")))
    yield from found


def _is_bare_item(named: NameMatch, word: str) -> bool:
    is_name = rate_name(word) is not None or is_code(word) or word.startswith("-")
    return not is_name and looks_random(word) and is_item(word, named.strength)


def _read_lines(named: NameMatch, position: int) -> Iterator[Value]:
    """One per line: with a bullet, or indented, or similar to what the name promises."""
    text = named.text
    line_start = text.rfind("\n", max(0, named.start - 200), named.start) + 1
    indent = indent_of(text, line_start)
    layout: tuple[str, bool] | None = None
    patience, masked = _SEARCHED_LINES, 0
    for row in _rows_of_words(text, position):
        yield from (
            Value(*word.span(), is_quoted=True)
            for word in _WORD.finditer(text, *row)
            if is_item(word[0], named.strength)
        )
        position = row[1] + 1
    for line in _lines(text, position):
        if isinstance(line, Value):
            if _is_secret_block(named, line):
                yield line
            continue
        if layout is None:
            layout = (line["indent"], line["bullet"] is not None)
        elif layout != (line["indent"], line["bullet"] is not None):
            return
        group = "quoted" if line["quote"] else "bare" if line["bare"] else "free"
        word = line[group]
        if not line["bullet"] and (
            group == "free" or (len(line["indent"]) <= indent and not is_item(word, named.strength))
        ):
            return
        masked += MASK in word
        patience = _SEARCHED_LINES if MASK in word and masked < _SEARCHED_MASKED else patience - 1
        if is_item(word, named.strength):
            patience = _SEARCHED_LINES
            yield Value(*line.span(group), is_quoted=True)
        if not patience:
            return


def _rows_of_words(text: str, position: int) -> Iterator[tuple[int, int]]:
    """Lines with several values."""
    while (row := _ROW.match(text, position)) is not None:
        yield row.span(1)
        position = row.end()


def _lines(text: str, position: int) -> Iterator[re.Match[str] | Value]:
    """Lines with an item each, and blocks of YAML that are an item (`- |`)."""
    while position < len(text):
        if item := _BLOCK_ITEM.match(text, position):
            if (block := read_block(text, item.end(), position)) is None:
                return
            start, end = block
            yield Value(start, end, is_quoted=True, is_block=True)
            position = end + (start < end)
            blank = _BLANK_LINES.match(text, position)
            position = blank.end() if blank else position
        elif line := _LINE.match(text, position):
            yield line
            position = line.end()
        else:
            return


def _is_secret_block(named: NameMatch, block: Value) -> bool:
    content = named.text[block.start : block.end]
    is_some = named.strength is Strength.STRONG or any(is_item(word, named.strength) for word in content.split())
    return is_some and is_secret(content, Strength.STRONG, is_quoted=True) and not is_prose(content, is_quoted=True)
