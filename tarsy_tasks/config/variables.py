"""References to environment variables and files in the texts of a server's configuration: `${NAME}` and its kin.

Owns their syntax and resolving them. Nothing is resolved when a file is loaded, so that agents need no server's
secrets: a worker does it, per server, whenever it connects. A value is never scanned for references again.

    ${NAME}  ${env:NAME}  {{.NAME}}  the value; where NAME is unset or empty, the text of the file that NAME_FILE names
    ${NAME:-default}                 the default when there is neither, as in a shell; without one that is an error
    ${file:/run/secrets/name}        the text of that file; variables may stand in the path
    $${                              a literal `${`; `{{.NAME}}` has no escape
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr, ValidationError

from tarsy_tasks.config.problems import KeyPath, Problem, describe_validation
from tarsy_tasks.config.secret_files import read_secret_file
from tarsy_tasks.errors import ConfigError

if TYPE_CHECKING:
    from tarsy_tasks.config.resolved import ResolvedServer
    from tarsy_tasks.config.servers import ServerConfig

__all__ = [
    "FIELDS",
    "RESOLVED",
    "find_references",
    "has_references",
    "resolve_variables",
    "validate_references",
    "variables_of",
    "written_text",
]

RESOLVED: Final[Mapping[str, str]] = {"variables": "resolved"}
"""Validation context of a `ServerConfig` whose texts hold values: what looks like a reference in them is literal."""

FIELDS = ("command", "args", "env", "cwd", "url", "headers", "auth", "ca_file")
"""The keys of a server in whose texts references are resolved."""

_REFERENCE = re.compile(
    r"""
      (?P<escape>\$\$\{)
    | \$\{ file: (?!-) (?P<file> (?: \$\{ [^{}]* \} | \{\{ [^{}]* \}\} | \$(?!\{) | [^${}] )+ ) \}
    | \$\{ (?:env:)? (?P<name>[A-Za-z_][A-Za-z0-9_]*) (?: :- (?P<default> (?: (?!\$\{) [^}] )* ) )? \}
    | \{\{ [ ]* \. (?P<dotted>[A-Za-z_][A-Za-z0-9_]*) [ ]* \}\}
    | (?P<broken>\$\{)
    """,
    re.VERBOSE,
)


def find_references(text: str) -> set[str]:
    """The names of the variables that a text refers to."""
    names: set[str] = set()
    for match in _REFERENCE.finditer(text):
        if match["file"]:
            names |= find_references(match["file"])
        elif name := match["name"] or match["dotted"]:
            names.add(name)
    return names


def has_references(text: str) -> bool:
    """Whether a text refers to a variable or a file."""
    return any(match["file"] or match["name"] or match["dotted"] for match in _REFERENCE.finditer(text))


def written_text(text: str) -> str:
    """What a text says by itself: defaults, and nothing in place of the other references."""
    return _REFERENCE.sub(lambda match: "${" if match["escape"] else match["default"] or match["broken"] or "", text)


def validate_references(text: str) -> None:
    """Check the syntax of all references in a text.

    Raises:
        ValueError: A `${` begins no reference. Shows nothing of the text.
    """
    for match in _REFERENCE.finditer(text):
        if match["broken"]:
            raise ValueError(
                "found a `${` that begins no variable, expected `${NAME}`, `${NAME:-default}`, `${env:NAME}` or "
                "`${file:/path}`; write `$${` for a literal `${`"
            )
        if match["file"]:
            validate_references(match["file"])
            if any(inner["file"] for inner in _REFERENCE.finditer(match["file"])):
                raise ValueError("found a `${file:…}` within the path of another one, expected variables at most")


def variables_of(server: "ServerConfig") -> set[str]:
    """The names of all variables that a server's configuration refers to."""
    names: set[str] = set()

    def collect(text: str, _: KeyPath) -> str:
        names.update(find_references(text))
        return text

    _convert(server.model_dump(include=set(FIELDS)), (), collect)
    return names


def resolve_variables(server: "ServerConfig", environ: Mapping[str, str]) -> "ResolvedServer":
    """The server with the values of `environ` and of files in place of references; only for the process that connects.

    Raises:
        ConfigError: A variable is unset and has no default, a file cannot be read, or what came of a text is no valid
            value. It names variables, files and places, no values.
    """
    # They consist of the texts whose syntax is known here.
    from tarsy_tasks.config.auth import without_auth_type
    from tarsy_tasks.config.resolved import build_resolved

    at: KeyPath = ("servers", server.name)
    problems: list[Problem] = []
    values: dict[str, str] = {}

    def resolve(text: str, place: KeyPath) -> str:
        def read(path: str, because: str = "") -> str:
            try:
                value = read_secret_file(path)
            except ValueError as error:
                problems.append(Problem(at + place, f"{because}{error}"))
                return ""
            values[f"file:{path}"] = value
            return value

        def replace(match: re.Match[str]) -> str:
            if match["escape"]:
                return "${"
            if match["file"]:
                before = len(problems)
                path = _REFERENCE.sub(replace, match["file"])
                return read(path) if len(problems) == before else ""
            name = match["name"] or match["dotted"]
            if name is None:
                return match[0]
            value = environ.get(name)
            if not value and (path := environ.get(f"{name}_FILE")):
                return read(path, f"{name}_FILE: ")
            if match["default"] is not None:
                value = value or match["default"]
            if value is None:
                remedy = f"set it where the worker runs, or write `${{{name}:-default}}`"
                problems.append(Problem(at + place, f"the variable {name} is not set; {remedy}"))
                return ""
            values[name] = value
            return value

        return _REFERENCE.sub(replace, text)

    unresolved = server.model_dump(by_alias=True)
    resolved = unresolved | {field: _convert(unresolved[field], (field,), resolve) for field in FIELDS}
    if not problems:
        try:
            return build_resolved(type(server).model_validate(resolved, context=RESOLVED), values)
        except ValidationError as error:
            problems = describe_validation(error, lambda loc: at + without_auth_type(loc), lambda _: ())
    raise ConfigError("\n".join(map(str, dict.fromkeys(problems))))


def _convert(value: Any, at: KeyPath, convert: Callable[[str, KeyPath], str]) -> Any:
    """The same value with every text in it converted; keys stay."""
    if isinstance(value, SecretStr):
        return SecretStr(convert(value.get_secret_value(), at))
    if isinstance(value, str):
        return convert(value, at)
    if isinstance(value, list):
        return [_convert(each, (*at, index), convert) for index, each in enumerate(value)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: _convert(each, (*at, key), convert) for key, each in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value
