"""A server that runs only while it is used (`start: on_demand`): when it is stopped, and what stays known of it.

Owns the timer, and what the server last listed. It opens and closes no session: that is `connection`. Everything runs
on the session loop. It costs a call nothing: when the last one ended is known from `recent_calls`.
"""

import asyncio
import time
from collections.abc import Callable

from tarsy_tasks.worker.sessions.listing import Listed
from tarsy_tasks.worker.sessions.recent_calls import RecentCalls
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["OnDemand"]


class OnDemand:
    """When the server of one connection is stopped.

    Args:
        idle_stop_s: For how long nothing was in flight when it is stopped.
        count_running: How many calls run, and how many of its resources are watched.
        calls: How its last calls ended.
        stop: Stops it.

    Attributes:
        is_resting: There is no session because none was needed: not yet, or not for a while.
        listed: What it listed before it was stopped; None before the first time.
    """

    def __init__(
        self, idle_stop_s: float, count_running: Callable[[], int], calls: RecentCalls, stop: Callable[[], None]
    ) -> None:
        self.is_resting = True
        self.listed: Listed | None = None
        self._idle_stop_s = idle_stop_s
        self._count_running = count_running
        self._calls = calls
        self._stop = stop
        self._opened_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A session was opened."""
        self.is_resting, self._opened_at = False, time.monotonic()
        self._wait(self._idle_stop_s)

    def rest(self, session: Session | None) -> None:
        """No session is needed for now; what this one has listed stays known."""
        self.is_resting = True
        if session is not None:
            self.listed = session.listed()
        self.cancel()

    def cancel(self) -> None:
        """Do not stop the server: it is stopped already, or for good."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        self.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self._count_running():
            self._wait(self._idle_stop_s)
            return
        idle_s = time.monotonic() - max(self._opened_at, self._calls.last_at)
        if idle_s < self._idle_stop_s:
            self._wait(self._idle_stop_s - idle_s)
        else:
            self._stop()
