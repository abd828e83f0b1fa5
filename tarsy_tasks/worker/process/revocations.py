"""Which ids of tasks somebody has revoked since this worker last looked.

Owns reading Celery's set of them, which is bounded, sorted when it is iterated, and filled by commands, by other
workers when this one starts, and from its file of states. Only what was added since is read here: entries are kept in
the order in which they were added, each with a number that grows.
"""

from itertools import islice
from typing import Any

from celery.worker import state as worker_state

__all__ = ["Revocations"]

_FIRST = 64


class Revocations:
    """What is new in `celery.worker.state.revoked`.

    Args:
        revoked: Another set, for tests.
    """

    def __init__(self, revoked: Any = None) -> None:
        self._revoked: Any = worker_state.revoked if revoked is None else revoked
        self._latest = -1
        self._taken = -1

    def take(self) -> set[str]:
        """Ids that were added since the last time that was confirmed; those that were revoked once more, too."""
        count, entries = _FIRST, self._newest(_FIRST)
        while len(entries) == count and entries[-1][1] > self._taken:
            count *= 8
            entries = self._newest(count)
        if entries:
            self._latest = entries[0][1]
        return {item for _, number, item in entries if number > self._taken and isinstance(item, str)}

    def confirm(self) -> None:
        """What was taken last has been dealt with."""
        self._taken = self._latest

    def _newest(self, count: int) -> list[tuple[float, int, Any]]:
        # In one step of the interpreter: Celery's thread adds to it meanwhile.
        return list(islice(reversed(self._revoked._data.values()), count))
