"""Changing the servers of a configuration file, as a program does it for an operator.

Owns that a change is whole and valid, and is made to the file that the operator has seen: of two who change it at once,
one is refused. Only our own form in plain JSON is changed, since comments and other syntax would be lost. Whether the
policy still fits, the caller finds out (`check`).
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue

from tarsy_tasks.config.loading import load_config
from tarsy_tasks.config.problems import suggest
from tarsy_tasks.errors import ConfigError

__all__ = ["ServersFile"]

_ROOT = "mcpServers"
_DIGEST_CHARS = 12


class ServersFile:
    """The configuration file of an operator.

    Args:
        path: The file; a link is followed.
        check: Raises `ConfigError` for the path of a new configuration that must not be used.

    Attributes:
        place: Where it is, for messages.
    """

    def __init__(self, path: Path, check: Callable[[Path], object]) -> None:
        self.path = path.resolve()
        self.place = str(self.path)
        self._check = check

    def digest(self) -> str:
        """12 hexadecimal digits that identify the content of the file. Raises `ConfigError`."""
        return _digest_of(self._read())

    def add(self, name: str, entry: Mapping[str, JsonValue], digest: str | None = None, *, replace: bool) -> str:
        """Add a server; as all changes it returns the new digest.

        Args:
            entry: In the keys of the file.
            digest: Of the file as the operator has seen it; None: it does not matter.
            replace: Replace a server of that name.

        Raises:
            ConfigError: The change is not made, and nothing was written; the text says why.
        """

        def change(servers: dict[str, Any]) -> None:
            if name in servers and not replace:
                raise ConfigError(f"{self.place}: there is a server `{name}` already; remove it first, or replace it")
            servers[name] = dict(entry)

        return self._edit(change, digest)

    def remove(self, name: str, digest: str | None = None) -> str:
        """Remove a server. Arguments and errors as of `add`."""

        def change(servers: dict[str, Any]) -> None:
            self._require(name, servers)
            del servers[name]

        return self._edit(change, digest)

    def enable(self, name: str, digest: str | None = None, *, is_enabled: bool) -> str:
        """Enable or disable a server. Arguments and errors as of `add`."""

        def change(servers: dict[str, Any]) -> None:
            self._require(name, servers)
            if isinstance(entry := servers[name], dict):  # else the check finds it
                settings = cast("dict[str, Any]", entry)
                settings.pop("disabled", None)
                settings["enabled"] = is_enabled

        return self._edit(change, digest)

    def _require(self, name: str, servers: Mapping[str, Any]) -> None:
        if name not in servers:
            raise ConfigError(f"{self.place}: server `{name}` is not in it; {suggest(name, servers)}")

    def _edit(self, change: Callable[[dict[str, Any]], None], digest: str | None) -> str:
        with self._locked():
            before = self._read()
            if digest is not None and digest != _digest_of(before):
                raise self._build_changed_error(_digest_of(before), digest)
            data = self._parse(before)
            change(data[_ROOT])
            text = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
            return self._replace(before, text)

    def _build_changed_error(self, found: str, expected: str) -> ConfigError:
        return ConfigError(
            f"{self.place}: somebody has changed it since you read it (it is {found} now, not {expected}), so nothing "
            "was written; look at it again and repeat the change"
        )

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            data: Any = json.loads(raw)
            servers = data[_ROOT]
        except (ValueError, LookupError, TypeError):
            servers = data = None
        if not isinstance(servers, dict) or len(data.keys() & {"mcp", "servers", "mcp_servers"}):
            raise ConfigError(
                f"{self.place}: only plain JSON with `{_ROOT}`, without comments, is changed by commands; what else it "
                "says would be lost. Edit it yourself: workers take it when it is saved. `tarsy-tasks config import` "
                "makes such a file of any other"
            )
        return data

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{self.place}: its directory cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ConfigError(
                f"{self.place}: somebody else is changing it at this moment, so nothing was written; repeat the change"
            ) from None
        finally:
            os.close(descriptor)

    def _read(self) -> bytes:
        load_config(self.path)  # what is wrong already is reported with its line
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.place}: cannot be read: {error.strerror}") from None

    def _check_new(self, new: Path) -> None:
        """Whether a new configuration may take the place of this one. Raises `ConfigError`."""
        try:
            load_config(new)
            self._check(new)
        except ConfigError as error:
            found = str(error).replace(str(new), self.place)
            raise ConfigError(f"the change is not valid, so nothing was written: {found}") from None

    def _replace(self, before: bytes, text: bytes) -> str:
        """Write it, if it is valid and the file is still as it was before. Returns its digest."""
        new = self.path.with_name(f".{self.path.stem}.{secrets.token_hex(4)}{self.path.suffix}")
        try:
            old = self.path.stat()
            with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), old.st_mode & 0o777)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            self._check_new(new)
            if self.path.read_bytes() != before:  # by an editor, which takes no lock
                raise ConfigError(f"{self.place}: somebody has changed it meanwhile, so nothing was written; repeat it")
            new.replace(self.path)
        except OSError as error:
            raise ConfigError(f"{self.place}: cannot be written: {error.strerror}") from None
        finally:
            with suppress(OSError):
                new.unlink()
        return _digest_of(text)


def _digest_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:_DIGEST_CHARS]
