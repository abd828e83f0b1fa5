"""The latest calls of all servers, kept in memory as they come.

Owns which entries of the audit are there. Whoever looks at calls again and again, for one server or with a filter,
costs only what is new: the entries before are parsed once. What is older is read from Redis once for each filter, and
remembered for as long as what came since is known.
"""

import threading
import time
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from redis.exceptions import RedisError

from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, AuditPage, read_audit

__all__ = ["KEPT", "RecentCalls"]

KEPT = 2000
"""How many."""
_REMEMBERED = 200
"""For so many filters is remembered what was older."""


@dataclass(frozen=True)
class _Older:
    """What was found, where it was not all in memory.

    Attributes:
        newest: The newest entry in memory then; what came since is known while that is in memory.
    """

    page: AuditPage
    newest: AuditEntry


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
        self._older: dict[tuple[AuditFilter, int], _Older] = {}
        self._tried_at = float("-inf")
        self._failure: RedisError | None = None

    def find(self, wanted: AuditFilter, limit: int) -> AuditPage:
        """The newest of them that match, newest first; the cursor of the page leads on to what is older.

        Raises:
            RedisError: Redis could not be reached.
        """
        return self._choose(*self._current(), wanted, limit)

    def find_further(self, wanted: AuditFilter, limit: int, scan_limit: int) -> AuditPage:
        """The same; where too few of them match, with older ones out of Redis.

        Args:
            wanted: For any time.
            scan_limit: How many of the older ones to look at.

        Raises:
            RedisError: Redis could not be reached.
        """
        entries, are_all = self._current()
        found = self._choose(entries, are_all, wanted, limit)
        if found.cursor is None or len(found.entries) == limit:
            return found
        with self._lock:
            known = self._older.get((wanted, limit))
        if known is None or _written_at(known.newest) <= _written_at(entries[0]):
            older = read_audit(self._redis, wanted, limit=limit, after=found.cursor, scan_limit=scan_limit)
            page = AuditPage([*found.entries, *older.entries], older.cursor)
        else:
            seen = {entry.cursor for entry in found.entries}
            rest = [entry for entry in known.page.entries if entry.cursor not in seen]
            page = AuditPage([*found.entries, *rest], known.page.cursor)
        if len(page.entries) > limit:
            page = AuditPage(page.entries[:limit], page.entries[limit - 1].cursor)
        self._remember(wanted, limit, _Older(page, entries[-1]))
        return page

    def _remember(self, wanted: AuditFilter, limit: int, older: _Older) -> None:
        with self._lock:
            self._older.pop((wanted, limit), None)
            self._older[wanted, limit] = older
            while len(self._older) > _REMEMBERED:
                del self._older[next(iter(self._older))]

    @staticmethod
    def _choose(entries: list[AuditEntry], are_all: bool, wanted: AuditFilter, limit: int) -> AuditPage:
        found: list[AuditEntry] = []
        for entry in reversed(entries):
            if wanted.matches(entry):
                found.append(entry)
            if len(found) == limit:
                return AuditPage(found, entry.cursor)
        return AuditPage(found, None if are_all else entries[0].cursor)

    def _current(self) -> tuple[list[AuditEntry], bool]:
        """The entries, read on; who had to wait meanwhile takes what the others found, also that there is no Redis."""
        begun = time.monotonic()
        with self._lock:
            if self._tried_at <= begun:
                self._failure = None
                try:
                    self._refresh()
                except RedisError as error:
                    self._failure = error
                self._tried_at = time.monotonic()
            if self._failure is not None:
                raise self._failure
            return self._entries, self._are_all

    def _refresh(self) -> None:
        if self._entries and self._read_on():
            return
        page = read_audit(self._redis, limit=KEPT)
        self._older.clear()
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
