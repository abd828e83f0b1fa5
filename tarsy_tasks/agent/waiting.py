"""Waiting for several answers, written once for both executors.

The dispatcher waits in generators, which yield each `Wait` and get its answer, or `TimeoutError`. `block` runs such a
generator in a thread that blocks, `wait_async` in a coroutine.
"""

import asyncio
import time
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

__all__ = ["Wait", "Waits", "block", "seconds_until", "wait_async", "wait_for", "wrap"]

T = TypeVar("T")


class Wait(NamedTuple):
    """For the answer of a future, at most until a monotonic time."""

    future: "Future[Any]"
    deadline: float


Waits = Generator[Wait, Any, T]


def wait_for(future: "Future[T]", deadline: float) -> Waits[T]:
    """One wait. Raises `TimeoutError`, or what the future raises."""
    return (yield Wait(future, deadline))


def seconds_until(deadline: float) -> float:
    """Seconds until a monotonic time; 0 when it has passed."""
    left_s = deadline - time.monotonic()
    return left_s if left_s > 0 else 0.0


def block(waits: Waits[T]) -> T:
    """Run the waits in this thread."""
    try:
        wait = next(waits)
        while True:
            try:
                answer = wait.future.result(seconds_until(wait.deadline))
            except BaseException as error:
                wait = waits.throw(error)
            else:
                wait = waits.send(answer)
    except StopIteration as end:
        return end.value


async def wait_async(waits: Waits[T]) -> T:
    """Run the waits in this coroutine."""
    try:
        wait = next(waits)
        while True:
            try:
                answer = await wrap(wait.future, wait.deadline)
            except BaseException as error:
                wait = waits.throw(error)
            else:
                wait = waits.send(answer)
    except StopIteration as end:
        return end.value


async def wrap(future: "Future[T]", deadline: float) -> T:
    """Await a future of another thread. It is shared, so neither a timeout nor a cancelled task cancels it."""
    if future.done():
        return future.result()
    wrapped = asyncio.wrap_future(future)
    # When this wait ends early, nobody else looks at an exception, and asyncio would log that.
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
    async with asyncio.timeout(seconds_until(deadline)):
        return await asyncio.shield(wrapped)
