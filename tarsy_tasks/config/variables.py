"""References to environment variables and files in a server's configuration, such as `${NAME}`.

Owns their syntax; `resolved` replaces them with values. Nothing is resolved when a file is loaded, so agents need no
secrets of servers: a worker does it, per server, whenever it connects. References in values are not resolved.

    ${NAME}  ${env:NAME}  {{.NAME}}  the value; if NAME is unset or empty, the content of the file that NAME_FILE names
    ${NAME:-default}                 the default if there is neither, as in a shell; without a default that is an error
    ${file:/run/secrets/name}        the content of that file; the path may contain variables
    ${agent:NAME}                    the credential of the agent that calls (`agent_credentials`); never in a path
    $${                              a literal `${`; `{{.NAME}}` has no escape
"""

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import SecretStr

from tarsy_tasks.config.problems import KeyPath

__all__ = [
    "FIELDS",
    "REFERENCE",
    "RESOLVED",
    "convert_texts",
    "find_agent_references",
    "find_references",
    "has_references",
    "is_broker_variable",
    "validate_references",
    "written_text",
]

RESOLVED: Final[Mapping[str, str]] = {"variables": "resolved"}
"""Validation context of a `ServerConfig` with resolved values: a `${` in them is literal."""

FIELDS = ("command", "args", "env", "variables_file", "cwd", "sandbox", "url", "headers", "auth", "ca_file")
"""The keys of a server in which references are resolved."""

REFERENCE = re.compile(
    r"""
      (?P<escape>\$\$\{)
    | \$\{ file: (?!-) (?P<file> (?: \$\{ [^{}]* \} | \{\{ [^{}]* \}\} | \$(?!\{) | [^${}] )+ ) \}
    | \$\{ agent: (?P<agent>[A-Za-z_][A-Za-z0-9_]*) \}
    | \$\{ (?:env:)? (?P<name>[A-Za-z_][A-Za-z0-9_]*) (?: :- (?P<default> (?: (?!\$\{) [^}] )* ) )? \}
    | \{\{ [ ]* \. (?P<dotted>[A-Za-z_][A-Za-z0-9_]*) [ ]* \}\}
    | (?P<broken>\$\{)
    """,
    re.VERBOSE,
)


def find_references(text: str) -> set[str]:
    """The names of the variables that a text refers to."""
    names: set[str] = set()
    for match in REFERENCE.finditer(text):
        if match["file"]:
            names |= find_references(match["file"])
        elif name := match["name"] or match["dotted"]:
            names.add(name)
    return names


def find_agent_references(text: str) -> set[str]:
    """The names of the credentials of agents that a text refers to."""
    return {match["agent"] for match in REFERENCE.finditer(text) if match["agent"]}


def has_references(text: str) -> bool:
    """Whether a text refers to a variable, a file or a credential of an agent."""
    kinds = ("file", "name", "dotted", "agent")
    return any(match[kind] for match in REFERENCE.finditer(text) for kind in kinds)


def written_text(text: str) -> str:
    """A text with its references replaced by their defaults, or by nothing."""
    return REFERENCE.sub(lambda match: "${" if match["escape"] else match["default"] or match["broken"] or "", text)


def validate_references(text: str) -> None:
    """Check the syntax of all references in a text.

    Raises:
        ValueError: A `${` does not begin a reference. Nothing of the text is shown.
    """
    for match in REFERENCE.finditer(text):
        if match["broken"]:
            raise ValueError(
                "found a `${` that does not begin a reference, expected `${NAME}`, `${NAME:-default}`, `${env:NAME}`, "
                "`${file:/path}` or `${agent:NAME}`; write `$${` for a literal `${`"
            )
        if match["file"]:
            validate_references(match["file"])
            for kind in ("file", "agent"):
                if any(inner[kind] for inner in REFERENCE.finditer(match["file"])):
                    raise ValueError(
                        f"found a `${{{kind}:…}}` in the path of a `${{file:…}}`; only variables are allowed there"
                    )


def convert_texts(value: Any, at: KeyPath, convert: Callable[[str, KeyPath], str]) -> Any:
    """The same value with every string in it converted; keys stay."""
    if isinstance(value, SecretStr):
        return SecretStr(convert(value.get_secret_value(), at))
    if isinstance(value, str):
        return convert(value, at)
    if isinstance(value, list):
        return [convert_texts(each, (*at, index), convert) for index, each in enumerate(value)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: convert_texts(each, (*at, key), convert) for key, each in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value


_BROKER = ("TARSY_*", "CELERY_*", "BROKER_*", "FLOWER_*", "REDIS_*", "REDISCLI_*", "VALKEY_*")


def is_broker_variable(name: str) -> bool:
    """Whether a variable is one of the worker, or has a name of one with access to the broker."""
    return any(fnmatchcase(name.upper(), glob) for glob in _BROKER)
