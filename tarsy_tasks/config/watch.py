"""Whether files have changed on disk, for processes that take a changed configuration while they run.

Owns when a change counts: once the files have stayed the same for a whole interval, so that one that is being written
is left alone. What is in the files, it does not know.
"""

from collections.abc import Iterable
from pathlib import Path

__all__ = ["FileWatch"]

_Signature = tuple[tuple[int, ...] | None, ...]


class FileWatch:
    """Compares files with those that were read last. For one thread.

    Args:
        paths: Which they are; a link counts as what it leads to, and a file need not exist.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._read = self._seen = self._look()

    def has_changed(self) -> bool:
        """Whether they differ from what was read last, and are as they were at the last look. Call it at intervals."""
        before, self._seen = self._seen, self._look()
        return self._seen == before and self._seen != self._read

    def begin(self) -> None:
        """They are about to be read."""
        self._read = self._seen = self._look()

    def is_current(self) -> bool:
        """Whether they are still as they were at `begin`."""
        return self._look() == self._read

    def _look(self) -> _Signature:
        return tuple(map(_sign, self._paths))


def _sign(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
