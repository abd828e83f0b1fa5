"""Where a value begins and ends in text that is not JSON: quoted, in a block, up to the next field, or the whole line.

Owns the syntaxes. It does not decide whether the value is a secret.
"""

import re
from typing import NamedTuple

from tarsy_tasks.masking.blocks import read_block, read_here_document, read_lines_up_to
from tarsy_tasks.masking.edits import MASK

__all__ = ["Value", "is_quoted_at", "read_value"]

_QUOTED_LIMIT = 64 * 1024
_TEXT_LIMIT = 4 * 1024
_UNCLOSED_LIMIT = 1024
_LOOK_AHEAD = 128
_ANSI = r"(?:\x1b\[[0-9;]*m)"
_LEAD = re.compile(
    rf"(?:[ \t]|{_ANSI}|%20|</?(?:b|strong|em|i|code|span|kbd|tt)>)*(?:!!\w+[ \t]+)?"
    rf"(?:(?:Some|Secret|SecretStr(?:ing)?|String::from|Optional\.of)\((?=\\*[\"']))?"
    r"(?:[A-Za-z@]?[A-Za-z]?(?=\\*[\"'`]))?"
)
_QUOTE = re.compile(r"(\\*)(\"\"\"|'''|[\"'`])|(%22|%27)")
_TYPE = re.compile(
    r"[ \t]*[A-Za-z_][\w.]*(?:\[[\w., \[\]]*\])?(?:[ \t]*\|[ \t]*[\w.\[\]]+)*[ \t]*=(?![=>])[ \t]*(?=[A-Za-z]?[\"'`])"
)
_BRACED = re.compile(r"\{(?![A-Za-z_.]+(?:!\w)?\})([^\s{}\"':,]+)\}")
_RUN = re.compile(r"[^\s\x00\x1b]+")
_TAG = r"<(?=/?[A-Za-z][\w:\-]*+(?:\s[^<>\n]{0,200})?/?>)"
_FIELD_AHEAD = r"[\"'\w.\-]{1,64}[ \t]*[:=]"
_STOP = re.compile(
    rf"&(?:amp;|[\w.%\-]{{1,64}}=)|[,;|](?=\s|$|{_FIELD_AHEAD})|(?:(?<!\\)\\++)?[\"'`]|{_TAG}"
    r"|(?<![)\]}>])[)\]}>]++(?=\s|$|[,;.:|](?:\s|$)|[\"'`])"
    rf"|%(?:22|26|27|7D|2C)|\\[nrt](?={_FIELD_AHEAD}|$|\\)"
)
"""The end of a value among others."""
_LINE_STOP = re.compile(
    rf"&(?:amp;|[\w.%\-]{{1,64}}=)|[,;](?=[A-Za-z_][\w.\-]{{0,63}}[:=])|{_TAG}|\\[nrt](?={_FIELD_AHEAD})|[\x00\n]|{_ANSI}"
    r"|(?<![ \t])[ \t]++(?:[\w.\-]{1,64}(?:=|:(?:[ \t]|$))|(?:#|//)[ \t]|(?:=>|->)[ \t])"
)
"""The end of a value that has its line for itself: a comment, or a sign that it has not."""
_NO_VALUE = re.compile(
    r"[{\[(](?=[\s\"'{\[]|$)|\[[^\]\s]*\](?:\s|$|,)|\([^)\s]*\)(?:\s|$|,)|\{[^}\s]*\}|(?:#|//)(?=[\s#!]|$)"
    r"|\([A-Z][a-z]+-[A-Z]"  # a call, in PowerShell
)


class Value(NamedTuple):
    """The position of a value, without its quotes; a block is the lines below its name."""

    start: int
    end: int
    is_quoted: bool = False
    is_block: bool = False


def read_value(text: str, position: int, *, line_start: int | None = None, opened: str = "") -> Value | None:
    """The value that begins at a position, after the separator; None when there is none.

    Args:
        line_start: Where the line of the name begins, if there is only the name before the separator: then the value
            may be a block below, or contain spaces.
        opened: The quote that was opened right before the name, as in `"PASSWORD=x"`.
    """
    if block := read_block(text, position, line_start) or read_here_document(text, position):
        return Value(*block, is_quoted=True, is_block=True) if block[1] > block[0] else None
    typed = _TYPE.match(text, position, position + 100)
    lead = _LEAD.match(text, typed.end() if typed else position)
    start = lead.end() if lead else position
    if opened:
        closed = text.find(opened, start, start + _QUOTED_LIMIT)
        if closed >= 0 and text.find("\n", start, closed) < 0:
            return Value(start, closed, is_quoted=True) if closed > start else None
    if quote := _QUOTE.match(text, start):
        return _read_quoted(text, quote, may_have_lines=line_start is not None)
    if braced := _BRACED.match(text, start, start + 300):
        return Value(*braced.span(1))
    run = _RUN.match(text, start, start + _TEXT_LIMIT)
    if run is None or _NO_VALUE.match(text, start, run.end() + 1):
        return None
    if line_start is None:
        end = _end_of_run(text, start, run.end())
    else:
        stop = _LINE_STOP.search(text, start)
        end = _without_trailing(text, start, stop.start() if stop else len(text))
    return Value(start, end) if end > start else None


def is_quoted_at(text: str, position: int) -> bool:
    """Whether the value after a separator begins with a quote."""
    lead = _LEAD.match(text, position)
    return _QUOTE.match(text, lead.end() if lead else position) is not None


def _end_of_run(text: str, start: int, run_end: int) -> int:
    """The end of a value among others. The rest of a text without blanks is only examined for a value of that
    length."""
    stop = _STOP.search(text, start, run_end)
    if run_end - start == _TEXT_LIMIT and (stop is None or stop.end() > run_end - _LOOK_AHEAD):
        run_end = _end_of_long_run(text, start, run_end)
        stop = _STOP.search(text, start, run_end)
    return stop.start() if stop else run_end


def _end_of_long_run(text: str, start: int, run_end: int) -> int:
    """The same for a very long value; not for one that is masked already and may stay as it is, because the next value
    would then be examined up to the same end, too."""
    run = _RUN.match(text, start) if MASK not in text[start:run_end] else None
    return run.end() if run else run_end


def _read_quoted(text: str, quote: re.Match[str], *, may_have_lines: bool) -> Value:
    """Up to the same quote, with the same escaping."""
    start = quote.end()
    limit = start + (_TEXT_LIMIT if len(quote[2] or "") == 3 else _QUOTED_LIMIT)
    if quote[3]:
        end = text.find(quote[3], start, limit)
        return Value(start, end if end >= 0 else _end_of_unclosed(text, start), is_quoted=True)
    backslashes, mark = len(quote[1]), quote[2]
    line_end = -1 if len(mark) == 3 else text.find("\n", start, limit)
    position = text.find(mark, start, limit if line_end < 0 else line_end)
    while position >= 0:
        before = position
        while before > start and text[before - 1] == "\\":
            before -= 1
        escapes = position - before
        if mark == "'" and not backslashes and position > start and text.startswith("''", position):
            position += 1
        elif escapes <= backslashes or (not backslashes and escapes % 2 == 0):
            return Value(start, before if backslashes else position, is_quoted=True)
        position = text.find(mark, position + 1, limit if line_end < 0 else line_end)
    if may_have_lines and not backslashes and (end := read_lines_up_to(mark, text, start)) is not None:
        return Value(start, end, is_quoted=True)
    return Value(start, _end_of_unclosed(text, start), is_quoted=True)


def _end_of_unclosed(text: str, start: int) -> int:
    """The end of the line, for a text that was cut off; the end of the word in a very long line."""
    line_end = text.find("\n", start, start + _UNCLOSED_LIMIT)
    if line_end < 0 and len(text) - start > _UNCLOSED_LIMIT:
        run = _RUN.match(text, start, start + _TEXT_LIMIT)
        return _end_of_long_run(text, start, run.end()) if run else start
    return _without_trailing(text, start, line_end if line_end >= 0 else len(text))


def _without_trailing(text: str, start: int, end: int) -> int:
    while end > start and text[end - 1] in " \t\r,;":
        end -= 1
    return end
