"""Which of the worker's environment variables the process of a stdio server inherits.

Owns the rule of `inherit_env`. It is hygiene, not a security boundary: a process of the same user can read the worker's
environment in `/proc`.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tarsy_tasks.config.problems import KeyPath
from tarsy_tasks.config.variables import FIELDS, convert_texts, find_references, is_broker_variable

if TYPE_CHECKING:
    from tarsy_tasks.config.servers import ServerConfig

__all__ = ["Inheritance", "variables_of"]

_BASIC = ("HOME", "LANG", "LANGUAGE", "LC_*", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that almost every program needs and that contain no secret."""


class Inheritance:
    """The rule, applied to all servers of a configuration.

    Args:
        servers: All of them, including those that this worker does not serve.
        broker_urls: Of the broker and the result backend. Any variable that contains one of them, or its password, is
            not inherited.
    """

    def __init__(self, servers: Iterable["ServerConfig"] = (), broker_urls: Iterable[str] = ()) -> None:
        self.replace_servers(servers)
        self._urls = tuple(filter(None, broker_urls))
        self._passwords = {password for url in self._urls for password in _passwords_of(url)}

    def replace_servers(self, servers: Iterable["ServerConfig"]) -> None:
        """The configuration has changed; processes that run keep what they inherited."""
        self._names = {server.name: _with_files(variables_of(server)) for server in servers}

    def environment_for(self, server: "ServerConfig", environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of `environ` that the server's process inherits; its own `env` is not included."""
        own = _with_files(variables_of(server))
        foreign = {name for other, names in self._names.items() if other != server.name for name in names} - own
        return {
            name: value
            for name, value in environ.items()
            if _matches(name, _BASIC)
            or (
                (server.inherit_env == "all" or _matches(name, server.inherit_env))
                and name not in foreign
                and not is_broker_variable(name)
                and not self._leads_to_broker(value)
            )
        }

    def _leads_to_broker(self, value: str) -> bool:
        return any(value == each or f":{each}@" in value for each in self._passwords) or any(
            url in value for url in self._urls
        )


def _matches(name: str, globs: str | Iterable[str]) -> bool:
    return not isinstance(globs, str) and any(fnmatchcase(name, glob) for glob in globs)


def _with_files(names: set[str]) -> set[str]:
    return names | {f"{name}_FILE" for name in names}


def _passwords_of(url: str) -> set[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()


def variables_of(server: "ServerConfig") -> set[str]:
    """The names of all variables that a server's configuration refers to."""
    names: set[str] = set()

    def collect(text: str, _: KeyPath) -> str:
        names.update(find_references(text))
        return text

    convert_texts(server.model_dump(include=set(FIELDS)), (), collect)
    return names
