"""The thread in which this process calls functions of synchronous agents: progress of calls, events of servers.

Owns the thread, from its first use until the process ends. All such functions share it.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["call_in_thread"]

_Work = Callable[[], None]


class _Thread:
    """A forked child gets its own."""

    def __init__(self) -> None:
        self._clear()
        os.register_at_fork(after_in_child=self._clear)

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._work: SimpleQueue[_Work] | None = None

    def put(self, work: _Work) -> None:
        with self._lock:
            if self._work is None:
                self._work = SimpleQueue()
                threading.Thread(target=_run, args=(self._work,), name="tarsy-agent-progress", daemon=True).start()
        self._work.put(work)


def _run(work: SimpleQueue[_Work]) -> None:
    while True:
        work.get()()


_thread = _Thread()


def call_in_thread(work: _Work) -> None:
    """Have the thread call this, which must not raise, after what it was given before."""
    _thread.put(work)
