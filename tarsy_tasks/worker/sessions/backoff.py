"""How long to wait before something is tried again.

Owns the one rule for calls and connections: a random wait, so that what failed together does not return together;
doubled after each attempt; never shorter than the server asked for.
"""

import random
from collections.abc import Callable

from tenacity import RetryCallState

from tarsy_tasks.config import Retry
from tarsy_tasks.worker.sessions.recovery import retry_after_s

__all__ = ["FailedAttempt", "backoff"]

_MAX_DOUBLINGS = 3


class FailedAttempt(Exception):
    """One attempt failed, and another one may be made; `end_reason` is empty while the session is usable."""

    def __init__(self, error: Exception, end_reason: str) -> None:
        super().__init__()
        self.error = error
        self.end_reason = end_reason


def backoff(policy: Retry) -> Callable[[RetryCallState], float]:
    """A tenacity wait strategy that follows a server's `retry`; seconds."""

    def wait(state: RetryCallState) -> float:
        wait_s = random.uniform(policy.min_wait_s, policy.max_wait_s)  # noqa: S311 - no secret
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = retry_after_s(error.error) if isinstance(error, FailedAttempt) else None
        own_s = wait_s * 2.0 ** min(state.attempt_number - 1, _MAX_DOUBLINGS)
        return own_s if asked_s is None else max(asked_s + wait_s, own_s)

    return wait
