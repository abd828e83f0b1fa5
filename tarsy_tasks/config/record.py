"""The configuration of record in Redis (`TARSY_MCP_CONFIG=redis`), and the copy of it on this machine.

Owns its keys, its versions with who wrote them and when, the compare-and-set of a new one, and the copy. Processes read
the copy as they read any configuration file, and follow its changes in the same way; `follow` keeps it up to date. So
Redis that is away, or has lost the configuration, takes no server from anybody. What is in it, this does not know.
"""

import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tarsy_tasks.errors import BrokerUnavailable, ConfigError
from tarsy_tasks.run_dir import open_run_dir
from tarsy_tasks.settings import load_settings

__all__ = [
    "CONFIGURATION_KEY", "EMPTY", "HISTORY_KEY", "IN_REDIS", "ConfigurationRecord", "ConfigurationVersion",
    "digest_text", "find_record",
]  # fmt: skip

logger = logging.getLogger(__name__)

IN_REDIS = Path("redis")
"""The value of `TARSY_MCP_CONFIG` with which this is used."""
CONFIGURATION_KEY = "tarsy:configuration"
HISTORY_KEY = "tarsy:configuration-history"
EMPTY = b'{"mcpServers": {}}\n'
_KEPT_VERSIONS = 50
_LIMIT_BYTES = 1024 * 1024
_LOOK_S = 1.0
_AWAY_S = 5.0
"""How long nobody asks again after Redis did not answer."""
_SOCKET_S = 2.0
_PATIENCE_S = 0.25
"""How long a process that follows it waits for Redis: an agent does so on the event loop of its replies."""
_THREAD = "tarsy-configuration-look"
_V = 1
_DIGEST_CHARS = 12


class ConfigurationVersion(BaseModel):
    """One version of the configuration in Redis.

    Attributes:
        number: Counts from 1.
        who: Who wrote it, as the writer's program said.
        at: When, in seconds since the epoch by the clock of Redis.
        change: What was different from the version before it.
        digest: 12 hexadecimal digits of the text.
        text: As of a configuration file in JSON.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = _V
    number: int
    who: str
    at: float
    change: str
    digest: str
    text: str


class ConfigurationRecord:
    """The configuration in a Redis. Each exchange has a connection of its own. Safe to share between threads.

    Args:
        url: Of the Redis, with the password.
        directory: Where its copy is kept.
        check: Raises `ConfigError` for the path of a configuration that this process cannot read: an earlier one stays.

    Attributes:
        path: The copy.
        problem: Why the copy is not what Redis has, or Redis has none; empty while all is well.
    """

    def __init__(self, url: str, directory: Path, check: Callable[[Path], object]) -> None:
        self._url = url
        self._check = check
        self._refused: bytes | None = None
        """The digest of what Redis has, if this process cannot use it."""
        where = url.partition("://")[2].rpartition("@")[2]
        self.path = directory / f"configuration-{hashlib.sha256(where.encode()).hexdigest()[:8]}.json"
        self._next_look = 0.0
        self._looking: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_known = False
        self.problem = ""

    def refresh(self) -> None:
        """Bring the copy up to date.

        Raises:
            ConfigError: It cannot be, and there is no copy yet.
        """
        copy = self._read_copy()
        try:
            with self._connect() as client:
                digest: bytes | None = client.hget(CONFIGURATION_KEY, "digest")
                if copy is not None and digest is not None:
                    if digest == digest_text(copy).encode():
                        self._refused, self.problem = None, ""
                        return
                    if digest == self._refused:
                        return
                try:
                    version = self._parse(client.hget(CONFIGURATION_KEY, "version"))
                except ConfigError:
                    self._refused = digest
                    raise
            if version is not None and version.text.encode() != copy:
                self._write_copy(version.text.encode())
        except (BrokerUnavailable, ConfigError) as error:
            if copy is None:
                raise ConfigError(f"{error} There is no copy of an earlier one in {self.path.parent} either.") from None
            self._complain(f"{error} The copy in {self.path} stays in use.")
            if isinstance(error, BrokerUnavailable):
                self._next_look = time.monotonic() + _AWAY_S
            return
        self._refused = None
        if version is not None:
            self.problem = ""
        elif copy is None:
            self._write_copy(EMPTY)
            logger.warning(
                "Redis has no configuration yet, so there are no servers: `tarsy-tasks servers publish FILE`"
            )
        elif copy != EMPTY:
            self._complain(
                f"Redis has lost the configuration. The copy in {self.path} stays in use; `tarsy-tasks servers publish "
                f"{self.path}` restores it."
            )

    def find_copy(self) -> Path:
        """The copy: brought up to date for the first who asks, then as of `follow`.

        Raises:
            ConfigError: There is none, and it cannot be made.
        """
        if self._is_known and self.path.exists():
            self.follow()
        else:
            self.refresh()
            self._is_known = True
        return self.path

    def follow(self) -> None:
        """`refresh`, at most once a second, and with a line in the log in place of an error. A Redis that hangs holds
        nobody up for long: then the copy is brought up to date when it answers."""
        with self._lock:
            now = time.monotonic()
            if now < self._next_look or (self._looking is not None and self._looking.is_alive()):
                return
            self._next_look = now + _LOOK_S
            looking = self._looking = threading.Thread(target=self._look, name=_THREAD, daemon=True)
        looking.start()
        looking.join(_PATIENCE_S)

    def _look(self) -> None:
        try:
            self.refresh()
        except ConfigError as error:
            self._complain(str(error))

    def read(self) -> ConfigurationVersion | None:
        """What is in Redis now; None if there is nothing.

        Raises:
            BrokerUnavailable: Redis could not be reached.
            ConfigError: This user may not read it, or it is damaged.
        """
        with self._connect() as client:
            return self._parse(client.hget(CONFIGURATION_KEY, "version"))

    def read_history(self) -> list[ConfigurationVersion]:
        """The latest versions, newest first. Raises as `read`."""
        with self._connect() as client:
            found = [self._parse(text) for text in client.lrange(HISTORY_KEY, 0, _KEPT_VERSIONS - 1)]
        return [version for version in found if version is not None]

    def write(self, before: ConfigurationVersion | None, text: bytes, *, who: str, change: str) -> ConfigurationVersion:
        """Write the next version, if `before` is still the current one.

        Raises:
            BrokerUnavailable: Redis could not be reached; if it was lost just now, it may have been written.
            ConfigError: It was not written; the text says why.
        """
        from redis.exceptions import ConnectionError as RedisConnectionError
        from redis.exceptions import TimeoutError as RedisTimeoutError
        from redis.exceptions import WatchError

        if len(text) > _LIMIT_BYTES:
            raise ConfigError(f"the configuration has {len(text)} bytes; in Redis it may have {_LIMIT_BYTES}")
        with self._connect() as client, client.pipeline() as pipeline:
            pipeline.watch(CONFIGURATION_KEY)
            current = self._parse(pipeline.hget(CONFIGURATION_KEY, "version"))
            if current != before:
                raise _changed_meanwhile(current)
            seconds, microseconds = pipeline.time()
            version = ConfigurationVersion(
                number=before.number + 1 if before else 1,
                who=who,
                at=seconds + microseconds / 1e6,
                change=change,
                digest=digest_text(text),
                text=text.decode(),
            )
            encoded = version.model_dump_json()
            pipeline.multi()
            pipeline.hset(CONFIGURATION_KEY, mapping={"digest": version.digest, "version": encoded})
            pipeline.lpush(HISTORY_KEY, encoded)
            pipeline.ltrim(HISTORY_KEY, 0, _KEPT_VERSIONS - 1)
            try:
                try:
                    pipeline.execute()
                except WatchError as error:
                    # redis-py raises it, too, if the connection was lost, when Redis may have written it already.
                    if encoded.encode() not in client.lrange(HISTORY_KEY, 0, _KEPT_VERSIONS - 1):
                        current = self._parse(client.hget(CONFIGURATION_KEY, "version"))
                        if current == before:
                            raise RedisConnectionError(str(error)) from None
                        raise _changed_meanwhile(current) from None
            except (RedisConnectionError, RedisTimeoutError) as error:
                raise BrokerUnavailable(
                    f"Redis was lost while the configuration was written ({error}); `tarsy-tasks servers history` says "
                    "whether it was."
                ) from error
        with suppress(ConfigError):  # the next look brings the copy up to date, or says why it cannot
            self._write_copy(text)
        return version

    @contextmanager
    def _connect(self) -> Generator[Any]:
        from redis import Redis
        from redis.exceptions import ConnectionError as RedisConnectionError
        from redis.exceptions import RedisError, ResponseError
        from redis.exceptions import TimeoutError as RedisTimeoutError

        try:
            client: Any = Redis.from_url(self._url, socket_timeout=_SOCKET_S, socket_connect_timeout=_SOCKET_S)  # pyright: ignore[reportUnknownMemberType]
            with client:
                yield client
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise BrokerUnavailable(f"Redis could not be reached for the configuration ({error}).") from error
        except ResponseError as error:
            raise ConfigError(
                f"Redis refused access to the configuration ({error}). Its ACL lets operators write it (`tarsy-tasks "
                "acl`), and the other parts of a deployment read it."
            ) from None
        except RedisError as error:
            raise ConfigError(f"The configuration in Redis could not be used ({error}).") from None

    def _parse(self, text: bytes | None) -> ConfigurationVersion | None:
        if text is None:
            return None
        try:
            version = ConfigurationVersion.model_validate_json(text)
        except ValidationError:
            version = None
        if version is not None and version.v > _V:
            raise ConfigError(
                "The configuration in Redis was written by a newer version of this package: update this one."
            )
        if version is None or version.digest != digest_text(version.text.encode()):
            raise ConfigError(
                f"The configuration in Redis is damaged. Delete the key {CONFIGURATION_KEY} as `admin`; then "
                "`tarsy-tasks servers publish FILE` writes one, such as an earlier one of `servers export`."
            )
        return version

    def _read_copy(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def _write_copy(self, text: bytes) -> None:
        """Whole and valid, or not at all; other processes of this machine use it, too."""
        written = self.path.with_name(f".{self.path.stem}.{secrets.token_hex(4)}.json")
        try:
            with open(written, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(text)
            self._check(written)
            written.replace(self.path)
        except ConfigError as error:
            self._refused = digest_text(text).encode()
            raise ConfigError(str(error).replace(str(written), "the configuration in Redis") + ".") from None
        except OSError as error:
            raise ConfigError(
                f"{self.path}: the copy of the configuration cannot be written: {error.strerror}"
            ) from None
        finally:
            with suppress(OSError):
                written.unlink()

    def _complain(self, text: str) -> None:
        """Once, until something else is wrong."""
        if text != self.problem:
            self.problem = text
            logger.error("%s", text)


def find_record(check: Callable[[Path], object]) -> ConfigurationRecord | None:
    """The configuration in Redis that this process uses; None if its configuration is a file.

    Args:
        check: As of `ConfigurationRecord`.

    Raises:
        ConfigError: There is no directory for its copy.
    """
    settings = load_settings()
    if settings.mcp_config != IN_REDIS:
        return None
    return _find(settings.redis_url.get_secret_value(), open_run_dir(), check)


@cache
def _find(url: str, directory: Path, check: Callable[[Path], object]) -> ConfigurationRecord:
    """One for all of a process, so that it asks Redis once a second, however often it needs the configuration."""
    return ConfigurationRecord(url, directory, check)


def digest_text(text: bytes) -> str:
    """12 hexadecimal digits that identify a text."""
    return hashlib.sha256(text).hexdigest()[:_DIGEST_CHARS]


def _changed_meanwhile(current: ConfigurationVersion | None) -> ConfigError:
    by = f": it is version {current.number} now, by {current.who} ({current.change})" if current else ""
    return ConfigError(
        f"the configuration in Redis: somebody has changed it meanwhile{by}, so nothing was written; look at it again "
        "and repeat the change"
    )
