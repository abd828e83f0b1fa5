"""A problem of a configuration: where it is, and a sentence that says what was found, what was expected and what to do.

Owns the wording, also of what pydantic finds. It knows no files. Values may be secrets, so a text names the type of
what was found, never the value; only numbers that are out of range are shown.
"""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = [
    "KeyPath",
    "Problem",
    "describe_kind",
    "describe_validation",
    "format_path",
    "quote",
    "suggest",
    "unknown_key",
]

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list indexes, from the top level down to a place."""

_MAX_SHOWN = 80

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "text",
    "string_unicode": "text of valid Unicode characters",
}
"""What pydantic's type errors expected, in words that need no Python."""


class Problem(NamedTuple):
    """One thing that is wrong.

    Attributes:
        at: The key that is wrong; when it is missing, the key that it would have.
        text: What was found, what was expected, what to do.
        offset: Character offset in the file, when `at` alone would not find it.
    """

    at: KeyPath
    text: str
    offset: int | None = None

    def __str__(self) -> str:
        return f"{format_path(self.at)}: {self.text}" if self.at else self.text


def format_path(at: KeyPath) -> str:
    """Spell a place as `mcpServers.k8s.args[0]`.

    Under `env` and `headers` only what looks like a name is shown: people paste `Authorization: Bearer …` as a key.
    """
    shown: list[str] = []
    for parent, key in pairwise(("", *at)):
        if isinstance(key, int):
            shown.append(f"[{key}]")
        elif re.fullmatch(r"[\w$-]{1,80}", key, re.ASCII):
            shown.append(f".{key}")
        elif parent in ("env", "headers"):
            shown.append(".…")
        else:
            shown.append(f"[{quote(key)}]")
    return "".join(shown).removeprefix(".")


def quote(text: str) -> str:
    """Quoted, at most `_MAX_SHOWN` characters, and nothing in it that a terminal would act upon."""
    cut = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return f'"{cut}"' if cut.isprintable() and '"' not in cut else ascii(cut)


def describe_kind(value: object) -> str:
    """The JSON type of a value, without the value."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text" if value else "empty text"
        case list():
            return "a list"
        case _:
            return "a mapping"


def suggest(word: str, known: Iterable[str]) -> str:
    """What to do about a word that is not one of `known`: the closest one, and all of them."""
    from difflib import get_close_matches  # costs more than it is worth to an agent whose file is right

    words = sorted(known)
    folded = {each.casefold(): each for each in reversed(words)}
    close = get_close_matches(word[:_MAX_SHOWN].casefold(), folded, n=1)
    return (f"did you mean `{folded[close[0]]}`? " if close else "") + f"Known: {', '.join(words)}"


def unknown_key(at: KeyPath, known: Iterable[str]) -> Problem:
    """A key that means nothing here."""
    return Problem(at, f"unknown key; {suggest(str(at[-1]), known)}")


def describe_validation(
    error: ValidationError, locate: Callable[[KeyPath], KeyPath], known_keys: Callable[[KeyPath], Iterable[str]]
) -> list[Problem]:
    """Every problem that pydantic found.

    Args:
        error: What validation raised.
        locate: From a place in the model to that in the file.
        known_keys: The keys that the mapping at a place of the model may have.
    """
    problems: list[Problem] = []
    for details in error.errors(include_url=False):
        loc = details["loc"]
        if loc[-1:] == ("[key]",):
            loc = loc[:-1]
        if details["type"] == "server_kind":
            loc = loc[:-1]  # found at the transport, but about the whole entry
        if details["type"].startswith("union_tag_"):
            loc = (*loc, "type")
        if details["type"] == "extra_forbidden":
            problems.append(unknown_key(locate(loc), known_keys(loc[:-1])))
        else:
            problems.append(Problem(locate(loc), _describe(details)))
    return problems


def _describe(details: ErrorDetails) -> str:
    found, kind, context = details["input"], details["type"], details.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return "required, but missing"
    if kind == "union_tag_invalid":
        found = found["type"]
        kind, context = "literal_error", {"expected": context["expected_tags"]}
    if kind in ("greater_than", "finite_number"):
        return f"found {str(found)[:40]}, expected a finite number greater than 0"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"found {str(found)[:40]}, expected {bound}"
    if kind in ("string_too_short", "too_short"):
        return "found empty text, expected some"
    if kind == "literal_error":
        return (
            f"found {'other text' if isinstance(found, str) else describe_kind(found)}, expected {context['expected']}"
        )
    if kind == "value_error":
        return str(context["error"])
    if kind in ("float_type", "int_type") and type(found) in (int, float):
        return f"found a number that is {'too large' if isinstance(found, int) else 'no whole one'}"
    if kind in _EXPECTED:
        remedy = "; put it in quotes" if kind == "string_type" and isinstance(found, int | float) else ""
        return f"found {describe_kind(found)}, expected {_EXPECTED[kind]}{remedy}"
    return details["msg"]
