"""Something that fails again and again is logged twice: when it begins to fail, and when it works again."""

import logging
from threading import Lock

__all__ = ["OutageLog"]


class OutageLog:
    """The log lines about one thing that may fail. Safe to share between threads.

    Args:
        logger: Where to log.
        what: What fails, as a sentence without a full stop: "the metrics cannot be written to Redis".
        level: That of the first failure; the end is a warning.
    """

    def __init__(self, logger: logging.Logger, what: str, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._what = what
        self._level = level
        self._lock = Lock()
        self._failures = 0

    def failed(self, reason: object) -> None:
        """It failed; logged unless it failed last time too."""
        with self._lock:
            self._failures += 1
            is_first = self._failures == 1
        if is_first:
            self._logger.log(self._level, "%s: %s", self._what, reason)

    def succeeded(self) -> None:
        """It works; logged if it failed last time."""
        if not self._failures:
            return
        with self._lock:
            failures, self._failures = self._failures, 0
        if failures:
            self._logger.warning("resolved after %d failures: %s", failures, self._what)
