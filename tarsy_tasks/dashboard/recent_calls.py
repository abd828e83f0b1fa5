"""The latest calls of all servers, cached in memory.

Owns the cache of audit entries: each is read and parsed once, so that repeated requests cost only the new entries.
Older ones are read from Redis once per filter, and cached for as long as all entries since then are in memory.
"""

import math
import threading
import time
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from redis.exceptions import RedisError

from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, AuditPage, read_audit

__all__ = ["KEPT", "RecentCalls"]

KEPT = 2000
"""How many entries."""
_REMEMBERED = 200
"""For how many filters older entries are cached."""


@dataclass(frozen=True)
class _Older:
    """A page with entries from Redis, and the newest one in memory then: while it is there, so are all later ones."""

    page: AuditPage
    newest: AuditEntry


class RecentCalls:
    """The newest entries of the broker's database. Safe to share between threads. What reads may raise RedisError."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._lock = threading.Lock()
        self._entries: list[AuditEntry] = []
        self._are_all = False
        self._older: dict[tuple[AuditFilter, int], _Older] = {}
        self._tried_at = float("-inf")
        self._failure: RedisError | None = None

    def find(self, wanted: AuditFilter, limit: int) -> AuditPage:
        """The entries in memory that match, newest first; the page's cursor leads to older ones."""
        return self._select(*self._current(), wanted, limit)

    def find_further(self, wanted: AuditFilter, limit: int, scan_limit: int) -> AuditPage:
        """The same; if too few of them match, with older ones from Redis, of which `scan_limit` are searched."""
        entries, are_all = self._current()
        found = self._select(entries, are_all, wanted, limit)
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
    def _select(entries: list[AuditEntry], are_all: bool, wanted: AuditFilter, limit: int) -> AuditPage:
        found: list[AuditEntry] = []
        first_ms = int((wanted.since or 0.0) * 1000)
        last_ms = math.inf if wanted.until is None else int(wanted.until * 1000)
        for entry in reversed(entries):
            written_ms = int(entry.id.partition("-")[0])
            if written_ms < first_ms:
                return AuditPage(found, None)
            if written_ms <= last_ms and wanted.matches(entry):
                found.append(entry)
            if len(found) == limit:
                return AuditPage(found, entry.cursor)
        return AuditPage(found, None if are_all else entries[0].cursor)

    def _current(self) -> tuple[list[AuditEntry], bool]:
        """The entries, updated. Threads that waited for the lock share the result of the update, or its error."""
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
        """Add new entries. False if the old ones are gone from Redis or too many are new."""
        last = self._entries[-1]
        # Its whole millisecond again: the other stream may have got a new entry in it.
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
    """The middle of the millisecond in which Redis took it, so that rounding cannot change it."""
    return (int(entry.id.partition("-")[0]) + 0.5) / 1000
