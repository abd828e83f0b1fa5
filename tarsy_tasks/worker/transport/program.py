"""The program of a stdio server: whether it can be started at all.

Owns the check before each start, so that a missing program is a wrong configuration with a remedy, not an error of the
operating system. It starts nothing.
"""

import os
import shutil
from pathlib import Path

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.transport.stdio import StdioCommand

__all__ = ["check_program"]


def check_program(command: StdioCommand) -> None:
    """Look for a command's program and working directory.

    Raises:
        ConfigError: They do not exist, or this user may not use them.
    """
    program, cwd = command.command, Path(command.cwd or os.curdir)
    if not cwd.is_dir():
        raise ConfigError(f"its working directory `{cwd}` does not exist on the worker's machine")
    if os.sep not in program:
        if shutil.which(program, path=command.env.get("PATH", os.defpath)) is None:
            raise ConfigError(f"`{program}` is not on the worker's PATH; install it there, or give its whole path")
        return
    path = cwd / program
    if not path.exists():
        hint = "; its arguments belong in `args`" if " " in program else ""
        raise ConfigError(f"`{program}` does not exist on the worker's machine{hint}")
    if path.is_dir() or not os.access(path, os.X_OK):
        raise ConfigError(f"`{program}` cannot be executed by the worker's user")
