"""The latest calls of all servers, kept in memory as they come.

Owns which entries of the audit are there. Whoever looks at calls again and again, for one server or with a filter,
costs only what is new: the entries before are parsed once. What is older is read from Redis, page by page.
"""

import threading
from itertools import takewhile
from typing import Any

from tarsy_tasks.audit import AuditEntry, AuditFilter, AuditPage, read_audit

__all__ = ["KEPT", "RecentCalls"]

KEPT = 2000
"""How many."""


class RecentCalls:
    """The newest entries. Safe to share between threads.

    Args:
        redis: A redis-py client of the broker's database.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._lock = threading.Lock()
        self._entries: list[AuditEntry] = []
        self._are_all = False

    def find(self, wanted: AuditFilter, limit: int) -> AuditPage:
        """The newest of them that match, newest first; the cursor of the page leads on to what is older.

        Raises:
            RedisError: Redis could not be reached.
        """
        with self._lock:
            self._refresh()
            entries, are_all = self._entries, self._are_all
        found: list[AuditEntry] = []
        for entry in reversed(entries):
            if wanted.matches(entry):
                found.append(entry)
            if len(found) == limit:
                return AuditPage(found, entry.cursor)
        return AuditPage(found, None if are_all else entries[0].cursor)

    def _refresh(self) -> None:
        if self._entries and self._read_on():
            return
        page = read_audit(self._redis, limit=KEPT)
        self._entries, self._are_all = page.entries[::-1], page.cursor is None

    def _read_on(self) -> bool:
        """Add what is new; whether what was there before still is, and not too much has come since."""
        last = self._entries[-1]
        # Its whole millisecond again: what came to the other stream in it may be new.
        page = read_audit(self._redis, AuditFilter(since=_written_at(last)), limit=KEPT, newest_first=False)
        if page.cursor is not None or last.cursor not in {entry.cursor for entry in page.entries}:
            return False
        latest = takewhile(lambda entry: _written_at(entry) == _written_at(last), reversed(self._entries))
        known = {entry.cursor for entry in latest}
        entries = [*self._entries, *(entry for entry in page.entries if entry.cursor not in known)]
        self._are_all = self._are_all and len(entries) <= KEPT
        self._entries = entries[-KEPT:]
        return True


def _written_at(entry: AuditEntry) -> float:
    """The middle of the millisecond in which Redis took it: no rounding makes it the one before."""
    return (int(entry.id.partition("-")[0]) + 0.5) / 1000
