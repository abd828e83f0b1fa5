"""Private keys in PEM and PuTTY's form, also cut off at either end, and with escaped line breaks.

Owns the extent of a key. Its first and last line stay readable.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.edits import MASK, Edit

__all__ = ["BORDERS", "find_private_keys"]

BORDERS = r"---- ?-?(?:BEGIN|END) (?:[A-Z0-9 ]*PRIVATE KEY|OpenVPN )|Private-Lines:"
"""Signs of a key, or of its end."""

_LIMIT = 64 * 1024
_BORDER = re.compile(
    r"(?:-----|---- )(BEGIN|END) (?:[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?"
    r"|OpenVPN (?:Static key V1|tls-crypt-v2 \w+ key))"
    r"(?:-----| ----)"
)
_NEWLINE = r"(?:\r?\n|(?:\\{1,8}r)?\\{1,8}n)"
_LINE = rf"[ \t>|*#]*(?:[A-Za-z0-9+/=]{{16,}}|[A-Za-z0-9+/=]{{1,15}}(?={_NEWLINE}|[\"'`]|[ \t]*$))"
_HEADER = r"[ \t]*(?:Proc-Type|DEK-Info|Comment|Version|Charset|Hash):[^\n\\]{0,200}"
_REST = re.compile(rf"(?:{_NEWLINE}|[ \t])*(?:(?:{_HEADER}|{_LINE})?{_NEWLINE}[ \t]*)*(?:{_LINE})?")
_SPLIT = re.compile(rf"({_NEWLINE})")
_BASE64_LINE = re.compile(r"[ \t>|*#]*[A-Za-z0-9+/=]*[ \t]*")
_BLANK = re.compile(r"(?:\s|\\+[rn])*")
_BLANK_END = re.compile(r"(?:\s|\\+[rn])*$")
_KEY_MATERIAL = re.compile(r"[A-Za-z0-9+/=\-]{12,}")
"""In code that looks for such lines, only names are between them."""
_PUTTY = re.compile(r"Private-Lines: (\d{1,4})\r?\n")
_PUTTY_LINE = re.compile(r"[ \t]*([A-Za-z0-9+/=]+)[ \t]*(?:\r?\n|\Z)")
_PUTTY_MAC = re.compile(r"Private-MAC: ([0-9a-f]{32,})")


def find_private_keys(text: str) -> Iterator[Edit]:
    """The bodies of all private keys, from left to right."""
    if "PRIVATE KEY" in text or "OpenVPN" in text:
        yield from _find_pem(text)
    if "Private-Lines:" in text:
        yield from _find_putty(text)


def _find_pem(text: str) -> Iterator[Edit]:
    position = 0
    while (border := _BORDER.search(text, position)) is not None:
        start = border.end()
        if border[1] == "END":  # of a key whose beginning was cut off
            yield from _body(text, _start_of_rest(text, position, border.start()), border.start())
            position = start
            continue
        following = _BORDER.search(text, start, start + _LIMIT)
        if following is not None and following[1] == "END" and _KEY_MATERIAL.search(text, start, following.start()):
            yield from _body(text, start, following.start())
            position = following.end()
        else:
            rest = _REST.match(text, start, following.start() if following else start + _LIMIT)
            position = rest.end() if rest else start
            yield from _body(text, start, position)


def _start_of_rest(text: str, floor: int, end: int) -> int:
    """The beginning of the lines of base64 that end there."""
    floor = max(floor, end - _LIMIT)
    start = end
    for part in reversed(_SPLIT.split(text[floor:end])):
        if not _BASE64_LINE.fullmatch(part) and not _SPLIT.fullmatch(part):
            break
        start -= len(part)
    return start


def _body(text: str, start: int, end: int) -> Iterator[Edit]:
    """The text between them, without the line breaks at its ends, so that the layout stays."""
    blank = _BLANK.match(text, start, end)
    start = blank.end() if blank else start
    tail = _BLANK_END.search(text, max(start, end - 64), end)
    end = tail.start() if tail else end
    if start < end and text[start:end] != MASK:
        yield Edit(start, end)


def _find_putty(text: str) -> Iterator[Edit]:
    position = 0
    while (heading := _PUTTY.search(text, position)) is not None:
        position = heading.end()
        for _ in range(int(heading[1])):  # each line for itself, for they are counted
            line = _PUTTY_LINE.match(text, position)
            if line is None:
                break
            yield Edit(*line.span(1))
            position = line.end()
    yield from (Edit(*mac.span(1)) for mac in _PUTTY_MAC.finditer(text))
