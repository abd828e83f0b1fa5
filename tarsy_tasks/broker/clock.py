"""The clock that agents and workers share: that of Redis.

Owns the estimate of Redis TIME on this machine. A deadline is used on several machines, whose clocks may be minutes
apart; a monotonic clock with a measured offset is right to within one round trip.
"""

import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

__all__ = ["RedisClock"]

_RESYNC_S = 60.0


class RedisClock:
    """Redis TIME as of the last `sync`, carried on by this machine's monotonic clock. Safe to share between threads."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._synced_at = float("-inf")
        self._asking = threading.Lock()

    @property
    def is_fresh(self) -> bool:
        """Whether `sync` has nothing to do."""
        return time.monotonic() - self._synced_at < _RESYNC_S

    def sync(self, redis: Any) -> None:
        """Ask Redis for its time, at most once a minute. A clock that was set once goes on without Redis; before that,
        it raises `RedisError` when Redis cannot be reached."""
        if self.is_fresh:
            return
        if self._synced_at == float("-inf"):
            self._ask(redis)
        elif self._asking.acquire(blocking=False):  # one thread asks for all
            try:
                with suppress(RedisError, OSError):
                    self._ask(redis)
            finally:
                self._asking.release()

    def _ask(self, redis: Any) -> None:
        before = time.monotonic()
        self._set(before, redis.time())

    async def sync_async(self, execute: Callable[..., Awaitable[list[Any]]]) -> None:
        """Ask Redis for its time, through the `execute` of an `AsyncRedisExchange`, and raise what that raises."""
        before = time.monotonic()
        seconds, microseconds = (await execute(("TIME",)))[0]
        self._set(before, (int(seconds), int(microseconds)))

    def _set(self, before: float, reply: tuple[int, int]) -> None:
        seconds, microseconds = reply
        after = time.monotonic()
        self._offset = seconds + microseconds / 1e6 - (before + after) / 2
        self._synced_at = after

    def now(self) -> float:
        """Seconds since the epoch, by Redis. Raises `RuntimeError` if it was never synced."""
        return self.at(time.monotonic())

    def at(self, monotonic_s: float) -> float:
        """The same for a time of this machine's monotonic clock. Raises as `now`."""
        if self._synced_at == float("-inf"):
            raise RuntimeError("this clock was never set: call sync first")
        return monotonic_s + self._offset
