"""Files that hold one secret each, as Docker and Kubernetes mount them.

Owns reading one and the words for why that failed. A worker reads them anew whenever it connects, so that a secret can
be replaced while it runs. It knows neither variables nor servers.
"""

import os
import stat
from pathlib import Path

__all__ = ["read_secret_file"]

_MAX_BYTES = 64 * 1024
"""More than any credential, and less than what an environment variable may hold."""


def read_secret_file(path: str) -> str:
    """The text of a file, without the line breaks at its end.

    Raises:
        ValueError: It cannot be read, or is no text of a sensible size; says which file, and what to do. Nothing of the
            text is shown, nor of a path that may be the secret itself, pasted into the wrong place.
    """
    shown = path if Path(path).is_absolute() and path.isprintable() else "the file (no absolute path)"
    try:
        # Of a pipe, nobody may ever write the other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError(f"{shown} is no regular file; name a file that holds the value, and nothing else")
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(f"{shown} does not exist; mount the secret there, where the worker runs") from None
    except IsADirectoryError:
        raise ValueError(f"{shown} is a directory; name a file that holds the value, and nothing else") from None
    except PermissionError:
        raise ValueError(f"{shown} may not be read by the user of the worker; give it that right") from None
    except OSError as error:
        raise ValueError(f"{shown} cannot be read: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise ValueError(
            f"{shown} is larger than {_MAX_BYTES} bytes; name a file that holds the value, and nothing else"
        )
    try:
        text = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{shown} is not UTF-8; save it in that encoding") from None
    if not text:
        raise ValueError(f"{shown} is empty; write the value into it")
    return text
