"""Files that contain one secret each, as Docker and Kubernetes mount them.

Owns reading one, and the reasons why that fails. A worker reads them whenever it connects, so a secret can be replaced
while it runs. It knows neither variables nor servers.
"""

import os
import stat
from pathlib import Path

__all__ = ["read_secret_file"]

_MAX_BYTES = 64 * 1024
"""Larger than any credential, and smaller than the limit of an environment variable."""


def read_secret_file(path: str, content: str = "only the value", *, may_be_empty: bool = False) -> str:
    """The text of a file, without the line breaks at its end.

    Args:
        content: What it should contain, for errors.
        may_be_empty: It contains nothing that is needed.

    Raises:
        ValueError: It cannot be read, is empty but may not be, or is too large or not UTF-8. The text names the file
            and the remedy, but no content, and not a path that may be the secret itself, pasted into the wrong place.
    """
    shown = path if Path(path).is_absolute() and path.isprintable() else "the file (not an absolute path)"
    try:
        # Opening a pipe would block until another process writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError(f"{shown} is not a regular file; name a file that contains {content}")
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(f"{shown} does not exist; create or mount it where the worker runs") from None
    except IsADirectoryError:
        raise ValueError(f"{shown} is a directory; name a file that contains {content}") from None
    except PermissionError:
        raise ValueError(f"{shown} is not readable for the user of the worker; grant that permission") from None
    except OSError as error:
        raise ValueError(f"{shown} cannot be read: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"{shown} is larger than {_MAX_BYTES} bytes; name a file that contains {content}")
    try:
        text = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{shown} is not UTF-8; save it as UTF-8") from None
    if not text and not may_be_empty:
        raise ValueError(f"{shown} is empty; write the value into it")
    return text
