"""How much of a worker's time one server may cost, and what happens when it costs more all the time.

Owns the token buckets behind `long_work` and `transport.flood`, and the suspension of a server, also one on which all
workers agree (`process.error_budgets`). It does not know what the time was spent on, nor what a suspended server may
not do: that is in `sessions.connection`.
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
_UNHEARD_S = 10.0
"""A suspension by all workers that is not confirmed for so long, after the server should have been tried, has ended."""


class TimeBudget:
    """A token bucket whose tokens are seconds of the worker's time. What spends them pauses while it is in debt.

    Args:
        share: Of the time that passes, what the bucket gets.
        capacity_s: What it holds at most.
        most_debt_s: So that a single excess, however large, is over after `most_debt_s / share`.
        clock: Monotonic time.

    Attributes:
        left_s: The tokens; negative in debt.
        slow_since: Since when there have been pauses, monotonic; None once the bucket is half full again.
    """

    def __init__(
        self, *, share: float, capacity_s: float, most_debt_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.left_s = capacity_s
        self.slow_since: float | None = None
        self._share = share
        self._capacity_s = capacity_s
        self._most_debt_s = most_debt_s
        self._clock = clock
        self._filled_at = clock()
        self._forgives_at: float | None = None

    def charge(self, cost_s: float) -> None:
        self.left_s = max(self.left_s - cost_s, -self._most_debt_s)

    def forgive(self, at: float) -> None:
        """Be full at a time, and until then pauses do not count as an excess."""
        self.slow_since = None
        self._forgives_at = at

    def pause_s(self) -> float:
        """How long to pause until there is no debt; 0 if that is very short."""
        now = self._clock()
        self.left_s = min(self.left_s + (now - self._filled_at) * self._share, self._capacity_s)
        self._filled_at = now
        if self._forgives_at is not None and now >= self._forgives_at:
            self.left_s, self._forgives_at = self._capacity_s, None
        if self.left_s > self._capacity_s / 2:
            self.slow_since = None
        pause_s = -self.left_s / self._share
        if pause_s < _SHORTEST_PAUSE_S:
            return 0.0
        if self.slow_since is None and self._forgives_at is None:
            self.slow_since = now
        return pause_s


class Suspension:
    """The suspension of one server, which begins when it has been over a budget for `slow_s` without a break.

    Args:
        slow_s: For so long it is only slowed.
        first_s: How long it is suspended; twice as long each time again within 10 minutes, at most 10 minutes.
        clock: Monotonic time.

    Attributes:
        until: When it ends, monotonic; 0 when there was none.
        reason: Why, without a full stop.
        count: How often the server was suspended.
        is_lifted: An operator has ended it, which the other workers do not know yet.
        on_begin: Called when a suspension begins.
    """

    def __init__(
        self, slow_s: float = _SLOW_S, first_s: float = _FIRST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.until = 0.0
        self.reason = ""
        self.count = 0
        self.is_lifted = False
        self.on_begin: Callable[[], None] = lambda: None
        self._slow_s = slow_s
        self._next_s = self._first_s = first_s
        self._clock = clock
        self._budgets: list[TimeBudget] = []
        self._shared_until = self._tried_at = 0.0
        self._shared_reason = ""

    def new_budget(self, *, share: float, capacity_s: float, most_debt_s: float) -> TimeBudget:
        """A budget of the server, which is full again when a suspension ends."""
        budget = TimeBudget(share=share, capacity_s=capacity_s, most_debt_s=most_debt_s, clock=self._clock)
        self._budgets.append(budget)
        return budget

    @property
    def left_s(self) -> float:
        """How long it will last; 0 if the server is not suspended."""
        return max(0.0, max(self.until, self._shared_until) - self._clock()) if self.count else 0.0

    @property
    def text(self) -> str:
        """That the server is suspended, for how long and why; without a full stop."""
        now = self._clock()
        if now < self.until:
            return f"suspended for {self.until - now:.0f} s: {self.reason}"
        return f"suspended: {self._shared_reason}; it is tried again in {max(1.0, self._tried_at - now):.0f} s"

    def share(self, reason: str, left_s: float) -> None:
        """All workers suspend the server; repeated for as long as that is so.

        Args:
            reason: Why, without a full stop.
            left_s: In how many seconds one of them tries it again.
        """
        is_new = not self.left_s
        self._tried_at = self._clock() + left_s
        self._shared_until, self._shared_reason = self._tried_at + _UNHEARD_S, reason
        if is_new:
            self.count += 1
            self.on_begin()

    def unshare(self) -> bool:
        """They no longer do. Whether they did."""
        was_shared, self._shared_until = self._shared_until > 0, 0.0
        return was_shared

    def note_excess(self, budget: TimeBudget, reason: str) -> None:
        """The server is over a budget now."""
        now = self._clock()
        if budget.slow_since is None or now < self.until or now - budget.slow_since < self._slow_s:
            return
        if now - self.until > _FORGOTTEN_AFTER_S:
            self._next_s = self._first_s
        self.until, self.reason = now + self._next_s, reason
        self._next_s = min(2 * self._next_s, _LONGEST_S)
        self.count += 1
        self._forgive(self.until)
        self.on_begin()

    def lift(self) -> None:
        """End it now, because an operator wants to, and forget those before."""
        now = self._clock()
        self.until = min(self.until, now)
        self._shared_until, self.is_lifted = 0.0, True
        self._next_s = self._first_s
        self._forgive(now)

    def _forgive(self, at: float) -> None:
        for budget in self._budgets:
            budget.forgive(at)
