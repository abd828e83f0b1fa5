"""Celery's event loop, which is kombu's hub: it can be woken when it waits for input."""

from functools import partial
from typing import Any

from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["wake", "wake_in_signal_handler"]


def wake(hub: Any) -> None:
    """Let it begin its next iteration, in which it checks what it may poll and whether it has to stop. Call it from
    another thread: in the hub's own, `call_soon` does not wake it.
    """
    hub.call_soon(_nothing)


def wake_in_signal_handler(hub: Any, loop: SessionLoop) -> None:
    """As `wake`, for a handler that interrupts the hub's thread, which may hold its lock: the session loop does it.
    Does nothing once that loop is closed.
    """
    if not loop.is_closed:
        loop.call_soon(partial(wake, hub))


def _nothing() -> None:
    pass
