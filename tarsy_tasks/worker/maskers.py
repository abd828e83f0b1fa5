"""The maskers of a worker: one for each server, by its configuration, and one for whatever is of no server.

Owns the secrets that the worker itself knows: what its configuration resolves to, and the credentials of the broker.
They are masked by value in everything, also where a server has masking switched off. How masking is done is the
package's (`tarsy_tasks.masking`).
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.masking import masker
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import Masker

__all__ = [
    "Masker",
    "build_common_masker",
    "build_masker",
    "build_record_masker",
    "build_server_masker",
    "know_broker",
    "known_secrets",
]

known_secrets = KnownSecrets()
"""Of this process. What is added is masked by every masker that was built here, from then on."""


def build_masker(groups: Iterable[str] | None = None) -> Masker:
    """The masker for what is of no server.

    Args:
        groups: Names of groups of patterns, or of single ones, beside what is always masked; None: `basic`.

    Raises:
        ValueError: There is no such group; the text lists what there is.
    """
    return masker.build_masker(groups, known=known_secrets)


def build_server_masker(server: ServerConfig) -> Masker:
    """The masker for what a server says, or is said about it."""
    settings = server.masking
    return masker.build_masker(
        settings.groups, patterns=settings.patterns, known=known_secrets, is_enabled=settings.enabled
    )


def build_record_masker(server: ServerConfig) -> Masker:
    """The masker for what is kept of a server's calls, also where its masking is switched off."""
    settings = server.masking
    return masker.build_masker(settings.groups, patterns=settings.patterns, known=known_secrets)


def build_common_masker(servers: Iterable[ServerConfig]) -> Masker:
    """The masker for what may be of any of these servers, such as a line of the log: what one of them has masked is."""
    settings = [server.masking for server in servers]
    groups = {"basic", *(group for each in settings for group in each.groups)}
    patterns = dict.fromkeys(pattern for each in settings for pattern in each.patterns)
    return masker.build_masker(sorted(groups), patterns=list(patterns), known=known_secrets)


def know_broker(conf: Any) -> None:
    """Mask the passwords of the broker and the result backend, too.

    Args:
        conf: Celery's settings.
    """
    urls: list[str] = []
    for setting in (conf.broker_url, conf.broker_read_url, conf.broker_write_url, conf.result_backend):
        urls += str(setting or "").split(";")
    known_secrets.add(filter(None, map(_password_of, urls)))


def _password_of(url: str) -> str | None:
    """The password of an address, None when it has none, or is no address."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return None
    return unquote(password) if password else None
