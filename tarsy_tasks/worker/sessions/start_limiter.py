"""How many stdio servers start at once.

Processes that all start at once each take as long as all of them together, some too long. Owns the places, which the
connections of one worker share; who has to wait for one, `connection` says.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

__all__ = ["StartLimiter"]

_PLACE_S = 5.0
"""A process that takes longer to start waits for something else than the processor, and gives way to the next one."""


class StartLimiter:
    """As many as there are cores, and one for a server that just waits for something else. For one event loop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(1 + (os.cpu_count() or 1))

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Wait for a place, and hold it for as long as the start takes, but no longer than is good for the others."""
        await self._free.acquire()
        with ExitStack() as held:
            held.callback(self._free.release)
            asyncio.get_running_loop().call_later(_PLACE_S, held.close)
            yield
