"""Calling the `on_progress` of agents' code.

Owns where it runs: for synchronous agents in one thread of the process, which all of them share; for asyncio agents as
a task of their event loop. A function that raises is not called again, and one that blocks delays no answer for longer
than a second.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait

from tarsy_tasks.agent.callback_thread import call_in_thread
from tarsy_tasks.agent.event_stream import EventBuffer
from tarsy_tasks.call_events import CallProgress

__all__ = ["AsyncProgressCalls", "OnProgress", "ProgressCalls"]

logger = logging.getLogger(__name__)

OnProgress = Callable[[CallProgress], "Awaitable[object] | object"]
"""In an asyncio agent it may be a coroutine function."""
_LONG_S = 3600.0
"""The call ends before, or is waited for again."""
_LAST_S = 1.0
"""How long a result waits for the last call of `on_progress`."""
_FAILED = "`on_progress` failed; it is not called again for this call"


class ProgressCalls:
    """The calls of one function, for one call of a tool.

    Attributes:
        buffer: Where its progress is put.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self.buffer = EventBuffer(lambda: call_in_thread(self._call))
        self._on_progress = on_progress
        self._done: Future[None] = Future()
        self._is_closed = False

    def _call(self) -> None:
        events, further = self.buffer.take()
        for event in events:
            if isinstance(event, CallProgress) and not self._is_closed:
                try:
                    self._on_progress(event)
                except Exception:
                    logger.exception(_FAILED)
                    self._is_closed = True
        if further is None and not self._done.done():
            self._done.set_result(None)

    def finish(self) -> None:
        """The call has ended: no call of the function begins after this has returned."""
        wait([self._done], _LAST_S)
        self._is_closed = True


class AsyncProgressCalls:
    """The same as a task of the running event loop.

    Attributes:
        buffer: Where its progress is put.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self.buffer = EventBuffer()
        self._task = asyncio.get_running_loop().create_task(self._run(on_progress))

    async def _run(self, on_progress: OnProgress) -> None:
        try:
            async for event in self.buffer.iterate_async(lambda: _LONG_S):
                if isinstance(event, CallProgress):
                    found = on_progress(event)
                    if inspect.isawaitable(found):
                        await found
        except Exception:
            logger.exception(_FAILED)

    async def finish(self) -> None:
        """As `ProgressCalls.finish`."""
        await asyncio.wait({self._task}, timeout=_LAST_S)
        self._task.cancel()
