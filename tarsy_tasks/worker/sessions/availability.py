"""How long a server has been failing, and what that means for its calls.

Owns two answers: is a server that was well a moment ago given time to return, and is one that is gone known to be gone,
so that its calls fail at once rather than each finding out for itself. It knows neither sessions nor transports.
"""

import time

from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S

__all__ = ["ServerAvailability"]

_PATIENCE = 10.0
"""A server that is gone is tried again after so many times what the last attempt took."""
_CHEAP_S = 1.0
"""What takes less than this is simply tried."""


class ServerAvailability:
    """What is known of one server that fails. All times are monotonic.

    Args:
        grace_s: How long it is given to return; who is out of reach for longer is known to be gone.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._tried_at = float("-inf")
        self.end()

    def end(self) -> None:
        """The server answered: it is well."""
        self._failing_since: float | None = None
        self._gone_since: float | None = None
        self._gone_until = self._attempt_s = 0.0
        self.reason = ""

    def note_failure(self) -> None:
        """The server could not be reached, was lost, or asked to wait."""
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    def note_absence(self, reason: str, since: float) -> None:
        """Nobody answered.

        Args:
            reason: What was seen of it, without a full stop.
            since: When the attempt began that found it out.
        """
        self.note_failure()
        if self._gone_since is None:
            self._gone_since = since
        self._gone_until = time.monotonic()
        self._attempt_s = self._gone_until - since
        self.reason = reason

    def note_attempt(self) -> None:
        """Somebody tries whether the server is back."""
        self._tried_at = time.monotonic()

    @property
    def is_expected_to_end(self) -> bool:
        """Whether waiting for the server makes sense: it failed, and not for long yet."""
        return self._failing_since is not None and time.monotonic() - self._failing_since < self._grace_s

    @property
    def gone_s(self) -> float:
        """For how long the server has been known to be gone, in seconds; 0 if it is not. It was then out of reach again
        after the time that it is given to return: a single failure long ago says nothing.
        """
        if self._gone_since is None or self._gone_until - self._gone_since < self._grace_s:
            return 0.0
        return time.monotonic() - self._gone_since

    def may_try(self) -> bool:
        """Whether a call may try the server, and if so, that it does.

        Of one that is gone only now and then: where no health check finds out that it is back, a call has to. Where a
        port refuses it takes milliseconds to find out, and no call goes without; where nobody says a word it takes all
        of `connect_s`.
        """
        pause_s = min(_PATIENCE * self._attempt_s, CHECK_INTERVAL_S) if self._attempt_s >= _CHEAP_S else 0.0
        if self.gone_s and time.monotonic() - max(self._tried_at, self._gone_until) < pause_s:
            return False
        self.note_attempt()
        return True
