"""Who began a call, and when: the lines in its begin marker that `steps.begin` writes.

Owns reading them, for the audit. No decision depends on them: those are made by the owner and the state of the marker.
"""

from contextlib import suppress
from dataclasses import dataclass

__all__ = ["LONGEST_CHARS", "Begun", "read_begun"]

LONGEST_CHARS = 4000
"""Of the lines, so that no name of a worker makes a marker grow for ever. An agent's script may write longer ones."""
_MOST = 10


@dataclass(frozen=True, slots=True)
class Begun:
    """A worker began a call.

    Attributes:
        worker: Its node name.
        at: When, in seconds since the epoch by the clock of Redis.
    """

    worker: str
    at: float


def read_begun(lines: bytes) -> tuple[Begun, ...]:
    """Who began a call last, in order. What is damaged, or was cut, is left out."""
    found: list[Begun] = []
    for line in lines[-LONGEST_CHARS:].decode(errors="replace").splitlines():
        owner, _, at = line.rpartition(" ")
        worker, mark, _ = owner.partition("#")
        with suppress(ValueError):
            if mark:
                found.append(Begun(worker, float(at)))
    return tuple(found[-_MOST:])
