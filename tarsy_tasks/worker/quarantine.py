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
        self._suspects = 0
        self._is_taken = False

    async def enter(self, timeout_s: float, *, alone: bool) -> None:
        """Wait for a turn.

        Raises:
            TimeoutError: It did not come in time.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: not self._is_taken and not (alone and self._suspects))
            self._suspects += 1
            self._is_taken = alone

    async def leave(self) -> None:
        """Make room for the next."""
        async with self._changed:
            self._suspects -= 1
            self._is_taken = False
            self._changed.notify_all()
