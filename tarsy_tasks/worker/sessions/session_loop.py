"""The event loop that all MCP sessions of a worker process run on, in a thread of its own.

Calls run on it, too: pool threads hand it coroutines and wait for them; plain calls need no thread. It is plain asyncio
rather than anyio's `BlockingPortal`: the portal makes the calling thread wait until the loop has started the task, two
more thread switches per call.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tarsy_tasks.event_loop import EventLoop
from tarsy_tasks.worker.sessions.loop_watch import LoopWatch

__all__ = ["SessionLoop"]

T = TypeVar("T")
_CLEANUP_S = 5.0
_SWITCH_S = 0.0005
"""How long the loop waits for a thread that computes, each time that it has something to do; Python's own is 5 ms."""


class SessionLoop:
    """An asyncio loop that runs from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop = EventLoop()
        self._thread = threading.Thread(target=self._run, name="mcp-sessions", daemon=True)
        self._watch = LoopWatch(self._loop)

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        assert self._thread.ident is not None
        self._watch.start(self._thread.ident)

    @property
    def is_closed(self) -> bool:
        """It has ended, and takes nothing more."""
        return self._loop.is_closed()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop. Cancelling the future frees its waiter at once and cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def run_blocking(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run a function that blocks in a thread, from a coroutine on the loop."""
        return await self._loop.run_in_executor(None, function, *args)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back on the loop thread, from any thread."""
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(callback)
        else:
            self._loop.call_soon_threadsafe(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Future[None]:
        """Call back on the loop thread after a delay; cancel the future to prevent it."""

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            callback()

        return self.submit(wait())

    def stop(self) -> None:
        """End the loop and its thread; running tasks are cancelled and get 5 s to clean up."""
        self._watch.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            if pending:
                self._loop.run_until_complete(asyncio.wait(pending, timeout=_CLEANUP_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
