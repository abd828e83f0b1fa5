"""The servers that a worker starts, by fork as well: the worker is given the command of a small program that stands for
the server, `tests/servers/warm.py`, and this is what that program asks.

It is not for servers whose process a test is about, nor for those in a sandbox.
"""

import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from tests.forked import SERVER, run_python
from tests.servers import warm

__all__ = ["running", "warm_command"]

_SOCKET = Path(tempfile.gettempdir()) / f"tarsy-tests-{secrets.token_hex(8)}"


def warm_command(*arguments: str) -> dict[str, Any]:
    """The entry of a server that `python <arguments>` starts: a script, or `-m` and a module; and what it is to read.

    Outside the test suite it starts just so.
    """
    return {"command": sys.executable, "args": ["-S", "-E", warm.__file__, str(_SOCKET), *arguments]}


@contextmanager
def running() -> Iterator[None]:
    """Programs start by fork, until the block ends."""
    goes_on, own_end = Pipe(duplex=False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(_SOCKET))
        listener.listen(64)
        starter = SERVER.Process(target=_serve, args=(listener, goes_on))
        starter.start()
    goes_on.close()
    try:
        yield
    finally:
        own_end.close()
        starter.join()
        _SOCKET.unlink()


def _serve(listener: socket.socket, goes_on: Connection) -> None:
    _Starter(listener, goes_on).serve()


class _Starter:
    """Starts a program for each connection; the connection ends with the program, and the program with it."""

    def __init__(self, listener: socket.socket, goes_on: Connection) -> None:
        self._listener = listener
        self._goes_on = goes_on
        self._programs: dict[socket.socket, ForkProcess] = {}

    def serve(self) -> None:
        """Until the other end of `goes_on` is closed."""
        while self._goes_on not in (ready := self._wait()):
            for link, program in list(self._programs.items()):
                if program.sentinel in ready or link in ready:
                    self._end(link)
            if self._listener in ready:
                self._start()
        for link in list(self._programs):
            self._end(link)

    def _wait(self) -> list[Any]:
        sentinels = (program.sentinel for program in self._programs.values())
        return wait([self._goes_on, self._listener, *self._programs, *sentinels])

    def _start(self) -> None:
        link, _ = self._listener.accept()
        _, files, _, _ = socket.recv_fds(link, 1, 3)
        with link.makefile("rb") as lines:
            request = json.loads(lines.readline())
        program = get_context("fork").Process(target=_run, args=(files, request))
        program.start()
        for file in files:
            os.close(file)
        self._programs[link] = program
        link.sendall(b"%d\n" % (program.pid or 0))

    def _end(self, link: socket.socket) -> None:
        program = self._programs.pop(link)
        program.join(0)
        program.kill()
        program.join()
        with suppress(OSError):  # it may be gone
            link.sendall(b"%d\n" % (program.exitcode or 0))
        link.close()


def _run(files: list[int], request: dict[str, Any]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    run_python(request["arguments"], request["environment"], request["directory"])
