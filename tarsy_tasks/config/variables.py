"""References to environment variables in the texts of a server's configuration: `${NAME}` and its kin.

Owns their syntax and resolving them. Nothing is resolved when a file is loaded, so that agents need no server's
secrets: a worker does it, per server, just before it connects. A value is never scanned for references again.

    ${NAME}  ${env:NAME}  {{.NAME}}    the value; unset is an error
    ${NAME:-default}                   the default when NAME is unset or empty, as in a shell
    $${                                a literal `${`; `{{.NAME}}` has no escape
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue, ValidationError

from tarsy_tasks.config.problems import KeyPath, Problem, describe_validation
from tarsy_tasks.errors import ConfigError

if TYPE_CHECKING:
    from tarsy_tasks.config.servers import ServerConfig

__all__ = ["RESOLVED", "find_references", "resolve_variables", "validate_references", "variables_of"]

RESOLVED: Final[Mapping[str, str]] = {"variables": "resolved"}
"""Validation context of a `ServerConfig` whose texts hold values: what looks like a reference in them is literal."""

_FIELDS = ("command", "args", "env", "cwd", "url", "headers", "auth", "ca_file")

_REFERENCE = re.compile(
    r"""
      (?P<escape>\$\$\{)
    | \$\{ (?:env:)? (?P<name>[A-Za-z_][A-Za-z0-9_]*) (?: :- (?P<default> (?: (?!\$\{) [^}] )* ) )? \}
    | \{\{ [ ]* \. (?P<dotted>[A-Za-z_][A-Za-z0-9_]*) [ ]* \}\}
    | (?P<broken>\$\{)
    """,
    re.VERBOSE,
)


def find_references(text: str) -> set[str]:
    """The names of the variables that a text refers to."""
    return {name for match in _REFERENCE.finditer(text) if (name := match["name"] or match["dotted"])}


def validate_references(text: str) -> None:
    """Check the syntax of all references in a text.

    Raises:
        ValueError: A `${` begins no reference. Shows nothing of the text.
    """
    if any(match["broken"] for match in _REFERENCE.finditer(text)):
        raise ValueError(
            "found a `${` that begins no variable, expected `${NAME}`, `${NAME:-default}` or `${env:NAME}`; "
            "write `$${` for a literal `${`"
        )


def variables_of(server: "ServerConfig") -> set[str]:
    """The names of all variables that a server's configuration refers to."""
    names: set[str] = set()

    def collect(text: str, _: KeyPath) -> str:
        names.update(find_references(text))
        return text

    _convert(server.model_dump(include=set(_FIELDS)), (), collect)
    return names


def resolve_variables(server: "ServerConfig", environ: Mapping[str, str]) -> "ServerConfig":
    """The configuration with the values of `environ` in place of references; only for the process that connects.

    Raises:
        ConfigError: A variable is unset and has no default, or what came of a text is no valid value. It names
            variables and places, no values.
    """
    at: KeyPath = ("servers", server.name)
    problems: list[Problem] = []

    def resolve(text: str, place: KeyPath) -> str:
        def replace(match: re.Match[str]) -> str:
            if match["escape"]:
                return "${"
            name = match["name"] or match["dotted"]
            if name is None:
                return match[0]
            value = environ.get(name)
            if match["default"] is not None:
                return value or match["default"]
            if value is None:
                remedy = f"set it where the worker runs, or write `${{{name}:-default}}`"
                problems.append(Problem(at + place, f"the variable {name} is not set; {remedy}"))
            return value or ""

        return _REFERENCE.sub(replace, text)

    unresolved = server.model_dump()
    resolved = unresolved | {field: _convert(unresolved[field], (field,), resolve) for field in _FIELDS}
    if not problems:
        try:
            return type(server).model_validate(resolved, context=RESOLVED)
        except ValidationError as error:
            problems = describe_validation(error, lambda loc: at + loc, lambda _: ())
    raise ConfigError("\n".join(map(str, dict.fromkeys(problems))))


def _convert(value: JsonValue, at: KeyPath, convert: Callable[[str, KeyPath], str]) -> JsonValue:
    """The same JSON value with every text in it converted; keys stay."""
    if isinstance(value, str):
        return convert(value, at)
    if isinstance(value, list):
        return [_convert(each, (*at, index), convert) for index, each in enumerate(value)]
    if isinstance(value, dict):
        return {key: _convert(each, (*at, key), convert) for key, each in value.items()}
    return value
