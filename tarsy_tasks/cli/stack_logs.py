"""The logs of the processes that `tarsy-tasks up` starts, one file each.

Owns writing them. They are bounded: a file that is full is kept as NAME.log.1, in place of the one before.
"""

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from tarsy_tasks.own_files import open_own_file

__all__ = ["StackLogs"]

_MAX_BYTES = 10_000_000


class StackLogs:
    """The logs in one directory; those of an earlier stack are replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, _LogFile] = {}

    def path(self, name: str) -> Path:
        """The log of a process."""
        return self._directory / f"{name}.log"

    def write(self, name: str, line: str) -> None:
        """Add a line that a process printed; from the one thread that reads its output."""
        if name not in self._files:
            path = self.path(name)
            path.unlink(missing_ok=True)
            self._files[name] = _LogFile(path, maxBytes=_MAX_BYTES, backupCount=1)
        self._files[name].handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _LogFile(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        descriptor = open_own_file(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """What cannot be written, as on a full disk, is left out; the process goes on."""
