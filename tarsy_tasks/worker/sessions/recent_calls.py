"""How the last calls of a server ended: what shows that its checks pass and its calls fail.

Owns the counts of one worker process, for its health records.
"""

import time
from collections import deque

__all__ = ["RecentCalls"]

_MOST = 20
_RECENT_S = 300.0


class RecentCalls:
    """The last 20 calls of one server. Safe to share between threads."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, bool]] = deque(maxlen=_MOST)

    @property
    def last_at(self) -> float:
        """When the last call ended, monotonic time; the beginning of time if there was none."""
        return self._calls[-1][0] if self._calls else float("-inf")

    def record(self, *, failed: bool) -> None:
        """A call is over; it failed if its result is an error, or there is none."""
        self._calls.append((time.monotonic(), failed))

    def count(self) -> tuple[int, int]:
        """The number of those in the last five minutes, and how many of these failed."""
        since = time.monotonic() - _RECENT_S
        calls = [failed for ended_at, failed in self._calls.copy() if ended_at >= since]
        return len(calls), sum(calls)
