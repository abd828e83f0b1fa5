"""Work on large values, in threads of its own: the event loop runs all calls of a worker, and must not be blocked.

Owns the threads, as many as there are cores, and that one server cannot take all of them.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

__all__ = ["LARGE_CHARS", "LARGE_VALUES", "LongWork", "cancel_long_work", "is_large"]

T = TypeVar("T")
LARGE_CHARS = 2048
LARGE_VALUES = 200
"""Work on larger values is long."""
_CORES = os.cpu_count() or 1
_threads = ThreadPoolExecutor(_CORES, thread_name_prefix="long-work")


class LongWork:
    """The long work of one server. On more than one core it leaves a thread to the others; the rest waits its turn."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(max(1, _CORES - 1))

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread. A waiter that is cancelled leaves, but the turn lasts until the work is done."""
        await self._turns.acquire()
        try:
            work = asyncio.get_running_loop().run_in_executor(_threads, partial(function, *args))
        except BaseException:
            self._turns.release()
            raise
        work.add_done_callback(lambda _: self._turns.release())
        return await asyncio.shield(work)


def is_large(value: Any) -> bool:
    """Whether work on a value may take long: a text of more than 2 kB, or more than 200 values."""
    left: list[Any] = [value]
    chars = 0
    for count, each in enumerate(left):
        if isinstance(each, str):
            chars += len(each)
        elif isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list):
            left += each
        if chars > LARGE_CHARS or count > LARGE_VALUES or len(left) > 4 * LARGE_VALUES:
            return True
    return False


def cancel_long_work() -> None:
    """Start none of the work that still waits, because the worker ends."""
    _threads.shutdown(wait=False, cancel_futures=True)
