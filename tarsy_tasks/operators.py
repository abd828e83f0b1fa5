"""What an operator's program does with a running deployment: change its servers, and have workers take that.

Owns the operator's client. It writes the configuration file of this machine, while workers elsewhere have files of
their own; or the configuration in Redis, which is the same for all.
"""

import getpass
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import JsonValue

from tarsy_tasks.config import find_config_path, load_config
from tarsy_tasks.config.editing import ServersFile
from tarsy_tasks.config.record import ConfigurationRecord, ConfigurationVersion, find_record
from tarsy_tasks.config.record_editing import ServersRecord
from tarsy_tasks.errors import BrokerUnavailable, ConfigError
from tarsy_tasks.policy import load_policy

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Operator"]

_REPLY_S = 2.0


class Operator:
    """Changes the servers of a configuration file. All changes are written whole or not at all, after a check of the
    new configuration and its policy, and only to plain JSON with `mcpServers`. Workers take them within seconds.

    Args:
        path: The file. None: the one that a worker would read here, or with `TARSY_MCP_CONFIG=redis` the configuration
            in Redis.
        app: A Celery application on the workers' Redis. None: the package's own, with Redis from `TARSY_REDIS_URL`.
        who: Who changes a configuration in Redis. None: the user of this process and the name of this machine.

    Raises:
        ConfigError: There is no file.
    """

    def __init__(self, path: Path | None = None, *, app: "Celery | None" = None, who: str | None = None) -> None:
        self._app = app
        self._record: ConfigurationRecord | None = find_record(load_config) if path is None else None
        if self._record is None:
            self._file = ServersFile(path or find_config_path(), load_policy)
        else:
            self._file = ServersRecord(self._record, load_policy, who or f"{_find_user()}@{socket.gethostname()}")

    @property
    def path(self) -> Path:
        """The file; of a configuration in Redis, its copy on this machine."""
        return self._file.path

    @property
    def place(self) -> str:
        """Where the configuration is, for messages."""
        return self._file.place

    def digest(self) -> str:
        """12 hexadecimal digits that identify the content of the file. Raises `ConfigError`."""
        return self._file.digest()

    def add_server(
        self, name: str, entry: Mapping[str, JsonValue], *, replace: bool = False, digest: str | None = None
    ) -> str:
        """Add a server; as all changes it returns the new digest.

        Args:
            entry: In the keys of the file, such as `{"command": "my-server"}`.
            replace: Replace a server of that name.
            digest: Of the file as you have read it. If somebody has changed it since, your change is refused.

        Raises:
            ConfigError: The change was not made; the text says why.
        """
        return self._file.add(name, entry, digest, replace=replace)

    def remove_server(self, name: str, *, digest: str | None = None) -> str:
        """Remove a server. Raises as `add_server`."""
        return self._file.remove(name, digest)

    def enable_server(self, name: str, *, digest: str | None = None) -> str:
        """Use a server again. Raises as `add_server`."""
        return self._file.enable(name, digest, is_enabled=True)

    def disable_server(self, name: str, *, digest: str | None = None) -> str:
        """Keep a server in the file, but do not use it. Raises as `add_server`."""
        return self._file.enable(name, digest, is_enabled=False)

    def publish(self, path: Path, *, digest: str | None = None) -> str:
        """Make a file, in plain JSON with `mcpServers`, the configuration in Redis. Otherwise as `add_server`."""
        if not isinstance(self._file, ServersRecord):
            raise _build_file_error()
        return self._file.publish(path, digest)

    def history(self) -> list[ConfigurationVersion]:
        """The latest 50 versions of the configuration in Redis, newest first.

        Raises:
            BrokerUnavailable: Redis could not be reached.
            ConfigError: The configuration is a file, which has no versions; or Redis refuses this user.
        """
        if self._record is None:
            raise _build_file_error()
        return self._record.read_history()

    def reload(self) -> dict[str, str]:
        """Have all workers take the configuration now, which they do by themselves when the file changes.

        Returns:
            By worker, the version that it had when it was asked. `configuration` in its health records says which one
            it has taken, and `configuration_error` why it has not.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        from kombu.exceptions import KombuError
        from redis.exceptions import RedisError

        from tarsy_tasks.celery_app import agent_app

        control: Any = (self._app or agent_app()).control
        try:
            replies = cast("list[dict[str, Any]]", control.broadcast("mcp_reload", reply=True, timeout=_REPLY_S) or [])
        except (RedisError, KombuError, OSError) as error:
            raise BrokerUnavailable(f"Redis could not be reached ({error}), so no worker was asked.") from error
        return {
            worker: str(answer["ok"]["configuration"])
            for reply in replies
            for worker, answer in cast("dict[str, dict[str, Any]]", reply).items()
            if "ok" in answer
        }


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for it
        return f"user {os.getuid()}"


def _build_file_error() -> ConfigError:
    return ConfigError("the configuration is a file here; set TARSY_MCP_CONFIG=redis for the one in Redis")
