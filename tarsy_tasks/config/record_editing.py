"""Changing the servers of the configuration in Redis, as a program does it for an operator.

Owns what a new version has to fulfil beyond a file: it has references to secrets and no secrets, because every part of
a deployment reads it. The changes themselves are those of `editing`.
"""

import json
import os
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from tarsy_tasks.config.editing import ServersFile
from tarsy_tasks.config.loading import load_file
from tarsy_tasks.config.problems import KeyPath, format_path
from tarsy_tasks.config.record import EMPTY, ConfigurationRecord, ConfigurationVersion
from tarsy_tasks.config.secret_places import contains_secret, find_written
from tarsy_tasks.errors import ConfigError

__all__ = ["ServersRecord"]


class ServersRecord(ServersFile):
    """The configuration in Redis, for an operator.

    Args:
        record: Where it is.
        check: As of `ServersFile`.
        who: Who changes it.

    Attributes:
        record: The same.
    """

    def __init__(self, record: ConfigurationRecord, check: Callable[[Path], object], who: str) -> None:
        super().__init__(record.path, check)
        self.place = "the configuration in Redis"
        self.record = record
        self._who = who
        self._before: ConfigurationVersion | None = None

    def publish(self, path: Path, digest: str | None = None) -> str:
        """Replace the whole configuration by a file. Otherwise as `add`."""
        try:
            text = path.read_bytes()
            self._parse(text)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except ConfigError:
            raise ConfigError(
                f"{path}: only plain JSON with `mcpServers`, without comments, can be published; `tarsy-tasks config "
                "import` makes such a file of any other"
            ) from None
        before = self.record.read()
        if digest is not None and digest != (before.digest if before else None):
            raise self._build_changed_error(before.digest if before else "empty", digest)
        self._before = before
        return self._replace(before.text.encode() if before else EMPTY, text)

    @contextmanager
    def _locked(self) -> Generator[None]:
        yield  # Redis compares when it is written

    def _read(self) -> bytes:
        self._before = self.record.read()
        if self._before is not None:
            return self._before.text.encode()
        # It may have been lost: then workers, which still have theirs, would lose all other servers.
        text = (
            f"{self.place}: there is none, so nothing was written; `tarsy-tasks servers publish FILE` begins one, with "
            f"`{EMPTY.decode().strip()}` if there are no servers yet"
        )
        with suppress(OSError):
            if self.path.read_bytes() != EMPTY:
                text = (
                    f"{self.place} was lost, and nothing was written, since workers would lose all other servers; "
                    f"`tarsy-tasks servers publish {self.path}` restores what this machine knew last"
                )
        raise ConfigError(text)

    def _replace(self, before: bytes, text: bytes) -> str:
        new = self.path.with_name(f".{self.path.stem}.{secrets.token_hex(4)}.json")
        try:
            with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(text)
            self._check_new(new)
            if written := [*map(format_path, _find_secrets(new))]:
                raise ConfigError(
                    f"{self.place}: every part of the deployment reads it, so it must not contain secrets: "
                    f"{', '.join(written)}. Nothing was written; use `${{NAME}}` or `${{file:/path}}` there"
                )
        except OSError as error:
            raise ConfigError(f"{new}: cannot be written: {error.strerror}") from None
        finally:
            with suppress(OSError):
                new.unlink()
        version = self.record.write(self._before, text, who=self._who, change=_describe(before, text))
        return version.digest


def _find_secrets(path: Path) -> Generator[KeyPath]:
    file, found, servers = load_file(path)
    for entry, server in servers.values():
        yield from map(entry.locate, find_written(server))
    # What has no meaning here is stored as well.
    for unused in (*found.unused, *(each for entry in found.entries for each in entry.unused)):
        value: Any = file.data
        for key in unused.where:
            value = value[key]
        if contains_secret(str(unused.where[-1]), value):
            yield unused.where


def _describe(before: bytes, after: bytes) -> str:
    """What is different, in a line."""
    old, new = (cast("Mapping[str, Any]", json.loads(text)["mcpServers"]) for text in (before, after))
    kinds = {
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names) or "no server changed"
