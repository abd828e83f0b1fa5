"""What a value may be: JSON, finite, exact, of bounded depth; and what a bare word stands for.

Owns the reading of scalars and the promise that whatever leaves the package can be written as JSON and read back
equal. It knows no syntax around the values and no schema."""

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
    "refuse",
    "safe_copy",
    "unquoted",
]

MAX_DEPTH = 100
"""Levels of lists and objects. Deeper values crash encoders and validators further down."""

SPACE: Final = " \t\r\n\f\v\ufeff\u200b\u00a0"
"""What means nothing around a text."""

TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
"""The types of JSON Schema, and whose values are exactly of these classes; 5.0 is an integer too."""

_MAX_DIGITS = 4300  # Python's own default limit: what is longer cannot be written as JSON again
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(\.[0-9]+)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
_LONGEST_WORD = 5
_NUMBER_BEGINS = frozenset("-.0123456789")


_QUOTED = re.compile(r"(['`])([^'`\n]+)\1|“([^“”\n]+)”")

LEAVES: Final = frozenset({str, int, float, bool, type(None)})


class Written:
    """A scalar or list together with how it was written: `1.10` is a number, or the text of a version."""

    __slots__ = ("text", "value")

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text


def read_scalar(text: str) -> str | int | float | bool | None:
    """The value of a bare word, by the rules of TARSy: true, false, null, none, integers, finite floats, else the text.

    Leading zeros, a plus sign, NaN and infinities stay text.
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
    """What is in the quotes that models write instead of JSON's; None when it is not in quotes as a whole."""
    found = _QUOTED.fullmatch(text)
    return None if found is None else found[2] or found[3]


def plain(tree: Any) -> Any:
    """The values of `tree` without how they were written."""
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


def safe_copy(value: Any, path: str = "") -> Any:
    """A copy of `value` of nothing but JSON types.

    Raises:
        ArgumentsError: A key is no text, a type is not JSON's, a number not finite, a text half a character, or it is
            nested too deep.
    """
    return _safe_copy(value, path, 0)


def _safe_copy(value: Any, path: str, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _safe_text(value, path)
    if isinstance(value, int):
        return _safe_integer(int(value), path)
    if isinstance(value, float):
        if value - value != 0:
            raise refuse(f"{_place(path)} is {value}; JSON has only finite numbers.")
        return float(value)
    if isinstance(value, dict | list) and depth >= MAX_DEPTH:
        raise refuse(f"They are nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, dict):
        return _safe_object(cast("dict[Any, Any]", value), path, depth)
    if isinstance(value, list):
        return [_safe_copy(item, path, depth + 1) for item in cast("list[Any]", value)]
    raise refuse(f"{_place(path)} is of the type {type(value).__name__}, which JSON does not have.")


def _safe_object(value: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise refuse(f"A key of {_place(path)} is of the type {type(key).__name__}; keys must be text.")
        copy[_safe_text(key, path)] = _safe_copy(item, path or key[:40], depth + 1)
    return copy


def _safe_text(text: str, path: str) -> str:
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise refuse(f"The text of {_place(path)} holds half of a character (a lone surrogate).") from None
    return str(text)


def _safe_integer(number: int, path: str) -> int:
    if number.bit_length() > 3 * _MAX_DIGITS:
        try:
            str(number)
        except ValueError:
            raise refuse(f"{_place(path)} is an integer of more than {_MAX_DIGITS} digits.") from None
    return number


def _place(path: str) -> str:
    return f"`{path}`" if path else "the arguments"


def refuse(reason: str) -> ArgumentsError:
    """The rejection of arguments that cannot be read at all."""
    return ArgumentsError(
        ErrorCode.INVALID_ARGUMENTS, f"The arguments cannot be used. Nothing was sent. {reason}", ("unusable",)
    )
