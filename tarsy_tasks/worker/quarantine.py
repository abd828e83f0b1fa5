"""Where calls run whose workers died before: so that a death is blamed on the call that caused it.

Owns who may run beside whom in one worker process. A call that was lost with its worker once runs beside others; one
that was lost twice runs when no other suspect does. It lives on the session loop.
"""

import asyncio

__all__ = ["Quarantine"]


class Quarantine:
    """Lets suspects in together, or one alone."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._suspects: set[object] = set()
        self._alone: object | None = None

    async def enter(self, who: object, timeout_s: float, *, alone: bool) -> None:
        """Wait for a turn.

        Raises:
            TimeoutError: It did not come in time.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: self._alone is None and not (alone and self._suspects))
            self._suspects.add(who)
            self._alone = who if alone else None

    async def leave(self, who: object) -> None:
        """Make room for the next; nothing if it never got its turn, which whoever was cancelled cannot know."""
        async with self._changed:
            self._suspects.discard(who)
            if self._alone is who:
                self._alone = None
            self._changed.notify_all()
