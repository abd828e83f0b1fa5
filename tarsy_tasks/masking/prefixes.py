"""Texts in which every line begins alike: diffs, quotes, comments, line numbers, the output of grep or of several pods.

Owns the recognition of such prefixes. Structures that depend on indentation are only found without them.
"""

import re
from itertools import takewhile

__all__ = ["blank_prefixes"]

_LINES_LOOKED_AT = 40
_DIFF = re.compile(r"[-+ @\\]|diff |index |$")
_DIGITS = re.compile(r"\d")
_BORDERS = " \t:|>#*]+"
_LONGEST = 120


def blank_prefixes(text: str) -> str:
    """The text with blanks in place of the common prefix of its lines, so that offsets stay; the text itself without
    one."""
    lines = text.split("\n")
    some = [line for line in lines[:_LINES_LOOKED_AT] if line.strip()]
    if len(some) < 2:
        return text
    if any(line.startswith("+") for line in some) and all(map(_DIFF.match, some)):
        return "\n".join(" " + line[1:] if line else line for line in lines)
    shape = _common_shape(some)
    if not shape.strip():
        return text
    width = len(shape)
    return "\n".join(" " * width + line[width:] if _shape(line[:width]) == shape else line for line in lines)


def _common_shape(lines: list[str]) -> str:
    """The common prefix of all lines, apart from its digits, up to a sign that ends it."""
    shapes = [_shape(line[:_LONGEST]) for line in lines]
    common = "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, zip(*shapes, strict=False)))
    end = max(map(common.rfind, _BORDERS)) + 1
    return common[:end]


def _shape(beginning: str) -> str:
    return _DIGITS.sub("0", beginning)
