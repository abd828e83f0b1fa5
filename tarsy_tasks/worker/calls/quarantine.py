"""Which calls may run side by side in one worker, so that the loss of a worker is blamed on the call that caused it.

Owns the quarantine of calls whose workers were lost. A call that was lost with its worker once runs beside others; one
that was lost twice runs alone, and all others wait for it, for a limited time. A call becomes a dead letter if its
worker is lost while it runs alone, or after very many deliveries.
"""

import asyncio
import threading
from contextlib import suppress

__all__ = ["Quarantine"]

_HOLD_S = 10.0
"""How long others wait for a quarantined call. A call that kills its worker mostly does so sooner."""
_DRAIN_S = 5.0
"""How long a quarantined call waits for those that are running already."""


class Quarantine:
    """Admits calls: all that were not lost before, those that were lost once, or one that was lost twice, alone.

    Args:
        hold_s: How long others wait for a quarantined call.
        drain_s: How long a quarantined call waits for others that are running.

    `admit_lost`, `admit_after_quarantined` and `remove` are for the session loop; the rest is for any thread.
    """

    def __init__(self, hold_s: float = _HOLD_S, drain_s: float = _DRAIN_S) -> None:
        self._hold_s, self._drain_s = hold_s, drain_s
        self._lock = threading.Lock()
        self._others: set[object] = set()
        self._quarantined: object | None = None
        self._waiting = 0
        self._changed = asyncio.Condition()
        self._lost_before: set[object] = set()
        self._alone: object | None = None

    def admit_new(self, call: object) -> bool:
        """Admit a call that was not lost before. False if one is quarantined: then `admit_after_quarantined` waits."""
        with self._lock:
            if self._quarantined is not None:
                return False
            self._others.add(call)
            return True

    async def admit_after_quarantined(self, call: object, timeout_s: float) -> object | None:
        """Admit such a call as soon as no call is quarantined.

        Returns:
            A quarantined call that is still running, because this took too long: it no longer runs alone.

        Raises:
            TimeoutError: It was not admitted.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            found = self._quarantined
            self._waiting += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._hold_s):
                        await self._changed.wait_for(lambda: found is None or self._quarantined is not found)
            finally:
                self._waiting -= 1
                self._changed.notify_all()
            with self._lock:
                if self._quarantined is found:
                    self._quarantined = None
                self._others.add(call)
            return found if found in self._lost_before else None

    def remove_new(self, call: object) -> bool:
        """Such a call has ended. False if another call waits for that, and `remove` has to be called."""
        with self._lock:
            if self._quarantined is not None:
                return False
            self._others.discard(call)
            return True

    async def admit_lost(self, call: object, timeout_s: float, *, alone: bool) -> bool:
        """Admit a call whose worker was lost. Calls that waited for the previous quarantined one come first.

        Returns:
            Whether it runs alone.

        Raises:
            TimeoutError: Its turn did not come in time.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(
                lambda: self._alone is None and not (alone and (self._lost_before or self._waiting))
            )
            self._lost_before.add(call)
            self._alone = call if alone else None
            return alone and await self._admit_alone(call)

    async def remove(self, call: object) -> None:
        """A call has ended; nothing if it was never admitted, which a call that was cancelled cannot know."""
        async with self._changed:
            self._lost_before.discard(call)
            if self._alone is call:
                self._alone = None
            with self._lock:
                self._others.discard(call)
            self._release(call)
            self._changed.notify_all()

    async def _admit_alone(self, call: object) -> bool:
        """Wait until all others have left, and keep new ones out."""
        with self._lock:
            self._quarantined = call
        try:
            async with asyncio.timeout(self._drain_s):
                await self._changed.wait_for(lambda: not self._others)
        except TimeoutError:
            self._release(call)
            self._changed.notify_all()
            return False
        return self._quarantined is call

    def _release(self, call: object) -> None:
        with self._lock:
            if self._quarantined is call:
                self._quarantined = None
