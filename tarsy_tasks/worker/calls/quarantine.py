"""Where calls run whose workers died before: so that a death is blamed on the call that caused it.

Owns who may run beside whom in one worker process. A call that was lost with its worker once runs beside others; one
that was lost twice runs alone, and all others wait for it, but not for long. Only a suspect that is alone can be
blamed.
"""

import asyncio
import threading
from contextlib import suppress

__all__ = ["Quarantine"]

_HOLD_S = 10.0
"""So long others wait for a suspect that runs. What kills its worker mostly does that sooner."""
_DRAIN_S = 5.0
"""So long a suspect waits for those that run already."""


class Quarantine:
    """Lets suspects in together, or one alone.

    Args:
        hold_s: How long others wait for a suspect that runs.
        drain_s: How long a suspect waits for others that run.

    `enter`, `wait` and `leave` live on the session loop; the rest is for any thread.
    """

    def __init__(self, hold_s: float = _HOLD_S, drain_s: float = _DRAIN_S) -> None:
        self._hold_s, self._drain_s = hold_s, drain_s
        self._lock = threading.Lock()
        self._others: set[object] = set()
        self._held_for: object | None = None
        self._waiting = 0
        self._changed = asyncio.Condition()
        self._suspects: set[object] = set()
        self._alone: object | None = None

    def join(self, who: object) -> bool:
        """One comes in that is no suspect; False if it has to `wait` for that."""
        with self._lock:
            if self._held_for is not None:
                return False
            self._others.add(who)
            return True

    async def wait(self, who: object, timeout_s: float) -> object | None:
        """Come in as soon as nobody has to be alone.

        Returns:
            A suspect that runs all the same, for this took too long: it is alone no more.

        Raises:
            TimeoutError: It did not come in.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            suspect = self._held_for
            self._waiting += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._hold_s):
                        await self._changed.wait_for(lambda: suspect is None or self._held_for is not suspect)
            finally:
                self._waiting -= 1
                self._changed.notify_all()
            with self._lock:
                if self._held_for is suspect:
                    self._held_for = None
                self._others.add(who)
            return suspect if suspect in self._suspects else None

    def part(self, who: object) -> bool:
        """One that came in is done. False if somebody waits for that, and `leave` has to be called."""
        with self._lock:
            if self._held_for is not None:
                return False
            self._others.discard(who)
            return True

    async def enter(self, who: object, timeout_s: float, *, alone: bool) -> bool:
        """Wait for a suspect's turn. Those that waited for the one before come first.

        Returns:
            Whether it is alone.

        Raises:
            TimeoutError: Its turn did not come in time.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(
                lambda: self._alone is None and not (alone and (self._suspects or self._waiting))
            )
            self._suspects.add(who)
            self._alone = who if alone else None
            return alone and await self._held(who)

    async def leave(self, who: object) -> None:
        """Make room for the next; nothing if it never got its turn, which whoever was cancelled cannot know."""
        async with self._changed:
            self._suspects.discard(who)
            if self._alone is who:
                self._alone = None
            with self._lock:
                self._others.discard(who)
            self._release(who)
            self._changed.notify_all()

    async def _held(self, who: object) -> bool:
        """Keep others out, once those that are in have left."""
        with self._lock:
            self._held_for = who
        try:
            async with asyncio.timeout(self._drain_s):
                await self._changed.wait_for(lambda: not self._others)
        except TimeoutError:
            self._release(who)
            self._changed.notify_all()
            return False
        return self._held_for is who

    def _release(self, who: object) -> None:
        with self._lock:
            if self._held_for is who:
                self._held_for = None
