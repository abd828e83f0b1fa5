"""The event loop on which a process makes its calls: asyncio's own, with less work in each iteration.

Owns what is different: three methods that asyncio asks for again and again are functions of C; while callbacks wait to
be run, the loop looks for input before every second iteration only; and other threads can see whether it is idle. Owns
also the beat to which all that a loop does periodically keeps: so that one wake-up serves all of it.
"""

import asyncio
import selectors
import time
from functools import partial
from typing import Any

__all__ = ["EventLoop", "next_beat"]


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop. Its debug mode can be switched on only by the environment, before it is made."""

    def __init__(self) -> None:
        self._input = _Selector()
        super().__init__(self._input)
        own: Any = self
        own.time = time.monotonic
        own.create_future = partial(asyncio.Future, loop=self)
        if not self.get_debug():
            own.get_debug = bool  # which returns False

    @property
    def is_idle(self) -> bool:
        """Whether it waits for input or for a timer, and runs no callback. From any thread."""
        return self._input.is_waiting


async def next_beat(period_s: float) -> None:
    """Sleep until the next multiple of a period, on a clock that is the same for all of a process."""
    await asyncio.sleep(period_s - time.monotonic() % period_s)


class _Selector(selectors.DefaultSelector):
    """asyncio looks for input, without a wait, before each iteration of callbacks that already wait. Most of these
    follow from input that has just been read, and the next input takes longer than they do."""

    is_waiting = False
    _is_next_left_out = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._is_next_left_out = timeout == 0 and not self._is_next_left_out
        if self._is_next_left_out:
            return []
        self.is_waiting = timeout != 0
        found = super().select(timeout)
        self.is_waiting = False
        return found
