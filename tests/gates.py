"""Gates: a server of a test waits at one until the test opens it. Nobody looks again and again.

A gate is a FIFO that exists as long as it is closed. Whoever waits there reads it to its end, and goes on at once if it
does not exist. Some servers are shell scripts or cannot import this package, so each does that itself.
"""

import os
from pathlib import Path

__all__ = ["make_gate", "open_gate"]


def make_gate(path: Path) -> Path:
    """A closed gate."""
    os.mkfifo(path)
    return path


def open_gate(gate: Path) -> None:
    """Let pass whoever waits there, and all who come later."""
    # Opened for both, it waits for no reader. All readers go on now, to the end of what is written: nothing.
    file = os.open(gate, os.O_RDWR)
    gate.unlink()
    os.close(file)
