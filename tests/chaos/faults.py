"""What is done to processes and connections, and for how long."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.processes import wait_until

__all__ = ["cut_connections", "frozen", "last"]


def last(seconds: float) -> None:
    """Let a fault last: how long Redis is frozen or a network is cut *is* the fault, there is no event to wait for."""
    ends = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= ends, "the fault has lasted long enough", seconds + 60)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that stands still, its connections open."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def cut_connections(redis: Any) -> int:
    """Close every connection of Redis but this client's; returns how many there were."""
    return sum(redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes") for kind in ("normal", "pubsub"))
