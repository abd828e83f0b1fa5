"""Waiting for answers, written once for both executors.

The dispatcher waits in coroutines, through the function that its executor gives it. `wait_in_thread` blocks in place of
awaiting, so `run` can execute such a coroutine without an event loop; `wait_in_loop` awaits.
"""

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

__all__ = ["Wait", "run", "seconds_until", "wait_in_loop", "wait_in_thread"]

T = TypeVar("T")


class Wait(Protocol):
    """Waits for a future until a monotonic time. Raises `TimeoutError`, or what the future raises."""

    def __call__(self, future: "Future[T]", deadline: float, /) -> Awaitable[T]: ...


def seconds_until(deadline: float) -> float:
    """Seconds until a monotonic time; 0 when it has passed."""
    left_s = deadline - time.monotonic()
    return left_s if left_s > 0 else 0.0


async def wait_in_thread(future: "Future[T]", deadline: float) -> T:
    return future.result(seconds_until(deadline))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only waits in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the coroutine awaits an event loop")


async def wait_in_loop(future: "Future[T]", deadline: float) -> T:
    """The future is shared between waits, so neither a timeout nor a cancelled task cancels it."""
    if future.done():
        return future.result()
    wrapped = asyncio.wrap_future(future)
    # When this wait ends early, nobody else looks at an exception, and asyncio would log that.
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
    async with asyncio.timeout(seconds_until(deadline)):
        return await asyncio.shield(wrapped)
