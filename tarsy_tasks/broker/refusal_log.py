"""Counts what is refused, and logs the 1st, the 10th, the 100th of a kind: who can send one can send a million.

Owns the counts; they are those of one process.
"""

import logging
from collections import Counter

__all__ = ["RefusalLog"]


class RefusalLog:
    """The log lines about messages that are refused."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, place: str, reason: str) -> None:
        """One more; `reason` quotes nothing of it."""
        self._counts[place, reason] += 1
        count = self._counts[place, reason]
        if str(count).strip("0") == "1":
            times = f" ({count} so far)" if count > 1 else ""
            self._logger.critical("a message from %s was refused: %s%s", place, reason, times)
