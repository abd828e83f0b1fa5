"""TOML text as data of JSON types, and the place of each key.

Owns all use of `tomllib`, which says where a syntax error is, but not where a key is. It does not know what a
configuration looks like.
"""

import re
import tomllib
from datetime import date, datetime, time
from functools import cached_property
from typing import Any

from pydantic import JsonValue

from tarsy_tasks.config.problems import KeyPath, Problem

__all__ = ["TomlTree"]

_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)\Z")
_MAX_LINES = 100
"""Longest statement of several lines that is searched for its end; its keys are found in any case."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_KEY = re.compile(rf"\s*+(?P<key>{_PART}(?:\s*\.\s*{_PART})*)\s*=")
_TOO_DEEP = re.compile(rf"(?<![\w\\-])(?:{_PART}[ \t]*+\.[ \t]*+){{100}}")
"""A dotted key on which `tomllib` would take quadratic time."""
_HEADER = re.compile(r"\s*(?P<brackets>\[\[?)(?P<key>[^\]\n]+)\]")


class TomlTree:
    """A parsed document. It never raises, but collects `problems`: why the text could not be parsed. Values are not
    shown."""

    is_empty = False
    """A document without keys is a mapping."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self._text = text
        self._data: JsonValue = None
        if _TOO_DEEP.search(text):
            self.problems.append(Problem((), "nested too deeply", 0))
            return
        try:
            self._data = _as_json(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            self._report(str(error))
        except RecursionError:
            self.problems.append(Problem((), "nested too deeply", 0))
        except ValueError:
            self.problems.append(Problem((), "not valid TOML: a number or a date is out of range", 0))

    def read(self) -> JsonValue:
        """The data; None when a problem prevents reading it."""
        return self._data

    def find(self, at: KeyPath) -> int | None:
        """The character offset of a key, or of the nearest key around it that is written in the text."""
        prefixes = (at[:length] for length in range(len(at), 0, -1))
        return next((self._places[each] for each in prefixes if each in self._places), 0)

    def _report(self, message: str) -> None:
        match = _PLACE.search(message)
        what = message[: match.start()] if match else message
        offset = len(self._text)
        if match and match["line"]:
            starts = [0, *(found.end() for found in re.finditer("\n", self._text))]
            offset = starts[int(match["line"]) - 1] + int(match["column"]) - 1
        if what == "Invalid value":
            what += "; put text in quotes"
        # A key that is quoted in the message is no value.
        self.problems.append(Problem((), f"not valid TOML: {what[:1].lower()}{what[1:]}", offset))

    @cached_property
    def _places(self) -> dict[KeyPath, int]:
        """The offset of each header and of each key at the beginning of a line, the first of each."""
        places: dict[KeyPath, int] = {}
        table: KeyPath = ()
        tables: dict[KeyPath, int] = {}
        offset, skip_until = 0, 0
        lines = self._text.splitlines(keepends=True)
        for index, line in enumerate(lines):
            start = offset
            offset += len(line)
            if start < skip_until:
                continue
            indent = len(line) - len(line.lstrip())
            if (header := _HEADER.match(line)) is not None:
                table = _split(header["key"])
                if header["brackets"] == "[[":
                    tables[table] = tables.get(table, -1) + 1
                    table = (*table, tables[table])
                places.setdefault(table, start + indent)
            elif (key := _KEY.match(line)) is not None:
                places.setdefault((*table, *_split(key["key"])), start + indent)
                skip_until = start + sum(map(len, lines[index : index + _count_lines(lines, index)]))
        return places


def _split(key: str) -> KeyPath:
    """The parts of a dotted key."""
    try:
        found: Any = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        return ()
    parts: list[str] = []
    while isinstance(found, dict):
        (part, found), *_ = found.items()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        parts.append(part)  # pyright: ignore[reportUnknownArgumentType]
    return tuple(parts)


def _count_lines(lines: list[str], index: int) -> int:
    """How many lines a statement has."""
    for count in range(1, _MAX_LINES):
        try:
            tomllib.loads("".join(lines[index : index + count]))
        except (ValueError, RecursionError):
            continue
        return count
    return 1


def _as_json(value: Any) -> JsonValue:
    """Dates and times as the texts that they are in JSON."""
    match value:
        case dict():
            return {str(key): _as_json(each) for key, each in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case list():
            return [_as_json(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return value
