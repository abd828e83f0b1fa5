"""The maskers of a worker: one per server, by its configuration, and one for texts that belong to no server.

Owns the secrets that the worker knows: the resolved values of its configuration, and the broker's passwords. They are
masked by value in all texts, even where a server has masking switched off. Masking itself is in `tarsy_tasks.masking`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.masking import masker
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import Masker
from tarsy_tasks.worker.masking_process import Rules, masking_process

__all__ = [
    "Masker",
    "add_broker_secrets",
    "build_common_masker",
    "build_masker",
    "build_record_masker",
    "build_server_masker",
    "build_value_masker",
    "known_secrets",
]

known_secrets = KnownSecrets()
"""The known secrets of this process. Once a secret is added, every masker that was built here masks it."""


def build_masker(groups: Iterable[str] | None = None) -> Masker:
    """The masker for texts that belong to no server.

    Args:
        groups: Names of pattern groups or of single patterns, beside what is always masked; None: `basic`.

    Raises:
        ValueError: There is no such group; the text lists the known ones.
    """
    return _build(groups)


def build_server_masker(server: ServerConfig) -> Masker:
    """The masker for texts from a server or about it."""
    settings = server.masking
    return _build(settings.groups, settings.patterns, is_enabled=settings.enabled)


def build_record_masker(server: ServerConfig) -> Masker:
    """The masker for stored records of a server's calls, even where its masking is switched off."""
    settings = server.masking
    return _build(settings.groups, settings.patterns)


def build_value_masker() -> Masker:
    """The masker for our own sentences about a configuration: it masks known secrets, wherever they stand."""
    return _build([], is_enabled=False)


def build_common_masker(servers: Iterable[ServerConfig]) -> Masker:
    """The masker for texts of any of these servers, such as log lines: it masks what any of them masks."""
    settings = [server.masking for server in servers]
    groups = {"basic", *(group for each in settings for group in each.groups)}
    patterns = dict.fromkeys(pattern for each in settings for pattern in each.patterns)
    return _build(sorted(groups), list(patterns))


def _build(groups: Iterable[str] | None, patterns: Sequence[str] = (), *, is_enabled: bool = True) -> Masker:
    groups = None if groups is None else tuple(groups)
    built = masker.build_masker(groups, patterns=patterns, known=known_secrets, is_enabled=is_enabled)
    rules = Rules(groups, tuple(patterns), is_enabled, known_secrets)
    return replace(built, elsewhere=partial(masking_process.mask, rules))


def add_broker_secrets(conf: Any) -> None:
    """Mask the passwords of the broker and of the result backend.

    Args:
        conf: Celery's settings.
    """
    urls: list[str] = []
    for setting in (conf.broker_url, conf.broker_read_url, conf.broker_write_url, conf.result_backend):
        urls += str(setting or "").split(";")
    known_secrets.add(filter(None, map(_password_of, urls)))


def _password_of(url: str) -> str | None:
    """The password in a URL, None if there is none, or it is not a valid URL."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return None
    return unquote(password) if password else None
