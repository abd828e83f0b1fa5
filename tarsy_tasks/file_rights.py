"""What other users of this machine may do with a file that workers read.

Owns the reading of modes and owners. How bad that is depends on the file, and is decided by the check of it.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

__all__ = ["FileRights", "find_rights"]

_ROOT = 0


class FileRights(NamedTuple):
    """The rights of all other users; those of a group were given on purpose.

    Attributes:
        can_write: They can write to the file.
        can_replace: They can put another file in its place.
        can_read: They can read it, and get to it.
        other_owner: The owner of the file or its directory, who can do all of that, if it is neither this user nor
            root.
        is_mounted: It is on a file system that is mounted read-only, as containers get their secrets: nobody in there
            can write to it.
    """

    can_write: bool
    can_replace: bool
    can_read: bool
    other_owner: int | None
    is_mounted: bool


def find_rights(path: Path) -> FileRights:
    """The rights to a file or directory, links followed. Raises OSError if there is none."""
    path = path.resolve(strict=True)
    found, folder = path.stat(), path.parent.stat()
    can_read = bool(found.st_mode & stat.S_IROTH) and all(each.stat().st_mode & stat.S_IXOTH for each in path.parents)
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return FileRights(False, False, can_read, None, is_mounted=True)
    others = [each.st_uid for each in (found, folder) if each.st_uid not in (os.getuid(), _ROOT)]
    return FileRights(
        can_write=bool(found.st_mode & stat.S_IWOTH),
        # In a sticky directory, such as /tmp, only the owner of a file can replace it.
        can_replace=bool(folder.st_mode & stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX,
        can_read=can_read,
        other_owner=others[0] if others else None,
        is_mounted=False,
    )
