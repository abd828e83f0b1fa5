"""How long a server has been failing, and what that means for its calls.

Owns two answers: whether a server that failed a moment ago gets time to return, and whether one is known to be
unreachable, so that its calls fail at once. It knows neither sessions nor transports.
"""

import time

from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S

__all__ = ["ServerAvailability"]

_PAUSE_FACTOR = 10.0
"""The pause before an unreachable server is tried again, as a multiple of what the last attempt took."""
_FAST_ATTEMPT_S = 1.0
"""An attempt that fails within this time is not worth avoiding."""


class ServerAvailability:
    """The recent failures of one server, which is known to be unreachable after `grace_s`. All times are monotonic.

    Attributes:
        answered_at: When it last gave a result, listed its tools, or was connected.
        reason: Why it is unreachable; empty if it is not.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._tried_at = float("-inf")
        self.record_answer()
        self.answered_at = float("-inf")

    def record_answer(self) -> None:
        """The server answered: forget its failures."""
        self.answered_at = time.monotonic()
        self._failing_since: float | None = None
        self._unreachable_since: float | None = None
        self._failed_at = self._attempt_s = 0.0
        self.reason = ""

    def record_failure(self) -> None:
        """The server could not be reached, was lost, or asked to wait."""
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    def record_unreachable(self, reason: str, since: float) -> None:
        """The server did not answer in an attempt that began at `since`; `reason` is in sentences."""
        self.record_failure()
        if self._unreachable_since is None:
            self._unreachable_since = since
        self._failed_at = time.monotonic()
        self._attempt_s = self._failed_at - since
        self.reason = reason

    def record_attempt(self) -> None:
        self._tried_at = time.monotonic()

    @property
    def is_expected_back(self) -> bool:
        """Whether waiting for the server makes sense: it failed less than `grace_s` ago."""
        return self._failing_since is not None and time.monotonic() - self._failing_since < self._grace_s

    @property
    def unreachable_s(self) -> float:
        """How long the server has been known to be unreachable, in seconds; 0 if it is not. A single failure does not
        count: the server must have failed again after `grace_s`.
        """
        if self._unreachable_since is None or self._failed_at - self._unreachable_since < self._grace_s:
            return 0.0
        return time.monotonic() - self._unreachable_since

    def claim_attempt(self) -> bool:
        """Whether a call may try the server; if so, the attempt is recorded.

        An unreachable server is tried only now and then, because without health checks only a call can find out that it
        has returned. A refused connection fails within milliseconds, so every call may try; no answer at all takes
        `connect_s`.
        """
        slow = self._attempt_s >= _FAST_ATTEMPT_S
        pause_s = min(_PAUSE_FACTOR * self._attempt_s, CHECK_INTERVAL_S) if slow else 0.0
        if self.unreachable_s and time.monotonic() - max(self._tried_at, self._failed_at) < pause_s:
            return False
        self.record_attempt()
        return True
