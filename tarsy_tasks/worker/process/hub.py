"""Celery's event loop, which is kombu's hub: it can be woken when it waits for input."""

from functools import partial
from typing import Any

from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["wake", "wake_in_signal_handler"]


def wake(hub: Any) -> None:
    """Let it begin its next iteration. Called in other threads than its own, where it is not woken."""
    hub.call_soon(_nothing)  # in each iteration it looks which queues it may poll, and whether it has to stop


def wake_in_signal_handler(hub: Any, loop: SessionLoop) -> None:
    """As `wake`, but in its own thread, which may hold the hub's lock. Nothing if the worker's loop has ended."""
    if not loop.is_closed:
        loop.call_soon(partial(wake, hub))


def _nothing() -> None:
    pass
