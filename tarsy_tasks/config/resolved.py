"""A server with values in place of references: what a worker needs to reach it.

Owns what of that is secret. It lives in the process that connects, for as long as a connection; nothing here shows a
value when it is printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from tarsy_tasks.config.auth import Auth
from tarsy_tasks.config.problems import format_path
from tarsy_tasks.config.secret_places import find_secrets, is_secret_name, show_secret
from tarsy_tasks.config.servers import ServerConfig

__all__ = ["ResolvedServer", "build_resolved"]

_SHORTEST_SECRET = 6
"""A shorter value is found in texts where it means nothing."""


@dataclass(frozen=True)
class ResolvedServer:
    """The texts of a `ServerConfig`, resolved.

    Attributes:
        secrets: Every value that is a credential, or holds one: what comes from a file or from a variable that is named
            like a secret, and what stands where secrets stand; bare, to be masked wherever it turns up.
        shown: Every place that may hold a secret, and how people may see what is there.
    """

    command: str | None
    args: tuple[SecretStr, ...]
    env: Mapping[str, SecretStr]
    cwd: str | None
    url: SecretStr | None
    headers: Mapping[str, SecretStr]
    auth: Auth | None
    ca_file: str | None
    secrets: frozenset[str] = field(repr=False)
    shown: Mapping[str, str] = field(repr=False)


def build_resolved(server: ServerConfig, values: Mapping[str, str]) -> ResolvedServer:
    """The same server.

    Args:
        server: With its references resolved.
        values: Those references' values, by the names of variables and by `file:` and a path.
    """
    secrets = {value for name, value in values.items() if name.startswith("file:") or is_secret_name(name)}
    secrets.update(found.value for found in find_secrets(server))
    texts = [("env", server.env), ("headers", server.headers)]
    shown = {format_path((key, name)): show_secret(text) for key, named in texts for name, text in named.items()}
    shown |= {format_path(found.at): show_secret(found.value) for found in find_secrets(server)}
    return ResolvedServer(
        command=server.command,
        args=tuple(map(SecretStr, server.args)),
        env={name: SecretStr(value) for name, value in server.env.items()},
        cwd=server.cwd,
        url=None if server.url is None else SecretStr(server.url),
        headers={name: SecretStr(value) for name, value in server.headers.items()},
        auth=server.auth,
        ca_file=server.ca_file,
        secrets=frozenset(value for value in secrets if len(value) >= _SHORTEST_SECRET),
        shown=shown,
    )
