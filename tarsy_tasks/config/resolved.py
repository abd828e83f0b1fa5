"""A server with its references resolved: what a worker needs to connect.

Owns which of its values are secret. It exists only in the process that connects; no repr shows a value.
"""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import SecretStr, ValidationError

from tarsy_tasks.config.auth import Auth, without_auth_type
from tarsy_tasks.config.problems import KeyPath, Problem, describe_validation, format_path
from tarsy_tasks.config.sandbox import Sandbox
from tarsy_tasks.config.secret_places import find_secrets, is_secret_name, show_secret
from tarsy_tasks.config.servers import ServerConfig
from tarsy_tasks.config.variables import FIELDS, REFERENCE, RESOLVED, convert_texts
from tarsy_tasks.config.variables_file import read_variables_file
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.secret_files import read_secret_file

__all__ = ["ResolvedServer", "resolve_variables"]

_NATIVE_SERVER = "tarsy_tasks.native"
"""The program that serves the functions of a module, with the interpreter of the worker."""
_SHORTEST_SECRET = 6
"""A shorter value also occurs in unrelated text."""


@dataclass(frozen=True)
class ResolvedServer:
    """The strings of a `ServerConfig`, resolved.

    Attributes:
        secrets: Every value that is or contains a credential: from a file, from a variable with the name of a secret,
            or at a place for secrets. They are masked wherever they appear.
        shown: Every place that may contain a secret, and how its value may be displayed.
        files: The paths of the files that were read; two that get the same values from elsewhere are equal.
        inherited: Of a stdio server, the variables of the worker that its process inherits.
    """

    command: str | None
    args: tuple[SecretStr, ...]
    env: Mapping[str, SecretStr]
    cwd: str | None
    sandbox: Sandbox | None
    url: SecretStr | None
    headers: Mapping[str, SecretStr]
    auth: Auth | None
    ca_file: str | None
    secrets: frozenset[str] = field(repr=False)
    shown: Mapping[str, str] = field(repr=False)
    files: tuple[str, ...] = field(default=(), compare=False)
    inherited: Mapping[str, str] = field(default_factory=dict[str, str], repr=False, compare=False)

    @cached_property
    def identity(self) -> str:
        """A digest, in hexadecimal, of what the server is asked as: its program or address, and the credentials. It is
        one that is slow to guess from, a few milliseconds. Of what is inherited only variables with names of secrets
        count: others differ between workers, and say nothing about what may be read.
        """
        address = [self.command, *map(_reveal, self.args), self.cwd, _reveal(self.url)]
        inherited = {name: value for name, value in self.inherited.items() if is_secret_name(name)}
        named: list[Mapping[str, Any]] = [{**inherited, **self.env}, self.headers, dict(self.auth or ())]
        plain = [{name: _reveal(value) for name, value in each.items()} for each in named]
        text = json.dumps([address, plain], sort_keys=True).encode()
        return hashlib.scrypt(text, salt=b"tarsy-tasks", n=1024, r=8, p=1, dklen=32).hex()


def _reveal(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _build_resolved(server: ServerConfig, values: Mapping[str, str]) -> ResolvedServer:
    """A server whose references are resolved; `values` are theirs, by variable name, `file:` and the path, or
    `agent:` and the name."""
    files = [name.removeprefix("file:") for name in values if name.startswith("file:")]
    secrets = {value for name, value in values.items() if name.startswith(("file:", "agent:")) or is_secret_name(name)}
    found = list(find_secrets(server))
    secrets.update(each.value for each in found)
    texts = [("env", server.env), ("headers", server.headers)]
    shown = {format_path((key, name)): show_secret(text) for key, named in texts for name, text in named.items()}
    shown |= {format_path(each.at): show_secret(each.value) for each in found}
    command, args = server.command, server.args
    if server.native is not None:
        command, args = sys.executable, ["-m", _NATIVE_SERVER, server.name, server.native]
    return ResolvedServer(
        command=command,
        args=tuple(map(SecretStr, args)),
        env={name: SecretStr(value) for name, value in server.env.items()},
        cwd=server.cwd,
        sandbox=server.sandbox,
        url=None if server.url is None else SecretStr(server.url),
        headers={name: SecretStr(value) for name, value in server.headers.items()},
        auth=server.auth,
        ca_file=server.ca_file,
        secrets=frozenset(value for value in secrets if len(value) >= _SHORTEST_SECRET),
        shown=shown,
        files=(*files, *([server.variables_file] if server.variables_file else ())),
    )


def resolve_variables(
    server: ServerConfig, environ: Mapping[str, str], of_agent: Mapping[str, str] | None = None
) -> ResolvedServer:
    """The server with references replaced by the values of `environ` and of files; only for the process that connects.

    Args:
        of_agent: The credentials of the agent that it is used for; None: of no agent.

    Raises:
        ConfigError: A variable is unset and has no default, a file cannot be read, or a resolved value is not valid. It
            names variables, files and places, never values.
    """
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

        def credential(name: str) -> str:
            if of_agent is None or name not in of_agent:
                problems.append(
                    Problem(at + place, f"the credential {name} is one of an agent, and there is none here")
                )
                return ""
            values[f"agent:{name}"] = of_agent[name]
            return of_agent[name]

        def replace(match: re.Match[str]) -> str:
            if match["escape"]:
                return "${"
            if match["file"]:
                before = len(problems)
                path = REFERENCE.sub(replace, match["file"])
                return read(path) if len(problems) == before else ""
            if match["agent"]:
                return credential(match["agent"])
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

        return REFERENCE.sub(replace, text)

    unresolved = server.model_dump(by_alias=True)
    resolved = unresolved | {field: convert_texts(unresolved[field], (field,), resolve) for field in FIELDS}
    if not problems and (path := resolved["variables_file"]):
        try:
            resolved["env"] = {**read_variables_file(path), **resolved["env"]}
        except ValueError as error:
            problems.append(Problem((*at, "variables_file"), str(error)))
    if not problems:
        try:
            return _build_resolved(type(server).model_validate(resolved, context=RESOLVED), values)
        except ValidationError as error:
            problems = describe_validation(error, lambda loc: at + without_auth_type(loc), lambda _: ())
    raise ConfigError("\n".join(map(str, dict.fromkeys(problems))))
