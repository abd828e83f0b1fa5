"""A command on a terminal of its own, for tests of what a person sees."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["Terminal"]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command, and what it wrote on its terminal.

    Args:
        columns: The width of the terminal.

    Attributes:
        text: As it came, with escape sequences.
    """

    def __init__(
        self, *command: str, environment: Mapping[str, str], columns: int = 80, cwd: Path | None = None
    ) -> None:
        self._own_end, other_end = pty.openpty()
        fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        surroundings = {**environment, "TERM": "xterm"}
        surroundings.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            command,
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            env=surroundings,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(other_end)
        self.text = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):  # the end of the terminal
            while read := os.read(self._own_end, 65536):
                self.text += read.decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        """The lines without escape sequences."""
        return [line.rstrip() for line in _ESCAPES.sub("", self.text).splitlines()]

    def wait(self) -> int:
        """Wait for the end of the command; returns its exit code."""
        code = self.process.wait(60)
        self._thread.join()
        os.close(self._own_end)
        return code

    def close(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        assert self.wait() == 0
