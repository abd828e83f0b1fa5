"""Python programs by fork, from a server process that has imported what they import, and has done what
`tests.preloaded` does.

Imports take most of their start, and the suite starts hundreds. `up`, the demo and the tour start theirs as users
do; so does a test that is about the start.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SERVER", "ForkedProcess", "needs_new_interpreter", "run_python"]

_COMMANDS = ("audit", "call", "config", "dead_letters", "doctor", "health", "tools")
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "celery.__main__",
        "celery.bin.worker",
        "celery.bin.celery",
        "celery.apps.worker",
        "celery.apps.beat",
        "celery.worker.autoscale",
        "celery.worker.components",
        "celery.worker.strategy",
        # Celery's command line loads these with every command.
        "click_repl",
        "flower.command",
        "tarsy_tasks.worker.process.pool",
        "tarsy_tasks.worker.process.consumer",
        *(f"tarsy_tasks.cli.{name}" for name in _COMMANDS),
        # Servers of the SDK.
        "mcp.server.mcpserver",
        "mcp.server.sse",
        "mcp.server.stdio",
        "uvicorn",
        "uvicorn.protocols.http.auto",
        "tests.preloaded",
    ]
)
_READ_AT_START = ("PYTHON", "LD_")


def needs_new_interpreter(environment: Mapping[str, str]) -> bool:
    """Whether it has variables that Python or the linker read before the first module."""
    return any(name.startswith(_READ_AT_START) and os.environ.get(name) != value for name, value in environment.items())


class ForkedProcess:
    """`python <arguments>`, with the part of `subprocess.Popen` that tests use.

    Args:
        arguments: A script, or `-m` and a module; and what it is to read.
        out: For what it prints.
        errors: For what it prints as errors; None: the same.
    """

    def __init__(
        self, arguments: list[str], out: Path, environment: Mapping[str, str], cwd: Path, errors: Path | None = None
    ) -> None:
        self._process = SERVER.Process(target=_run, args=(arguments, (out, errors or out), dict(environment), cwd))
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
            raise subprocess.TimeoutExpired("python", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_python(arguments: list[str], environment: Mapping[str, str], cwd: str | Path) -> None:
    """Be `python <arguments>` from here on; the files 0 to 2 are already its own."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.stdin = os.fdopen(0, closefd=False)
    multiprocessing.current_process().name = "MainProcess"
    first, *others = arguments
    try:
        if first == "-m":
            sys.argv = others
            sys.path.insert(0, str(cwd))
            runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(first).parent))
            runpy.run_path(first, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them


def _run(arguments: list[str], outputs: tuple[Path, Path], environment: dict[str, str], cwd: Path) -> None:
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, path in enumerate(outputs, start=1):
        with path.open("ab") as output:
            os.dup2(output.fileno(), number)
    run_python(arguments, environment, cwd)
