"""A configuration file as text: its bytes, its syntax, and the lines and columns of problems.

Owns reading (JSON with comments and trailing commas, YAML or TOML). It does not know what a configuration looks like:
its caller passes the problems, and gets one error with file, line and column for each.
"""

import json
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from tarsy_tasks.config.problems import KeyPath, Problem, describe_kind
from tarsy_tasks.errors import ConfigError

if TYPE_CHECKING:  # each imports a parser that other files do not need
    from tarsy_tasks.config.toml_tree import TomlTree
    from tarsy_tasks.config.yaml_tree import YamlTree

__all__ = ["CONFIGURATION", "ConfigFile", "FileKind", "read_config_file"]

_MAX_BYTES = 1024 * 1024
_MAX_JSON_BYTES = 64 * _MAX_BYTES
"""Clients that keep their servers beside histories, as Claude Code in `~/.claude.json`, write many megabytes."""
_YAML_SUFFIXES = (".yaml", ".yml")

# Strings come first, so that a comment or comma inside one is left alone. An unclosed string or comment extends to the
# end and stays, so that the parser reports it and no search starts inside it.
_STRING = r'"(?:[^"\\]++|\\.)*+"?+'
_COMMENT = re.compile(_STRING + r"|(//[^\r\n]*|/\*.*?\*/)|/\*.*", re.DOTALL)
_TRAILING_COMMA = re.compile(_STRING + r"|[\[{]\s*,|(,)(?=\s*[\]}])", re.DOTALL)
_SURROGATE = re.compile(r"\\[uU]0*[dD][89a-fA-F]")


class FileKind(NamedTuple):
    """What a file is for.

    Attributes:
        name: In errors.
        expected: What its mapping has, in words that follow "a mapping with".
        example: The shortest one.
        shorten: What to do when it is too large.
    """

    name: str
    expected: str
    example: str
    shorten: str


CONFIGURATION = FileKind(
    "configuration", "the key `mcpServers`", '{"mcpServers": {}}', "copy its servers to a file of their own"
)


@dataclass(frozen=True)
class ConfigFile:
    """A file that was read: its text, for JSON without comments and trailing commas, but with the offsets of the file;
    its top-level mapping; and the problems of its text, such as a duplicate key."""

    path: Path
    text: str = field(repr=False)
    data: dict[str, JsonValue] = field(repr=False)
    problems: list[Problem] = field(repr=False)

    def locate(self, keys: list[KeyPath]) -> list[str]:
        """File, line and column of each key."""
        return [place for _, place in _places(self.path, self.text, [Problem(at, "") for at in keys])]

    def build_error(self, problems: list[Problem]) -> ConfigError:
        """One error with a line for each problem, in the order of the file."""
        return _build_error(self.path, self.text, problems)


def read_config_file(path: Path, kind: FileKind = CONFIGURATION) -> ConfigFile:
    """Read a file, as YAML or TOML when its name ends so, else as JSON.

    Raises:
        ConfigError: It cannot be read, or is not a mapping in that syntax.
    """
    text = _read_text(path, kind)
    if _is_yaml(path) or _is_toml(path):
        data, problems = _parse_tree(path, text, kind)
    else:
        text, data, problems = _parse_json(path, text, kind)
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise _build_error(path, text, [_describe_unprintable(text, error)]) from None
    if not isinstance(data, dict):
        problem = Problem((), f"found {describe_kind(data)}, expected a mapping with {kind.expected}")
        raise _build_error(path, text, [problem])
    return ConfigFile(path, text, data, problems)


def _describe_unprintable(text: str, error: Exception) -> Problem:
    if isinstance(error, RecursionError):
        return Problem((), "nested too deeply")
    place = _SURROGATE.search(text)
    return Problem((), "an escape is half of a surrogate pair, which is not a character", place.start() if place else 0)


def _is_yaml(path: Path) -> bool:
    return path.suffix.lower() in _YAML_SUFFIXES


def _is_toml(path: Path) -> bool:
    return path.suffix.lower() == ".toml"


def _open_at_once(path: str, flags: int) -> int:
    """Opening a pipe would block until another process writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read_text(path: Path, kind: FileKind) -> str:
    limit = _MAX_BYTES if _is_yaml(path) or _is_toml(path) else _MAX_JSON_BYTES
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: is not a regular file; save the {kind.name} in one")
            raw = file.read(limit + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: the file does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory, expected a file") from None
    except PermissionError:
        raise ConfigError(f"{path}: this process has no permission to read it") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file system accepts
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > limit:
        limits = f"{limit} bytes, the limit for a {kind.name} file in this syntax"
        raise ConfigError(f"{path}: is larger than {limits}; {kind.shorten}")
    try:
        text = raw.decode().removeprefix("\ufeff")  # editors of Windows write a byte-order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8; save it as UTF-8") from None
    if not text.strip():
        raise _build_empty_error(path, kind)
    return text


def _parse_tree(path: Path, text: str, kind: FileKind) -> tuple[JsonValue, list[Problem]]:
    tree = _build_tree(path, text)
    data = tree.read()
    if data is None and tree.problems:
        raise _build_error(path, text, tree.problems)
    if tree.is_empty:
        raise _build_empty_error(path, kind)
    return data, tree.problems


def _parse_json(path: Path, text: str, kind: FileKind) -> tuple[str, JsonValue, list[Problem]]:
    """Data and problems, after the text without comments and trailing commas."""
    try:
        return _load_json(text)
    except (ValueError, RecursionError):
        text = _TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text))
    if not text.strip():
        raise _build_empty_error(path, kind)
    try:
        return _load_json(text)
    except json.JSONDecodeError as error:
        hint = "" if text.lstrip().startswith(("{", "/")) else "; a file in YAML is named .yaml, one in TOML .toml"
        problem = Problem((), f"not valid JSON: {error.msg}{hint}", error.pos)
    except ValueError:
        problem = Problem((), "not valid JSON: a number has too many digits")
    except RecursionError:
        problem = Problem((), "nested too deeply", 0)
    raise _build_error(path, text, [problem])


def _load_json(text: str) -> tuple[str, JsonValue, list[Problem]]:
    duplicates = False

    def build_mapping(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        nonlocal duplicates
        mapping = dict(pairs)
        duplicates |= len(mapping) < len(pairs)
        return mapping

    data: JsonValue = json.loads(text, object_pairs_hook=build_mapping)
    return text, data, _find_duplicates(text) if duplicates else []


def _find_duplicates(text: str) -> list[Problem]:
    from tarsy_tasks.config.json_tree import JsonTree

    return JsonTree(text).find_duplicates()


def _blank(match: re.Match[str]) -> str:
    """Spaces in place of the first group; anything else stays."""
    return match[0] if match[1] is None else re.sub(r"[^\r\n]", " ", match[0])


def _build_tree(path: Path, text: str) -> "YamlTree | TomlTree":
    if _is_toml(path):
        from tarsy_tasks.config.toml_tree import TomlTree

        return TomlTree(text)
    from tarsy_tasks.config.yaml_tree import YamlTree

    return YamlTree(text)


def _find_offset(path: Path, text: str) -> Callable[[KeyPath], int | None]:
    """Where keys are in a text."""
    if _is_yaml(path) or _is_toml(path):
        return _build_tree(path, text).find
    from tarsy_tasks.config.json_tree import JsonTree

    return JsonTree(text).find


def _build_empty_error(path: Path, kind: FileKind) -> ConfigError:
    return ConfigError(f"{path}: is empty, expected at least {kind.example}")


def _build_error(path: Path, text: str, problems: list[Problem]) -> ConfigError:
    # A wrong default is wrong in each server.
    found = sorted(
        {
            (offset, f"{place}: {problem}")
            for (offset, place), problem in zip(_places(path, text, problems), problems, strict=True)
        }
    )
    return ConfigError("\n".join(line for _, line in found))


def _places(path: Path, text: str, problems: list[Problem]) -> list[tuple[int, str]]:
    """The offset of each problem, and its file, line and column."""
    offsets = [problem.offset for problem in problems]
    if None in offsets:
        find = _find_offset(path, text)
        offsets = [find(problem.at) if problem.offset is None else problem.offset for problem in problems]
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    found: list[tuple[int, str]] = []
    for offset in offsets:
        place = ""
        if offset is not None:
            line = bisect_right(line_starts, offset)
            place = f":{line}:{offset - line_starts[line - 1] + 1}"
        found.append((offset or 0, f"{path}{place}"))
    return found
