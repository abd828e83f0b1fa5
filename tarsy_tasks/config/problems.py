"""A problem of a configuration: the place, what was found, what is valid, and what to do.

Owns the wording, also of what pydantic reports. It knows no files. A value may be a secret, so a text names its type,
not the value. Shown are only numbers out of range, and words of letters where one of a few words is expected, except
under `auth`.
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
    "is_close",
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
    "int_type": "an integer",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "a string",
    "string_unicode": "a string of valid Unicode characters",
}
"""The types that pydantic expected, in words that need no Python."""


class Problem(NamedTuple):
    """One problem: at which key, which may be missing; what was found, what is valid, what to do; and the character
    offset in the file, when the key alone does not locate it."""

    at: KeyPath
    text: str
    offset: int | None = None

    def __str__(self) -> str:
        return f"{format_path(self.at)}: {self.text}" if self.at else self.text


def format_path(at: KeyPath) -> str:
    """A place in the form `mcpServers.k8s.args[0]`.

    Under `env` and `headers` only plain names are shown: people paste `Authorization: Bearer …` as a key.
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
    """Quoted, at most `_MAX_SHOWN` characters, without control characters."""
    cut = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return f'"{cut}"' if cut.isprintable() and '"' not in cut else ascii(cut)


def describe_kind(value: object) -> str:
    """The JSON type of a value, without the value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string" if value else "an empty string"
        case list():
            return "a list"
        case _:
            return "a mapping"


def suggest(word: str, known: Iterable[str], also: Iterable[str] = ()) -> str:
    """The correction of a word that is not one of `known`: the closest of these and of `also`, and all of `known`."""
    words = sorted(known)
    folded = {each.casefold(): each for each in (*sorted(also, reverse=True), *reversed(words))}
    close = _close_words(word, folded)
    return (f"did you mean `{folded[close[0]]}`? " if close else "") + f"Known: {', '.join(words)}"


def is_close(word: str, known: Iterable[str]) -> bool:
    """Whether a word may be a misspelling of one of `known`."""
    return bool(_close_words(word, [each.casefold() for each in known], cutoff=0.8))


def _close_words(word: str, folded: Iterable[str], cutoff: float = 0.6) -> list[str]:
    from difflib import get_close_matches  # slow to import, and not needed for a correct file

    return get_close_matches(word[:_MAX_SHOWN].casefold(), list(folded), n=1, cutoff=cutoff)


def unknown_key(at: KeyPath, known: Iterable[str], also: Iterable[str] = ()) -> Problem:
    """A key that does not exist here; see `suggest`."""
    return Problem(at, f"unknown key; {suggest(str(at[-1]), known, also)}")


def describe_validation(
    error: ValidationError, locate: Callable[[KeyPath], KeyPath], known_keys: Callable[[KeyPath], Iterable[str]]
) -> list[Problem]:
    """The problems that pydantic found. `locate` converts a place in the model to the place in the file; `known_keys`
    gives the valid keys of the mapping at a place of the model."""
    problems: list[Problem] = []
    for details in error.errors(include_url=False):
        loc = details["loc"]
        if loc[-1:] == ("[key]",):
            loc = loc[:-1]
        if details["type"] == "server_kind":
            loc = loc[:-1]  # reported for the transport, but about the whole entry
        if details["type"].startswith("union_tag_"):
            loc = (*loc, "type")
        if details["type"] == "extra_forbidden":
            problems.append(unknown_key(locate(loc), known_keys(loc[:-1])))
        else:
            problems.append(Problem(locate(loc), _describe(details)))
    return problems


def _quoted_words(expected: str) -> str:
    """Pydantic's list of words, as `"a", "b" or "c"`."""
    words = expected.replace("'", '"')
    return words if " or " in words else " or ".join(words.rsplit(", ", 1))


def _describe(details: ErrorDetails) -> str:
    found, kind, context = details["input"], details["type"], details.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return "this key is required, but missing"
    if kind == "union_tag_invalid":
        found = found["type"]
        kind, context = "literal_error", {"expected": context["expected_tags"]}
    if kind in ("greater_than", "finite_number"):
        return f"found {str(found)[:40]}, expected a finite number greater than 0"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"found {str(found)[:40]}, expected {bound.removesuffix('.0')}"
    if kind in ("string_too_short", "too_short"):
        return "found an empty value, expected at least one character"
    if kind == "literal_error":
        shown = "this value"
        if "auth" not in details["loc"] and isinstance(found, str) and re.fullmatch(r"[A-Za-z_-]{1,20}", found):
            shown = quote(found)
        return f"{shown} is not valid; use {_quoted_words(context['expected'])}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("float_type", "int_type") and type(found) in (int, float):
        return "found a number that is too large" if isinstance(found, int) else "found a fraction, expected an integer"
    if kind in _EXPECTED:
        remedy = "; put it in quotes" if kind == "string_type" and isinstance(found, int | float) else ""
        return f"found {describe_kind(found)}, expected {_EXPECTED[kind]}{remedy}"
    return details["msg"]
