"""Whether a worker on this machine is ready, and whether it is alive: three small files in a directory.

Owns their names and their meaning. A worker writes them (`worker.reporting.liveness_files`): NAME.ready exists from the
moment when it takes calls until it has to stop; NAME.consumer and NAME.sessions are touched every two seconds, by the
thread that takes messages from Redis and by the event loop of the MCP sessions. NAME is the worker's node name and
eight digits for its Redis, because workers of two deployments may have the same name. Each file holds the worker's
process id, which shows whether a killed worker left it.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tarsy_tasks.own_files import read_own_file
from tarsy_tasks.run_dir import run_dir
from tarsy_tasks.settings import load_settings

__all__ = ["BEAT_S", "STALE_S", "ProbeFiles", "find_workers", "remove_leftovers"]

BEAT_S = 2.0
_PID_CHARS = 20
STALE_S = 30.0
"""Longer than a busy worker ever delays a touch."""


def _deployment() -> str:
    """Digits for the Redis of these workers; user and password make no difference."""
    parts = urlsplit(load_settings().redis_url.get_secret_value())
    where = f"{parts.hostname}:{parts.port or 6379}/{parts.path.strip('/') or 0}"
    return hashlib.sha256(where.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class ProbeFiles:
    """The files of one worker.

    Attributes:
        worker: Its node name.
        deployment: Digits for its Redis, by default that of `TARSY_REDIS_URL`.
    """

    directory: Path
    worker: str
    deployment: str = field(default_factory=_deployment)

    @property
    def ready(self) -> Path:
        return self._file("ready")

    @property
    def consumer(self) -> Path:
        return self._file("consumer")

    @property
    def sessions(self) -> Path:
        return self._file("sessions")

    def _file(self, kind: str) -> Path:
        return self.directory / f"{self.worker.replace('/', '_')}.{self.deployment}.{kind}"

    @property
    def is_running(self) -> bool:
        """Whether the process that wrote the files still runs."""
        for file in (self.sessions, self.consumer, self.ready):
            with suppress(OSError, ValueError, OverflowError):
                return _is_running(int(read_own_file(file, _PID_CHARS)))
        return False

    def seconds_since(self, file: Path) -> float | None:
        """Seconds since the file was touched; None if it does not exist."""
        try:
            return max(0.0, time.time() - file.lstat().st_mtime)
        except OSError:
            return None

    @property
    def is_abandoned(self) -> bool:
        """Whether their process is gone. That of another container cannot be seen, but its files are fresh."""
        silent_s = self.seconds_since(self.sessions)
        return not self.is_running and (silent_s is None or silent_s > STALE_S)

    def remove(self) -> None:
        for file in (self.ready, self.consumer, self.sessions):
            file.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # as another user
    except ProcessLookupError:
        return False
    return True


def find_workers(name: str | None = None) -> list[ProbeFiles]:
    """The workers of this deployment that run on this machine, or the one with this node name."""
    own = _deployment()
    return [
        files
        for files in _all_files(run_dir())
        if files.deployment == own and files.is_running and name in (None, files.worker)
    ]


def remove_leftovers(worker: str) -> None:
    """Remove the files that a killed worker of this name left, and those of other processes that are gone.

    A worker does this first: in a restarted container it may have the process id of the killed worker.
    """
    directory = run_dir()
    own = ProbeFiles(directory, worker)
    for files in {own, *_all_files(directory)}:
        if files == own or files.is_abandoned:
            with suppress(OSError):
                files.remove()


def _all_files(directory: Path) -> Iterator[ProbeFiles]:
    found: set[tuple[str, str]] = set()
    with suppress(OSError):
        for file in directory.iterdir():
            worker, dot, deployment = file.stem.rpartition(".")
            if dot and file.suffix in (".ready", ".consumer", ".sessions"):
                found.add((worker, deployment))
    for worker, deployment in sorted(found):
        yield ProbeFiles(directory, worker, deployment)
