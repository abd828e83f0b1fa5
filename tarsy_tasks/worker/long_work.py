"""Work on large values, in threads of its own: the event loop runs all calls of a worker, and must not be blocked.

Owns the threads, as many as there are cores, and that one server cannot take all of them, nor keep them busy with what
nobody asked for.
"""

import asyncio
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tarsy_tasks.worker.masking_process import allow_in_thread, masking_process, take_cost_s
from tarsy_tasks.worker.time_budget import Suspension

__all__ = ["ASKED_S", "LARGE_CHARS", "LARGE_VALUES", "LongWork", "cancel_long_work", "charged_in_full", "is_large"]

T = TypeVar("T")
LARGE_CHARS = 2048
LARGE_VALUES = 200
"""Work on larger values is long."""
ASKED_S = 2.0
"""What the answer to a call may cost: to mask a megabyte takes a quarter of that, unless it was made to be slow."""
_SHARE = 0.25
"""Of one core, once the budget is spent."""
_BUDGET_S = 20.0
_MOST_DEBT_S = 5.0
_LONGEST_PAUSE_S = 5.0
_CORES = os.cpu_count() or 1
_in_full: ContextVar[bool] = ContextVar("charged_in_full", default=False)
_threads = ThreadPoolExecutor(_CORES, thread_name_prefix="long-work", initializer=allow_in_thread)


class LongWork:
    """The long work of one server. On more than one core it leaves a thread to the others; the rest waits its turn.

    A server that costs more CPU time than its budget, beside what calls ask for, has to wait before it is asked for
    more, and at last it is suspended.

    Args:
        suspension: Begins when waiting has not helped.
        share: Of one core, once the budget is spent.
        capacity_s: The budget, in seconds of CPU time.
        most_debt_s: More than that is forgiven.
    """

    def __init__(
        self,
        suspension: Suspension | None = None,
        *,
        share: float = _SHARE,
        capacity_s: float = _BUDGET_S,
        most_debt_s: float = _MOST_DEBT_S,
    ) -> None:
        self._turns = asyncio.Semaphore(max(1, _CORES - 1))
        self._suspension = suspension or Suspension()
        self._budget = self._suspension.new_budget(share=share, capacity_s=capacity_s, most_debt_s=most_debt_s)

    async def run(self, function: Callable[..., T], *args: Any, allowed_s: float = 0.0) -> T:
        """Run a function in a thread. A waiter that is cancelled leaves, but the turn lasts until the work is done.

        It does not wait for the budget: there may be a time limit for the work.

        Args:
            allowed_s: CPU time that does not count, because somebody else has asked for it.
        """
        self._debt_s()
        await self._turns.acquire()
        try:
            allowed_s = 0.0 if _in_full.get() else allowed_s
            work = asyncio.get_running_loop().run_in_executor(_threads, self._measure, function, args, allowed_s)
        except BaseException:
            self._turns.release()
            raise
        work.add_done_callback(lambda _: self._turns.release())
        return await asyncio.shield(work)

    async def pause(self) -> None:
        """Wait until the server may cost more, usually not at all, at most 5 s."""
        if pause_s := self._debt_s():
            await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))

    def _debt_s(self) -> float:
        """How long the server has to wait until it may cost more."""
        if self._budget.left_s >= 0 or not (pause_s := self._budget.pause_s()):
            return 0.0
        self._suspension.note_excess(
            self._budget, f"its messages took more than {_SHARE:.0%} of a core to read, check and mask"
        )
        return pause_s

    def _measure(self, function: Callable[..., T], args: tuple[Any, ...], allowed_s: float) -> T:
        began = time.thread_time()
        try:
            return function(*args)
        finally:
            # Two threads may do so at once, and one of the two costs may be lost; the next one is not.
            self._budget.charge(max(0.0, time.thread_time() - began + take_cost_s() - allowed_s))


@contextmanager
def charged_in_full() -> Generator[None]:
    """Nothing is allowed for the work of the current task, which the server itself has caused."""
    token = _in_full.set(True)
    try:
        yield
    finally:
        _in_full.reset(token)


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
    masking_process.end()
