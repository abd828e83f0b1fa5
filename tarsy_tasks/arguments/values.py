"""Values: JSON types only, finite, exact, of bounded depth; and the value of a bare word.

Owns the reading of scalars, and the guarantee that all results can be written as JSON and read back equal. It knows no
syntax around the values and no schema.
"""

import re
from typing import Any, Final, cast

from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode

__all__ = [
    "LEAVES",
    "MAX_DEPTH",
    "SPACE",
    "TYPES",
    "Written",
    "plain",
    "read_scalar",
    "safe_copy",
    "unquoted",
    "unusable",
]

MAX_DEPTH = 100
"""Levels of lists and objects. Deeper values crash encoders and validators further down."""

SPACE: Final = " \t\r\n\f\v\ufeff\u200b\u00a0"
"""Characters without meaning around a text."""

TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
"""The types of JSON Schema and their Python classes; 5.0 is an integer too."""

_MAX_DIGITS = 4300  # Python's default limit: a longer integer cannot be written as JSON
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(\.[0-9]+)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
_LONGEST_WORD = 5
_NUMBER_BEGINS = frozenset("-.0123456789")
_QUOTED = re.compile(r"(['`])([^'`\n]+)\1|“([^“”\n]+)”")

LEAVES: Final = frozenset({str, int, float, bool, type(None)})


class Written:
    """A scalar or list with its spelling: `1.10` is a number, or a version as text."""

    __slots__ = ("text", "value")

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text


def read_scalar(text: str) -> str | int | float | bool | None:
    """The value of a bare word: true, false, null, none, an integer or a finite float, else the text itself.

    Words with leading zeros or a plus sign, NaN and infinities stay text.
    """
    first = text[:1]
    if first not in _NUMBER_BEGINS:
        return _WORDS.get(text.lower(), text) if len(text) <= _LONGEST_WORD else text
    if first != "0" and len(text) < 18 and text.isdecimal() and text.isascii():
        return int(text)
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if number[1] is None and number[2] is None and number[3] is None:
        try:
            return int(text) if len(text) <= _MAX_DIGITS else text
        except ValueError:  # a lower limit was set for this interpreter
            return text
    value = float(text)
    return value if abs(value) < float("inf") else text


def unquoted(text: str) -> str | None:
    """The text inside quotes other than JSON's; None when the whole text is not quoted."""
    found = _QUOTED.fullmatch(text)
    return None if found is None else found[2] or found[3]


def plain(tree: Any) -> Any:
    """The values of `tree` without their spelling."""
    if tree.__class__ in LEAVES:
        return tree
    if isinstance(tree, Written):
        return plain(tree.value)
    if isinstance(tree, dict):
        members = cast("dict[str, Any]", tree).items()
        return {key: value if value.__class__ in LEAVES else plain(value) for key, value in members}
    if isinstance(tree, list):
        return [item if item.__class__ in LEAVES else plain(item) for item in cast("list[Any]", tree)]
    return tree


def safe_copy(value: Any, path: str = "", depth: int = 0) -> Any:
    """A copy of `value` that consists of JSON types only.

    Raises:
        ArgumentsError: A key is not text, a type is not JSON's, a number is not finite, a text contains a lone
            surrogate, or the nesting is too deep.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _safe_text(value, path)
    if isinstance(value, int):
        return _safe_integer(int(value), path)
    if isinstance(value, float):
        if value - value != 0:
            raise unusable(f"{_place(path)}: {value} is not valid in JSON, which has only finite numbers.")
        return float(value)
    if isinstance(value, dict | list) and depth >= MAX_DEPTH:
        raise unusable(f"They are nested more than {MAX_DEPTH} levels deep.")
    if isinstance(value, dict):
        return _safe_object(cast("dict[Any, Any]", value), path, depth)
    if isinstance(value, list):
        return [safe_copy(item, path, depth + 1) for item in cast("list[Any]", value)]
    raise unusable(f"{_place(path)}: the type {type(value).__name__} does not exist in JSON.")


def _safe_object(value: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise unusable(f"{_place(path)}: a key has the type {type(key).__name__}; keys must be strings.")
        copy[_safe_text(key, path)] = safe_copy(item, path or key[:40], depth + 1)
    return copy


def _safe_text(text: str, path: str) -> str:
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise unusable(f"{_place(path)}: a string contains a lone surrogate (half of a character).") from None
    return str(text)


def _safe_integer(number: int, path: str) -> int:
    if number.bit_length() > 3 * _MAX_DIGITS:
        try:
            str(number)
        except ValueError:
            raise unusable(f"{_place(path)}: an integer has more than {_MAX_DIGITS} digits.") from None
    return number


def _place(path: str) -> str:
    return f"`{path}`" if path else "The arguments"


def unusable(reason: str) -> ArgumentsError:
    """The rejection of arguments that are not JSON values at all, whatever the schema says."""
    return ArgumentsError(
        ErrorCode.INVALID_ARGUMENTS, f"The arguments cannot be used. Nothing was sent. {reason}", ("unusable",)
    )
