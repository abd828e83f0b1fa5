"""Functions that may block, each in a thread of its own, so that an event loop goes on whatever they do.

Owns the bound: threads that nobody waits for any more count until their functions return.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

__all__ = ["BoundedThreads", "ThreadsHang"]

T = TypeVar("T")

_MOST = 64


class ThreadsHang(Exception):
    """All threads run functions that nobody waits for any more; nothing was called."""


class BoundedThreads:
    """Threads of one event loop; at most `most` at a time, further functions wait."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._hanging = 0

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread. When the waiting is cancelled, the function goes on until it returns.

        Raises:
            ThreadsHang: It was not called.
        """
        if self._hanging >= self._most:
            raise ThreadsHang
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        work = partial(_run, partial(copy_context().run, function), loop, done, self._end)
        try:
            threading.Thread(target=work, name="native-tool", daemon=True).start()
        except RuntimeError:  # there can be no more threads
            self._free.release()
            raise
        try:
            return await done
        finally:
            if done.cancelled():
                self._hanging += 1

    def _end(self, done: "asyncio.Future[Any]", deliver: Callable[[], None]) -> None:
        """On the loop: a function has returned."""
        self._free.release()
        if done.cancelled():
            self._hanging -= 1
        else:
            deliver()


def _run(
    function: Callable[[], T],
    loop: asyncio.AbstractEventLoop,
    done: "asyncio.Future[T]",
    end: "Callable[[asyncio.Future[Any], Callable[[], None]], None]",
) -> None:
    """In the thread."""
    try:
        deliver = partial(done.set_result, function())
    except StopIteration as error:  # a future does not take it
        deliver = partial(done.set_exception, RuntimeError(f"it raised {error!r}"))
    except Exception as error:
        deliver = partial(done.set_exception, error)
    except BaseException as error:  # SystemExit: it would end the event loop
        deliver = partial(done.set_exception, RuntimeError(f"it raised {type(error).__name__}"))
    with suppress(RuntimeError):  # the loop was closed
        loop.call_soon_threadsafe(end, done, deliver)
