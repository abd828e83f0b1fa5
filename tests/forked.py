"""Workers and commands by fork, from a server process that has imported what they import and nothing else.

Importing it takes most of their start, and the suite starts hundreds. `up`, the demo and the tour start theirs as users
do.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ForkedProcess", "needs_new_interpreter"]

_COMMANDS = ("audit", "call", "config", "dead_letters", "doctor", "health", "tools")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "celery.__main__",
        "celery.bin.worker",
        "tarsy_tasks.worker.process.pool",
        "tarsy_tasks.worker.process.consumer",
        *(f"tarsy_tasks.cli.{name}" for name in _COMMANDS),
    ]
)
_READ_AT_START = ("PYTHON", "LD_")


def needs_new_interpreter(environment: Mapping[str, str]) -> bool:
    """Whether it has variables that Python or the linker read before the first module."""
    return any(name.startswith(_READ_AT_START) and os.environ.get(name) != value for name, value in environment.items())


class ForkedProcess:
    """`celery <arguments>` or `tarsy-tasks <arguments>`, with the part of `subprocess.Popen` that tests use.

    Args:
        command: The program and its arguments.
        out: For what it prints.
        errors: For what it prints as errors; None: the same.
    """

    def __init__(
        self, command: list[str], out: Path, environment: Mapping[str, str], cwd: Path, errors: Path | None = None
    ) -> None:
        self._process = _SERVER.Process(target=_run, args=(command, (out, errors or out), dict(environment), cwd))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
            if self.returncode is not None:
                self._process.close()  # its descriptors
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("celery", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], outputs: tuple[Path, Path], environment: dict[str, str], cwd: Path) -> None:
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, path in enumerate(outputs, start=1):
        with path.open("ab") as output:
            os.dup2(output.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))
    sys.argv = command
    multiprocessing.current_process().name = "MainProcess"

    from celery.__main__ import main as celery

    from tarsy_tasks.cli import main as tarsy_tasks

    try:
        tarsy_tasks(prog_name="tarsy-tasks") if command[0] == "tarsy-tasks" else celery()
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them
