"""A limit on how many stdio servers start at once.

Processes that all start together each take as long as all of them, and some then exceed their time limit. The
connections of one worker share one limiter; `connection` decides which starts it applies to.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

__all__ = ["StartLimiter"]

_HOLD_S = 5.0
"""A process that takes longer to start is not waiting for the processor, and need not hold up the next one."""


class StartLimiter:
    """As many slots as there are cores, and one more for a start that only waits. For one event loop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(1 + (os.cpu_count() or 1))

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Wait for a slot. It is released when the start is over, at the latest after 5 s."""
        await self._free.acquire()
        with ExitStack() as slot:
            slot.callback(self._free.release)
            asyncio.get_running_loop().call_later(_HOLD_S, slot.close)
            yield
