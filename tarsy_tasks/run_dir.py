"""The directory of this user for files about running processes: probes, and the copy of a configuration in Redis.

Owns that nobody else may write there.
"""

import os
import stat
import tempfile
from pathlib import Path

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.settings import load_settings

__all__ = ["open_run_dir", "run_dir"]


def run_dir() -> Path:
    """`TARSY_RUN_DIR`, or a temporary directory of this user."""
    return load_settings().run_dir or Path(tempfile.gettempdir()) / f"tarsy-tasks-{os.getuid()}"


def open_run_dir() -> Path:
    """The same directory, created if it does not exist.

    Raises:
        ConfigError: It cannot be created or written, or belongs to another user, who could write anything there.
    """
    directory = run_dir()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Kubernetes mounts a directory of root for all users.
        is_configured = load_settings().run_dir is not None
        found = directory.stat() if is_configured else directory.lstat()
        is_trusted = found.st_uid == os.getuid() or (is_configured and found.st_uid == 0)
        if not is_trusted or stat.S_ISLNK(found.st_mode):
            raise ConfigError(
                f"{directory} is a link or belongs to another user; set TARSY_RUN_DIR to a directory of this user"
            )
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        raise ConfigError(
            f"{directory}: {error.strerror or error}; the probes, and the copy of a "
            "configuration in Redis, need it. Set TARSY_RUN_DIR to a directory that this process may write"
        ) from None
    return directory
