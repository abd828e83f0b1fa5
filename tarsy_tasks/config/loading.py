"""The configuration file: finding it, reading it, and reporting its problems.

Owns the way from a file to a `Config`, the check for secrets in it, and what it says of keys that are ignored. The
models are in `servers`, the syntax of files in `file`, the accepted forms in `roots` and `dialects`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from tarsy_tasks.config.agent_credentials import AgentCredentials
from tarsy_tasks.config.approval import Approval
from tarsy_tasks.config.auth import AUTH_MODELS
from tarsy_tasks.config.cache import Cache
from tarsy_tasks.config.elicitation import Elicitation
from tarsy_tasks.config.entries import ServerEntry
from tarsy_tasks.config.error_budget import ErrorBudget
from tarsy_tasks.config.file import ConfigFile, read_config_file
from tarsy_tasks.config.key_rules import AUTH_FILE_KEYS
from tarsy_tasks.config.masking import Masking
from tarsy_tasks.config.own_keys import OWN_KEYS
from tarsy_tasks.config.problems import KeyPath, Problem, describe_validation, format_path, quote
from tarsy_tasks.config.roots import FoundServers, find_servers, read_interceptors
from tarsy_tasks.config.sandbox import Sandbox
from tarsy_tasks.config.secret_places import find_exposed, find_written
from tarsy_tasks.config.server_ids import build_server_id
from tarsy_tasks.config.servers import Config, Retry, ServerConfig, Timeouts
from tarsy_tasks.config.summarization import Summarization
from tarsy_tasks.errors import ConfigError

__all__ = [
    "Exposure", "LoadedFile", "check_secrets", "describe_unused", "find_config_path", "load_config", "load_file",
]  # fmt: skip

_DEFAULT_FILES = ("mcp.json", "mcp.yaml")


def load_config(path: str | os.PathLike[str] | None = None) -> Config:
    """Load a configuration file. References to variables and files are checked, but not resolved.

    Args:
        path: The file; None: see `find_config_path`.

    Raises:
        ConfigError: One line for each problem.
    """
    loaded = load_file(find_config_path() if path is None else Path(path))
    return Config(
        servers={server_id: server for server_id, (_, server) in loaded.servers.items()},
        interceptors=tuple(name for name in read_interceptors(loaded.file.data) if isinstance(name, str)),
    )


class LoadedFile(NamedTuple):
    """A file without problems, what was found in it, and its servers by id, each with its entry there."""

    file: ConfigFile
    found: FoundServers
    servers: dict[str, tuple[ServerEntry, ServerConfig]]


def describe_unused(path: str | os.PathLike[str] | None = None) -> list[str]:
    """What a configuration file says that has no meaning for a worker, as the settings of a client's windows: a line
    for its keys, one for its entries.

    Raises:
        ConfigError: As `load_config`.
    """
    loaded = load_file(find_config_path() if path is None else Path(path))
    found = loaded.found
    written = f" (as {' and '.join(found.dialects)} writes it)" if found.dialects else ""
    keys: dict[str, dict[str, None]] = {"": {}}
    servers: dict[str, dict[str, None]] = {}
    for name, unused in (("", found.unused), *((entry.name or "", entry.unused) for entry in found.entries)):
        for each in unused:
            keys.setdefault(each.remedy, {})[f"`{each.where[-1]}`"] = None
            servers.setdefault(each.remedy, {})[name] = None
    lines: list[str] = []
    if servers:
        shown = [", ".join(keys.pop(""))]
        for remedy, names in keys.items():
            owners = ", ".join(filter(None, servers[remedy]))
            shown.append(f"{', '.join(names)}{owners and ' of '}{owners}: {remedy}")
        lines.append(f"{loaded.file.path}{written}: ignored, without a meaning here: {'; '.join(filter(None, shown))}")
    lines += [
        f"{loaded.file.path}{written}: left out, because {reason}: {', '.join(names)}"
        for reason, names in found.left_out.items()
    ]
    return lines


class Exposure(NamedTuple):
    """A secret that is readable for others than the server: file, line, place and problem, never the secret; and what
    to do."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


def check_secrets(path: str | os.PathLike[str] | None = None) -> list[Exposure]:
    """The secrets that a configuration file itself contains, or passes on a command line.

    Raises:
        ConfigError: As `load_config`.
    """
    file, _, servers = load_file(find_config_path() if path is None else Path(path))
    found: dict[KeyPath, tuple[str, str]] = {}
    for entry, server in servers.values():
        found |= {entry.locate(at): _EXPOSED for at in find_exposed(server)}
        found |= {entry.locate(at): _WRITTEN for at in find_written(server)}
    lines = zip(file.locate([*found]), found.items(), strict=True)
    # The place comes last: text behind the name of a secret would be masked in a log.
    return [Exposure(f"{line}: {what} ({format_path(at)})", remedy) for line, (at, (what, remedy)) in lines]


_WRITTEN = (
    "the file itself contains what looks like a secret",
    "replace it with `${NAME}` and set NAME where the workers run, or with `${file:/path}`",
)

_EXPOSED = (
    "a secret is passed on the server's command line, where every user can read it (`ps`)",
    "pass it in `env`, if the server supports that",
)


def load_file(path: Path) -> LoadedFile:
    """A file, with what is needed to say where each value is.

    Raises:
        ConfigError: As `load_config`.
    """
    file = read_config_file(path)
    found = find_servers(file.data, path)
    servers: dict[str, tuple[ServerEntry, ServerConfig]] = {}
    problems = [*file.problems, *found.problems]
    problems += [each for each in read_interceptors(file.data) if isinstance(each, Problem)]
    named: dict[str, ServerEntry] = {}
    for entry in found.entries:
        problems += entry.problems
        server_id = "unnamed"
        try:
            if entry.name is not None:
                server_id = build_server_id(entry.name)
                if (first := named.setdefault(server_id, entry)) is not entry:
                    problems.append(_describe_clash(server_id, entry, first))
        except ValueError as error:
            problems.append(Problem(entry.at, str(error)))
        try:
            server = ServerConfig.model_validate({**entry.values, "name": server_id})
        except ValidationError as error:
            problems += describe_validation(error, entry.locate, _known_keys)
        else:
            servers[server_id] = entry, server
    if problems:
        raise file.build_error(problems)
    return LoadedFile(file, found, servers)


def _describe_clash(server_id: str, entry: ServerEntry, first: ServerEntry) -> Problem:
    names = f"the name {quote(entry.name or '')} and the name {quote(first.name or '')} of `{format_path(first.at)}`"
    return Problem(entry.at, f"{names} give the same server id `{server_id}`; rename one of them")


def _known_keys(loc: KeyPath) -> Iterable[str]:
    """The valid keys in a file for the mapping at a place of a `ServerConfig`."""
    match loc:
        case ("timeouts",):
            return [*Timeouts.model_fields]
        case ("retry",):
            return [*Retry.model_fields]
        case ("error_budget",):
            return [*ErrorBudget.model_fields]
        case ("agent_credentials",):
            return [*AgentCredentials.model_fields]
        case ("cache",):
            return [*Cache.model_fields]
        case ("summarization",):
            return [*Summarization.model_fields]
        case ("masking",):
            return [*Masking.model_fields]
        case ("sandbox",):
            return [*Sandbox.model_fields]
        case ("approval",):
            return [*Approval.model_fields]
        case ("elicitation",):
            return [*Elicitation.model_fields]
        case ("auth", str(auth_type)):
            fields = AUTH_MODELS[auth_type].model_fields
            known = {field.alias or name for name, field in fields.items()}
            return [*known, *(key for key, of in AUTH_FILE_KEYS.items() if of in known)]
        case _:
            return OWN_KEYS


def find_config_path() -> Path:
    """The file to load: `TARSY_MCP_CONFIG`, else `mcp.json`, else `mcp.yaml` in the working directory. With
    `TARSY_MCP_CONFIG=redis`, the copy of the configuration in Redis, brought up to date.

    Raises:
        ConfigError: There is no file.
    """
    # pydantic-settings is slow to import, and not needed when the path is given.
    from tarsy_tasks.config.record import find_record
    from tarsy_tasks.settings import load_settings

    if (record := find_record(load_config)) is not None:
        return record.find_copy()
    if (configured := load_settings().mcp_config) is not None:
        if not os.path.exists(configured):  # noqa: PTH110  Path.exists raises where a directory may not be searched
            raise ConfigError(f"{configured}: the file does not exist or is not accessible; TARSY_MCP_CONFIG names it")
        return configured
    for name in _DEFAULT_FILES:
        if os.path.exists(name):  # noqa: PTH110
            return Path(name)
    raise ConfigError(
        f"no configuration file: TARSY_MCP_CONFIG is not set, and {Path.cwd()} has no {' or '.join(_DEFAULT_FILES)}; "
        'create mcp.json there, {"mcpServers": {}} with your servers, or set TARSY_MCP_CONFIG to the path of a file'
    )
