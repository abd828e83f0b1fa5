"""The folder for temporary files that each start of a server in a sandbox gets.

It is locked as long as its worker lives. Those without a lock belong to workers that were killed; the next start of a
server in a sandbox removes them.
"""

import fcntl
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tarsy_tasks.worker.transport.sandbox.launcher import bare_environment

__all__ = ["TemporaryFolder"]

_PREFIX = "tarsy-sandbox-"
_UNLOCKED_S = 10.0
"""Longer than between the making of a folder and its lock."""


class TemporaryFolder:
    """A new folder. All of it blocks.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove it with its content."""
        try:
            _remove(self.path)
        finally:
            os.close(self._lock)


def _remove(path: str) -> None:
    """`shutil.rmtree` fails on folders that lie a thousand deep."""
    command = ["rm", "-rf", "--", path]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL, env=bare_environment())  # noqa: S603


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is locked, another user's, or no folder
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(lock)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _UNLOCKED_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(str(folder))
            finally:
                os.close(lock)
