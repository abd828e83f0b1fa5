"""The stack that `tarsy-tasks up` runs in a directory, and how other commands find it there.

Owns the stack's directory in the user's state directory: its lock, its run file, and the names of its logs. `up` holds
the lock as long as it runs; the kernel releases it however the process ends, so a run file without a lock is stale.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.own_files import open_own_file, write_own_file

__all__ = [
    "REDIS_URL_FILE", "RunningStack", "adopt_stack", "explain_missing_stack", "find_stack", "open_stack_dir",
    "stack_dir", "write_stack",
]  # fmt: skip

REDIS_URL_FILE = "redis-url"
"""The URL of the stack's Redis alone, for `TARSY_REDIS_URL_FILE` of an agent. Its path is the same at each start."""
_RUN_FILE = "stack.json"
_MAX_BYTES = 64 * 1024
_NAME_CHARS = 40
_DIGEST_CHARS = 12
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.05
_REDIS = ("TARSY_REDIS_URL", "TARSY_REDIS_URL_FILE")


@dataclass(frozen=True)
class RunningStack:
    """What other commands have to know of a stack that runs.

    Attributes:
        directory: Where it was started.
        config: Its configuration file.
        redis_url: Of its Redis, with the password.
        pid: Of `tarsy-tasks up`.
        is_private: Whether its Redis is one that `up` started, which keeps nothing.
    """

    directory: str
    config: str
    redis_url: str
    pid: int
    is_private: bool


def stack_dir(directory: Path) -> Path:
    """The directory for the stack that is started in `directory`, the same each time. It need not exist."""
    resolved = directory.resolve()
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", resolved.name)[:_NAME_CHARS]
    digest = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:_DIGEST_CHARS]
    return _home() / f"{readable or 'root'}-{digest}"


@contextmanager
def open_stack_dir(directory: Path) -> Generator[Path]:
    """The directory for the stack that is started in `directory`, created and locked; at the end its run file is
    removed. Its logs stay.

    Raises:
        ConfigError: It cannot be used, or a stack runs in `directory`.
    """
    path = stack_dir(directory)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        lock = _open_directory(path)
        os.fchmod(lock, 0o700)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path}: {error.strerror}; `tarsy-tasks up` writes its run file and its logs there. "
            "Set XDG_STATE_HOME to a directory of this user"
        ) from None
    try:
        if not _lock(lock):
            running = _read(path)
            process = f", process {running.pid}" if running else ""
            raise ConfigError(f"`tarsy-tasks up` already runs in {directory}{process}; stop it there with Ctrl-C first")
        _remove(path)
        try:
            yield path
        finally:
            _remove(path)
    finally:
        os.close(lock)


def write_stack(path: Path, stack: RunningStack) -> None:
    """Write the run file of a stack, readable only for this user."""
    write_own_file(path / REDIS_URL_FILE, stack.redis_url)
    write_own_file(path / _RUN_FILE, json.dumps(asdict(stack)))


def find_stack(directory: Path) -> RunningStack | None:
    """The stack that was started in `directory` and runs. A stale run file is removed."""
    return _find(stack_dir(directory))


def other_stacks(directory: Path) -> list[str]:
    """The other directories in which stacks run."""
    own = stack_dir(directory)
    with suppress(OSError):
        found = [_find(path) for path in sorted(own.parent.iterdir()) if path != own]
        return [stack.directory for stack in found if stack is not None]
    return []


def adopt_stack() -> None:
    """Let this process use the stack that runs in the working directory, unless the environment names a Redis."""
    if any(map(os.environ.get, _REDIS)):
        return
    with suppress(OSError):
        if (stack := find_stack(Path.cwd())) is not None:
            os.environ["TARSY_REDIS_URL"] = stack.redis_url
            if not os.environ.get("TARSY_MCP_CONFIG"):
                os.environ["TARSY_MCP_CONFIG"] = stack.config


def explain_missing_stack() -> str:
    """Why no stack was found, as a sentence; empty if none was looked for."""
    if any(map(os.environ.get, _REDIS)):
        return ""
    with suppress(OSError):
        if others := other_stacks(Path.cwd()):
            return f"`tarsy-tasks up` does not run in this directory, but in {', '.join(others)}: use the same one."
        return "`tarsy-tasks up` does not run in this directory, and TARSY_REDIS_URL is not set."
    return ""


def _home() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore a relative path.
    base = Path(configured) if Path(configured).is_absolute() else Path("~/.local/state").expanduser()
    return base / "tarsy-tasks"


def _find(path: Path) -> RunningStack | None:
    try:
        lock = _open_directory(path)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(path)
        _remove(path)
        return None
    finally:
        os.close(lock)


def _open_directory(path: Path) -> int:
    """Raises OSError if it is not a directory of this user, or others may write to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise PermissionError(1, "it belongs to another user, or others may write to it", str(path))
    return descriptor


def _lock(descriptor: int) -> bool:
    """Whether the lock is taken. A command that looks for a stack holds it for a moment."""
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_PAUSE_S)
    return False


def _read(path: Path) -> RunningStack | None:
    """The run file; None while `up` has not written it yet."""
    with suppress(OSError, ValueError, TypeError):
        # As for writing: then a file of another user is refused.
        with open(open_own_file(path / _RUN_FILE, os.O_RDWR), "rb") as file:  # noqa: PTH123 - a descriptor has no path
            found: Any = json.loads(file.read(_MAX_BYTES))
        return RunningStack(**found)
    return None


def _remove(path: Path) -> None:
    for name in (_RUN_FILE, REDIS_URL_FILE):
        with suppress(OSError):
            (path / name).unlink()
