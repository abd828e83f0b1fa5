"""How a key of an entry becomes keys of `ServerConfig`: the rules that `own_keys` and `dialects` are made of.

A rule gets the value of a key and its place in the file. It checks no values (`servers.ServerConfig` does): what it
cannot convert it passes on, so that it is reported as a wrong value of the key in the file.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from pydantic import JsonValue

from tarsy_tasks.config.problems import KeyPath, Problem, describe_kind, format_path, unknown_key

__all__ = [
    "AUTH_FILE_KEYS",
    "SIGN_IN",
    "Found",
    "Place",
    "Rule",
    "Taken",
    "Unused",
    "at",
    "auth",
    "bearer",
    "command",
    "duration",
    "file_of",
    "files_of",
    "inside",
    "negated",
    "never",
    "read_duration",
    "reference_list",
    "references",
    "texts",
    "variable_of",
]

Place: TypeAlias = tuple[str, ...]
"""Keys of `ServerConfig`, from the entry down."""

AUTH_FILE_KEYS: dict[str, str] = {
    f"{key}_file": key for key in ("token", "key", "client_id", "client_secret", "private_key")
}
"""Keys of `auth` with paths of files instead of values, and the keys that they set."""

SIGN_IN = 'set `auth` to `{"type": "oauth"}`, and sign in with `tarsy-tasks auth login`'
"""What to do about a client's own OAuth settings."""

_NOTHING: Mapping[KeyPath, KeyPath] = MappingProxyType({})
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|sec|m|min|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Taken(NamedTuple):
    """A value for a place of `ServerConfig`, and where it is in the file; `parts` says so of places within it."""

    place: Place
    value: JsonValue
    where: KeyPath
    parts: Mapping[KeyPath, KeyPath] = _NOTHING


class Unused(NamedTuple):
    """A key that the client understands and that has no meaning here; what to know or do about it, if anything."""

    where: KeyPath
    remedy: str = ""


Found: TypeAlias = Taken | Unused | Problem
Rule: TypeAlias = Callable[[JsonValue, KeyPath], Iterable[Found]]


def at(*place: str) -> Rule:
    """The same value, at a place."""
    return lambda value, where: [Taken(place, value, where)]


def never(remedy: str = "") -> Rule:
    """No value; see `Unused`. There is nothing to do about one that asks for nothing."""
    return lambda value, where: [Unused(where, "" if not value or value == ["*"] else remedy)]


def negated(*place: str) -> Rule:
    """The opposite of a switch."""
    return lambda value, where: [Taken(place, not value if isinstance(value, bool) else value, where)]


def duration(*place: str, unit_s: float | None = None, longest_s: float = 999.0) -> Rule:
    """Seconds.

    Args:
        place: Where they belong.
        unit_s: The unit of a plain number, in seconds. None: seconds, or milliseconds if the number is greater than
            `longest_s`, for clients agree on no unit.
        longest_s: See there.
    """
    return lambda value, where: [Taken(place, read_duration(value, unit_s, longest_s), where)]


def read_duration(value: JsonValue, unit_s: float | None = None, longest_s: float = 999.0) -> JsonValue:
    """Seconds, as `duration` reads them, also of a text such as `30s` or `250ms`; any other value as it is."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match["number"]) * _SECONDS[match["unit"]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    unit_s = (0.001 if value > longest_s else 1.0) if unit_s is None else unit_s
    return value if unit_s == 1.0 else value * unit_s


def command(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """A program, also as a list with its arguments, or as a mapping with its `path`."""
    if isinstance(value, list) and value:
        yield Taken(("command",), value[0], (*where, 0))
        if len(value) > 1:
            rest = value[1:]
            yield Taken(("args",), rest, where, {("args", index): (*where, index + 1) for index in range(len(rest))})
    elif isinstance(value, dict) and "path" in value:
        yield from inside({"path": at("command"), "args": at("args"), "env": at("env")})(value, where)
    else:
        yield Taken(("command",), value, where)


def texts(*place: str) -> Rule:
    """A mapping or a list of texts in which whole numbers and switches count as text, and null as absent."""

    def convert(value: JsonValue, where: KeyPath) -> Iterable[Found]:
        if isinstance(value, dict):
            yield Taken(place, {key: _text(each) for key, each in value.items() if each is not None}, where)
        elif isinstance(value, list):
            yield Taken(place, [_text(each) for each in value], where)
        else:
            yield Taken(place, value, where)

    return convert


def _text(value: JsonValue) -> JsonValue:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def references(*place: str) -> Rule:
    """A mapping of names to variables, whose values belong to these names."""

    def convert(value: JsonValue, where: KeyPath) -> Iterable[Found]:
        if not isinstance(value, dict):
            yield Problem(where, f"found {describe_kind(value)}, expected a mapping of names to variables")
            return
        for name, variable in value.items():
            is_name = isinstance(variable, str) and variable
            yield Taken((*place, name), f"${{{variable}}}" if is_name else variable, (*where, name))

    return convert


def reference_list(*place: str) -> Rule:
    """A list of variables that keep their names; each may be a mapping with its `name`."""

    def convert(value: JsonValue, where: KeyPath) -> Iterable[Found]:
        if not isinstance(value, list):
            yield Problem(where, f"found {describe_kind(value)}, expected a list of variables")
            return
        for index, each in enumerate(value):
            name = each.get("name") if isinstance(each, dict) else each
            if isinstance(name, str) and name:
                yield Taken((*place, name), f"${{{name}}}", (*where, index))
            else:
                yield Problem((*where, index), f"found {describe_kind(each)}, expected the name of a variable")

    return convert


def bearer(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """A bearer token."""
    yield Taken(("auth",), {"type": "bearer", "token": value}, where, {("auth", "token"): where})


def auth(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """How to authenticate: our own form; a text is a token, or asks for a sign-in with a browser, as clients do."""
    is_sign_in = isinstance(value, dict) and "type" not in value and {"CLIENT_ID", "clientId", "oauth"} & value.keys()
    if value == "oauth":
        yield Taken(("auth",), {"type": "oauth"}, where)
    elif is_sign_in:
        yield Unused(where, SIGN_IN)
    elif isinstance(value, str):
        yield from bearer(value, where)
    elif isinstance(value, dict):
        yield from _auth_with_files(value, where)
    else:
        yield Taken(("auth",), value, where)


def _auth_with_files(value: dict[str, JsonValue], where: KeyPath) -> Iterable[Found]:
    kept = {key: each for key, each in value.items() if key not in AUTH_FILE_KEYS}
    parts: dict[KeyPath, KeyPath] = {}
    for key, meant in AUTH_FILE_KEYS.items():
        if key not in value:
            continue
        if meant in kept:
            yield Problem((*where, key), f"conflicts with `{format_path((*where, meant))}`; keep only one of them")
        kept[meant] = _file(value[key])
        parts["auth", meant] = (*where, key)
    yield Taken(("auth",), kept, where, parts)


def file_of(rule: Rule) -> Rule:
    """A rule for the path of a file that contains the value."""
    return lambda value, where: rule(_file(value), where)


def files_of(*place: str) -> Rule:
    """A mapping of names to files that contain their values."""

    def convert(value: JsonValue, where: KeyPath) -> Iterable[Found]:
        if not isinstance(value, dict):
            yield Problem(where, f"found {describe_kind(value)}, expected a mapping of names to files")
            return
        for name, path in value.items():
            yield Taken((*place, name), _file(path), (*where, name))

    return convert


def variable_of(rule: Rule) -> Rule:
    """A rule for the name of a variable that contains the value."""
    return lambda value, where: rule(f"${{{value}}}" if isinstance(value, str) and value else value, where)


def inside(rules: Mapping[str, Rule], *, is_open: bool = False) -> Rule:
    """Rules for the keys of a mapping; when it `is_open`, any other key is unused."""

    def convert(value: JsonValue, where: KeyPath) -> Iterable[Found]:
        if not isinstance(value, dict):
            yield Problem(where, f"found {describe_kind(value)}, expected a mapping")
            return
        for key, each in value.items():
            if key in rules:
                if each is not None:
                    yield from rules[key](each, (*where, key))
            elif is_open:
                yield Unused((*where, key))
            else:
                yield unknown_key((*where, key), rules)

    return convert


def _file(path: JsonValue) -> JsonValue:
    """A reference to a file; an invalid path stays, and is reported as an invalid value."""
    return f"${{file:{path}}}" if isinstance(path, str) and path else path
