"""How to type this program, for commands that print what to do next."""

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["program"]

_NAME = "tarsy-tasks"


def program(directory: Path | None = None) -> str:
    """`tarsy-tasks` if a shell finds this installation by that name, else its path.

    Args:
        directory: Where it will be typed: a path below it is written relative to it. None: anywhere.
    """
    own = Path(sys.executable).parent / _NAME
    found = shutil.which(_NAME)
    if not own.exists() or (found is not None and own.samefile(found)):
        return _NAME
    if directory is not None and own.is_relative_to(directory):
        return shlex.quote(str(own.relative_to(directory)))
    return shlex.quote(str(own))
