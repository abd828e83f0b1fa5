"""How much of a worker's time one server may cost, and what happens when it costs more all the time.

Owns the token bucket behind `long_work` and `transport.flood`, and the suspension of a server. It does not know what
the time was spent on, nor what a suspended server may not do: that is in `sessions.connection`.
"""

import time
from collections.abc import Callable

__all__ = ["Suspension", "TimeBudget"]

_SHORTEST_PAUSE_S = 0.01
"""A shorter pause is left for later: a timer costs the loop time too."""
_SLOW_S = 30.0
_FIRST_S = 30.0
_LONGEST_S = 600.0
_FORGOTTEN_AFTER_S = 600.0
"""A suspension that ended longer ago does not make the next one longer."""


class TimeBudget:
    """A token bucket whose tokens are seconds of the worker's time. Whoever spends them pauses while it is in debt.

    Args:
        share: Of the time that passes, what the bucket gets.
        capacity_s: What it holds at most.
        most_debt_s: So that a single excess, however large, is over after `most_debt_s / share`.

    Attributes:
        left_s: The tokens; negative in debt.
        slow_since: Since when there have been pauses, monotonic; None once the bucket is half full again.
    """

    def __init__(self, *, share: float, capacity_s: float, most_debt_s: float) -> None:
        self.left_s = capacity_s
        self.slow_since: float | None = None
        self._share = share
        self._capacity_s = capacity_s
        self._most_debt_s = most_debt_s
        self._filled_at = time.monotonic()

    def charge(self, cost_s: float) -> None:
        self.left_s = max(self.left_s - cost_s, -self._most_debt_s)

    def pause_s(self) -> float:
        """How long to pause until there is no debt; 0 if that is very short."""
        now = time.monotonic()
        self.left_s = min(self.left_s + (now - self._filled_at) * self._share, self._capacity_s)
        self._filled_at = now
        if self.left_s > self._capacity_s / 2:
            self.slow_since = None
        pause_s = -self.left_s / self._share
        if pause_s < _SHORTEST_PAUSE_S:
            return 0.0
        if self.slow_since is None:
            self.slow_since = now
        return pause_s


class Suspension:
    """The suspension of one server, which begins when it has been over a budget for `slow_s` without a break.

    Args:
        slow_s: For so long it is only slowed.
        first_s: How long it is suspended; twice as long each time again within 10 minutes, at most 10 minutes.

    Attributes:
        until: When it ends, monotonic; 0 when there was none.
        reason: Why, the rest of a sentence that begins with "it".
        count: How often the server was suspended.
        on_begin: Called when a suspension begins.
    """

    def __init__(self, slow_s: float = _SLOW_S, first_s: float = _FIRST_S) -> None:
        self.until = 0.0
        self.reason = ""
        self.count = 0
        self.on_begin: Callable[[], None] = lambda: None
        self._slow_s = slow_s
        self._next_s = self._first_s = first_s

    @property
    def left_s(self) -> float:
        """How long it will last; 0 if the server is not suspended."""
        return max(0.0, self.until - time.monotonic()) if self.until else 0.0

    def note_excess(self, budget: TimeBudget, reason: str) -> None:
        """The server is over a budget now."""
        now = time.monotonic()
        if budget.slow_since is None or now < self.until or now - budget.slow_since < self._slow_s:
            return
        budget.slow_since = None
        if now - self.until > _FORGOTTEN_AFTER_S:
            self._next_s = self._first_s
        self.until, self.reason = now + self._next_s, reason
        self._next_s = min(2 * self._next_s, _LONGEST_S)
        self.count += 1
        self.on_begin()

    def lift(self) -> None:
        """End it now, because an operator wants to."""
        self.until = min(self.until, time.monotonic())
