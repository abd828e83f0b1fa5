"""Gates: a server of a test waits at one until the test opens it. Nobody looks again and again.

A gate is a FIFO that exists as long as it is closed. A server that waits there reads it to its end, and continues at
once if it does not exist. Some servers are shell scripts or cannot import this package, so each does that itself.
"""

import os
from pathlib import Path

__all__ = ["make_gate", "open_gate"]


def make_gate(path: Path) -> Path:
    """A closed gate."""
    os.mkfifo(path)
    return path


def open_gate(gate: Path) -> None:
    """Let pass all that wait there, and all that come later."""
    # Opened for reading and writing, it waits for no reader. Closed again, all readers find its end.
    file = os.open(gate, os.O_RDWR)
    gate.unlink()
    os.close(file)
