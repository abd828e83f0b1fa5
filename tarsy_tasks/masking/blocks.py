"""Lines below a name that belong to its value: blocks of YAML, here-documents, continued lines.

Owns where these lines begin and end. It does not decide whether they are a secret.
"""

import re
from collections.abc import Iterator

__all__ = [
    "continued_lines",
    "indent_of",
    "may_hold_blocks",
    "read_block",
    "read_here_document",
    "read_lines_up_to",
    "read_paragraph",
]

_LONGEST_LINE = 1024
_DOCUMENT_LIMIT = 8 * 1024
_QUOTED_LINES = 32
_HEADER = re.compile(r"[ \t]*(?:(?:!!|&)\w{1,100}[ \t]+){0,2}[|>][+\-]?\d?[+\-]?[ \t]*(?:#[^\n]*)?\r?\n")
_ANY_HEADER = re.compile(r"[:=\-][ \t][|>][+\-]?\d?[+\-]?\r?\n")
_HERE = re.compile(r"[ \t]*(?:\$\([ \t]*cat[ \t]+)?<<[-~]?[ \t]*\\?([\"']?)(\w{1,64})\1[ \t]*\r?\n")
_INDENT = re.compile(r"[ \t]*")
_ITEMS = re.compile(r"[ \t]*(?:-[ \t]+)*")
_FIELD = re.compile(r"[ \t]*(?:export[ \t]+)?[\"']?[\w.\-]{1,64}[\"']?[ \t]*[:=](?:[ \t]|[^=\s]|$)")


def may_hold_blocks(text: str) -> bool:
    """Whether there is the header of a block of YAML in a text."""
    return _ANY_HEADER.search(text) is not None


def read_block(text: str, position: int, line_start: int | None) -> tuple[int, int] | None:
    """The lines of the block whose header (`|`, `>-`) is at a position; None if there is none. They may be empty.

    Args:
        line_start: Where the line of the name begins, if that is known.
    """
    header = _HEADER.match(text, position)
    if header is None:
        return None
    line = text.rfind("\n", max(0, position - _LONGEST_LINE), position) + 1 if line_start is None else line_start
    start = end = header.end()
    least = None
    for first, last in _lines(text, start):
        if text[first:last].strip():
            indent = indent_of(text, first)
            if least is None:
                least = _least_indent(text, line, indent)
            if indent < least:
                break
            end = last
    while start < end and text[start] in " \t\r\n":
        start += 1
    return start, end


def read_here_document(text: str, position: int) -> tuple[int, int] | None:
    """The lines of the here-document that begins at a position, such as `<<EOF`; None if there is none. Of one that was
    cut off, a limited length."""
    here = _HERE.match(text, position)
    if here is None:
        return None
    start = here.end()
    end = min(len(text), start + _DOCUMENT_LIMIT)
    following = text.find("<<", start, end)
    if following >= 0:  # so that many of them are not all read to the same end
        end = following
    position = text.find(here[2], start, end)
    while position >= 0:
        line_start = text.rfind("\n", 0, position) + 1
        if not text[line_start:position].strip() and not text[(after := position + len(here[2])) : after + 1].strip():
            end = line_start
            break
        position = text.find(here[2], position + 1, end)
    content = text[start:end].rstrip()
    return start + len(content) - len(content.lstrip()), start + len(content)


def read_lines_up_to(quote: str, text: str, start: int) -> int | None:
    """The position of the quote that ends a value of several lines; None if there is none before a line that is a field
    of its own."""
    for count, (first, last) in enumerate(_lines(text, start)):
        if (found := text.find(quote, first, last)) >= 0:
            return found if count and not text[found + 1 : last].strip(" \t\r,;)]}") else None
        if count > _QUOTED_LINES or (count and _FIELD.match(text, first, last)):
            return None
    return None


def read_paragraph(text: str, start: int) -> tuple[int, int]:
    """The lines up to a blank one, or up to the one above a line of dashes, the next heading."""
    end = before = start
    for first, last in _lines(text, start):
        line = text[first:last].strip()
        if line.startswith("---") and not line.strip("-"):
            return start, before
        if not line:
            break
        before, end = end, last
    return start, end


def continued_lines(text: str, end: int, line_start: int | None) -> Iterator[tuple[int, int]]:
    """The lines that go on with the value that ends at a position, without the blanks around them: those that are
    indented deeper than its name, and the word behind a backslash at the end of a line.

    Args:
        line_start: Where the line of the name begins, if its value may go on without a backslash.
    """
    line_end = _line_end(text, end)
    is_escaped = text[end:line_end].rstrip("\r") == "\\"
    if not is_escaped and (line_start is None or text[end:line_end].strip()):
        return
    least = None
    for first, last in _lines(text, line_end + 1):
        indent = indent_of(text, first)
        if least is None and line_start is not None:
            least = _least_indent(text, line_start, indent)
        if not is_escaped and (least is None or indent < least):
            return
        content = text[first:last].strip()
        if not content:
            return
        start = first + indent
        if is_escaped:
            content = content.split()[0]
        is_escaped = content.endswith("\\")
        yield start, start + len(content.removesuffix("\\"))


def indent_of(text: str, line_start: int) -> int:
    """The number of blanks at the beginning of a line."""
    blanks = _INDENT.match(text, line_start)
    assert blanks is not None
    return blanks.end() - line_start


def _least_indent(text: str, line_start: int, first_indent: int) -> int:
    """That of the lines of a value: deeper than its name, also where that is the first of a list's item."""
    items = _ITEMS.match(text, line_start)
    column = items.end() - line_start if items else 0
    return 1 + (column if first_indent > column else indent_of(text, line_start))


def _lines(text: str, position: int) -> Iterator[tuple[int, int]]:
    while position < len(text):
        line_end = _line_end(text, position)
        yield position, line_end
        position = line_end + 1


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end
