"""Files of secrets, and of variables: can other users of this machine read, change or replace them?"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tarsy_tasks.config import ServerConfig, resolve_variables
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.file_rights import FileRights, find_rights
from tarsy_tasks.settings import Settings, find_setting_files
from tarsy_tasks.worker.transport.agent_secrets import find_untrusted

__all__ = ["check_secret_files"]

_EVERYBODY = "every user of this machine can"
_SHOWN = 10


def check_secret_files(servers: Iterable[ServerConfig], settings: Settings) -> Iterator[Finding]:
    """Check the files that the worker and its enabled servers read."""
    servers = list(servers)
    readers: dict[Path, list[str]] = {}
    for path, reader in (*_of_settings(settings), *_of_servers(servers)):
        readers.setdefault(Path(os.path.abspath(path)), []).append(reader)  # noqa: PTH100  links stay as they are
    if settings.signing_trusted is not None:
        yield from _check_trusted(settings.signing_trusted)
    if settings.agent_secrets is not None and any(server.agent_variables for server in servers):
        yield from _check_agents(settings.agent_secrets)
    found = [finding for path in readers for finding in _check(path, ", ".join(dict.fromkeys(readers[path])))]
    if readers and not found:
        found = [Finding.ok("secrets", f"no other user can read or change the {len(readers)} files with secrets")]
    yield from found


def _check_agents(directory: Path) -> Iterator[Finding]:
    """The credentials of agents, of which workers use none that others can change or read."""
    if not directory.is_dir():
        yield Finding.error("secrets", f"{directory} (TARSY_AGENT_SECRETS) is not a directory", "create or mount it")
        return
    paths = [directory, *sorted(directory.glob("[!.]*")), *sorted(directory.glob("[!.]*/[!.]*"))]
    problems = [problem for path in paths if (problem := find_untrusted(path, is_root=path is directory))]
    for problem in problems[:_SHOWN]:
        text, _, remedy = problem.partition("; ")
        yield Finding.error("secrets", f"{text} (TARSY_AGENT_SECRETS), so workers do not use it", remedy)
    if (more := len(problems) - _SHOWN) > 0:
        text = f"{directory} (TARSY_AGENT_SECRETS): {more} more files or folders that workers do not use"
        yield Finding.error("secrets", text, "correct these first, and run doctor again")
    if not problems:
        agents = sum(path.is_dir() for path in paths[1:])
        yield Finding.ok("secrets", f"only workers can read or change the credentials of {agents} agents")


def _of_settings(settings: Settings) -> Iterator[tuple[str, str]]:
    for variable, path in find_setting_files().items():
        yield path, f"{variable}_FILE"
    if settings.signing_key is not None:
        yield str(settings.signing_key), "TARSY_SIGNING_KEY"


def _of_servers(servers: Iterable[ServerConfig]) -> Iterator[tuple[str, str]]:
    for server in servers:
        try:
            files = resolve_variables(server, os.environ).files
        except ConfigError:
            continue  # which is a finding of its start
        for path in files:
            yield path, f"server {server.name}"


def _check(path: Path, readers: str) -> Iterator[Finding]:
    try:
        rights = find_rights(path)
    except OSError:
        return  # who reads it says so
    where = f"{path} ({readers})"
    yield from _check_writing(path, where, rights)
    if not rights.can_read:
        return
    text = f"{where}: {_EVERYBODY} read it"
    if rights.is_mounted:
        remedy = "if others can log in here: set its mode where it is mounted (`defaultMode` in Kubernetes)"
        yield Finding.note("secrets", text, remedy)
    else:
        yield Finding.warning("secrets", text, f"chmod o-r {path}")


def _check_writing(path: Path, where: str, rights: FileRights) -> Iterator[Finding]:
    if rights.can_write:
        text = f"{where}: {_EVERYBODY} write it, and so change what workers use"
        yield Finding.error("secrets", text, f"chmod o-w {path}")
    elif rights.can_replace:
        text = f"{where}: {_EVERYBODY} replace it, because they can write to its directory"
        yield Finding.error("secrets", text, f"chmod o-w {path.resolve().parent}")
    elif rights.other_owner is not None:
        owner = f"another user of this machine (uid {rights.other_owner})"
        text = f"{where}: it or its directory belongs to {owner}, who can change it"
        yield Finding.warning("secrets", text, "let it belong to root, or to the user of the workers")


def _check_trusted(directory: Path) -> Iterator[Finding]:
    try:
        rights = find_rights(directory)
    except OSError:
        return
    if rights.can_write or rights.can_replace:
        text = f"{directory} (TARSY_SIGNING_TRUSTED): {_EVERYBODY} add a certificate, and so sign messages"
        writable = directory if rights.can_write else directory.resolve().parent
        yield Finding.error("secrets", text, f"chmod o-w {writable}")
