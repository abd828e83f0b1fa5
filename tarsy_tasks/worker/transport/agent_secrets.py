"""The credentials of agents, for servers that are used with them: `TARSY_AGENT_SECRETS/<agent>/<NAME>`.

Owns reading them from that directory, and which of its files are trusted: an agent's name and links lead nowhere else,
and no other user of the machine can read or change what is read. Files are read in a thread. Whose sessions use them is
in `sessions.agent_pool`.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from tarsy_tasks.broker.principals import is_agent_name
from tarsy_tasks.config import ServerConfig, resolve_variables
from tarsy_tasks.config.resolved import ResolvedServer
from tarsy_tasks.errors import ConfigError, NoCredentialError
from tarsy_tasks.file_rights import find_rights
from tarsy_tasks.secret_files import read_secret_file

__all__ = [
    "SERVICE",
    "CredentialSource",
    "ReadCredentials",
    "SecretsDirectory",
    "digest_of",
    "find_untrusted",
    "resolve_server",
]

SERVICE = "worker"
"""The name of the workers' own credential. No agent can have it."""

ReadCredentials = Callable[[], Awaitable[Mapping[str, str]]]
"""Reads the credentials of one agent, by name. Raises as `CredentialSource.read`."""


def digest_of(credentials: Mapping[str, str]) -> str:
    """By which it is seen that credentials have changed, without keeping them."""
    return hashlib.sha256(json.dumps(dict(credentials), sort_keys=True).encode()).hexdigest()


class CredentialSource(Protocol):
    """Where credentials come from.

    Attributes:
        max_age_s: For how long what was read is used without reading it again.
    """

    max_age_s: float

    async def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        """The credentials of an agent, all that are asked for.

        Raises:
            NoCredentialError: It has none, or not all of them.
            ConfigError: They cannot be read, or must not be used.
        """
        ...


class SecretsDirectory:
    """The directory of `TARSY_AGENT_SECRETS`; None: it is not set."""

    max_age_s = 1.0

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    async def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        """As `CredentialSource.read`."""
        if self._directory is None:
            raise ConfigError(
                "neither TARSY_AGENT_SECRETS nor TARSY_CREDENTIAL_PROVIDER is set, so no credentials of agents can be "
                "read"
            )
        # Such a name would lead to another directory, or is not one that an agent can have.
        if agent.startswith(".") or not (is_agent_name(agent) or agent == SERVICE):
            raise NoCredentialError(f"{agent!r} cannot be the name of a directory of credentials")
        return await asyncio.to_thread(_read_all, self._directory, agent, names)


def _read_all(directory: Path, agent: str, names: Collection[str]) -> dict[str, str]:
    return {name: _read(directory, agent, name) for name in sorted(names)}


def _read(directory: Path, agent: str, name: str) -> str:
    try:
        folder = directory.resolve(strict=True) / agent
    except OSError as error:
        raise ConfigError(f"TARSY_AGENT_SECRETS: {directory} cannot be read: {error.strerror}") from None
    # Kubernetes mounts a secret as links within its own directory.
    path = Path(os.path.realpath(folder / name))
    if Path(os.path.realpath(folder)) != folder or folder not in path.parents:
        raise ConfigError(f"{folder / name}: a link leads out of {folder}; put the file itself there")
    if not path.exists():
        raise NoCredentialError(f"{folder / name} does not exist")
    for each in (directory, folder, path):
        if problem := find_untrusted(each, is_root=each is directory):
            raise ConfigError(problem)
    try:
        return read_secret_file(str(path))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def find_untrusted(path: Path, *, is_root: bool = False) -> str:
    """Why a file or a directory of credentials is not used, and the remedy; empty if it is.

    Args:
        is_root: It is the directory of all agents: its names are no secret, and its parent may be anybody's.
    """
    try:
        rights = find_rights(path)
    except OSError as error:
        return f"{path} cannot be examined: {error.strerror}"
    if rights.can_write or rights.can_replace:
        return f"{path}: every user of this machine can change it; run `chmod o-w` for it and its directory"
    if is_root:
        return ""
    if rights.other_owner is not None:
        return f"{path}: the user {rights.other_owner} owns it or its directory; give both to the user of the workers"
    if rights.can_read and not rights.is_mounted and path.is_file():
        return f"{path}: every user of this machine can read it; run `chmod o-r {path}`"
    return ""


async def resolve_server(server: ServerConfig, read: ReadCredentials | None) -> ResolvedServer:
    """The server with its references resolved, in a thread.

    Args:
        read: Reads the credentials of the agent that it is used for; None: of no agent.

    Raises:
        ConfigError: As `resolve_variables` and `CredentialSource.read`.
    """
    of_agent = None if read is None else await read()
    return await asyncio.to_thread(resolve_variables, server, os.environ, of_agent)
