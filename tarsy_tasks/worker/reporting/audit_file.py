"""The audit as lines of a file, beside the stream in Redis.

Owns appending: one whole line per entry, from any thread or process, into the file that has the name now, so that it
may be rotated. Lines that could not be written are kept and tried again. It does not know what an entry is.
"""

import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

from tarsy_tasks.own_files import open_own_file

__all__ = ["AuditFile"]

_KEPT_LINES = 10_000
_MODE = 0o640


class AuditFile:
    """One file. Safe to share between threads, and with other processes on the same machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: int | None = None
        self._unwritten: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._is_torn = False

    def append(self, line: str) -> None:
        """Write a line, and those that could not be written before.

        Raises:
            OSError: It cannot be written now. It is kept, with up to 10,000 others.
        """
        with self._lock:
            self._unwritten.append(line.encode("utf-8", "replace") + b"\n")
            self._write()

    def check(self) -> None:
        """Check whether the file can be opened, and write the kept lines. Raises as `append`."""
        with self._lock:
            self._open()
            self._write()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _write(self) -> None:
        while self._unwritten:
            # One write per line: the kernel appends each as a whole, also beside other processes.
            line = b"\n" + self._unwritten[0] if self._is_torn else self._unwritten[0]
            written = os.write(self._open(), line)
            self._is_torn = written < len(line)
            if self._is_torn:
                raise OSError(f"only {written} of {len(line)} bytes of a line were written: the disk is full")
            self._unwritten.popleft()

    def _open(self) -> int:
        """The file that has the name now; a rotated one has another name."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(self.path), os.fstat(self._file)):
                    return self._file
            os.close(self._file)
            self._file = None
        self._file = open_own_file(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)
        return self._file
