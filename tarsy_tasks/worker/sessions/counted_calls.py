"""Which calls of a server failed since they were last asked for: what its error budget is about.

Owns the counts of one worker process, and which errors mean a failure of the server: no answer in time, and a
connection that failed. What its tools refuse is an answer; what agents cancel, or have too little time for, says
nothing of the server.
"""

import threading

from tarsy_tasks.outcomes import ErrorCode, Outcome

__all__ = ["CountedCalls"]

_MOST_AGENTS = 500
_NAME_CHARS = 200
_FAILURES = (ErrorCode.CALL_TIMEOUT, ErrorCode.SESSION_LOST, ErrorCode.SERVER_UNAVAILABLE)


class CountedCalls:
    """The calls of one server. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}

    def add(self, principal: str, code: ErrorCode | None) -> None:
        """A call has ended, as its error says; None: with an answer."""
        if code is not None and code not in _FAILURES and code.outcome is not Outcome.TOOL_ERROR:
            return
        has_failed = code in _FAILURES
        most = 2 * _MOST_AGENTS if has_failed else _MOST_AGENTS  # as in `broker.error_budget`
        with self._lock:
            if principal not in self._counts and len(self._counts) >= most:
                principal = ""
            counts = self._counts.setdefault(principal, [0, 0])
            counts[0] += 1
            counts[1] += has_failed

    def take(self) -> dict[str, tuple[int, int]]:
        """Calls, and how many of them failed, by principal; the empty name stands for those of any further ones."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return {_printable(name): (calls, failed) for name, (calls, failed) in taken.items()}


def _printable(name: str) -> str:
    """Half a character cannot be read in a script."""
    return name[:_NAME_CHARS].encode("utf-8", "replace").decode()
