"""Files that this process writes where other users may write, too.

Owns opening them: no symbolic link is followed, and no file is used that another user may have put there.
"""

import errno
import os
import stat
from pathlib import Path

__all__ = ["open_own_file", "read_own_file", "write_own_file"]

_ROOT = 0


def open_own_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file; returns its descriptor.

    Args:
        flags: As for `os.open`.
        mode: Of a file that is created.

    Raises:
        OSError: It cannot be opened, or it is a link, a pipe or a device, or, for writing, has another name or another
            owner than this user or root.
    """
    try:
        # Opening a pipe would block until another process reads it.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _refused(path, "is a symbolic link") from None
    found = os.fstat(descriptor)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "is not a regular file"
    elif flags & os.O_ACCMODE != os.O_RDONLY:
        if found.st_uid not in (os.getuid(), _ROOT):
            why = "belongs to another user"
        elif found.st_nlink > 1:
            why = "is a hard link of another file"
    if why:
        os.close(descriptor)
        raise _refused(path, why)
    return descriptor


def read_own_file(path: Path, limit_bytes: int) -> bytes:
    """The beginning of a file. Raises as `open_own_file`."""
    descriptor = open_own_file(path, os.O_RDONLY)
    try:
        return os.read(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def write_own_file(path: Path, text: str) -> None:
    """Write a short text, in place of what the file contained. Raises as `open_own_file`."""
    descriptor = open_own_file(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(descriptor, text.encode())
        os.ftruncate(descriptor, len(text.encode()))
    finally:
        os.close(descriptor)


def _refused(path: Path, why: str) -> OSError:
    return PermissionError(errno.EPERM, f"it {why}; remove it", str(path))
