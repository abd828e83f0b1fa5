"""The event loop on which a process makes its calls: asyncio's own, with less work in each iteration.

Owns what is different: three methods that asyncio asks for again and again are functions of C, and while callbacks wait
to be run, the loop looks for input before every second iteration only.
"""

import asyncio
import selectors
import time
from functools import partial
from typing import Any

__all__ = ["EventLoop"]


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop. Its debug mode can be switched on only by the environment, before it is made."""

    def __init__(self) -> None:
        super().__init__(_Selector())
        own: Any = self
        own.time = time.monotonic
        own.create_future = partial(asyncio.Future, loop=self)
        if not self.get_debug():
            own.get_debug = bool  # which returns False


class _Selector(selectors.DefaultSelector):
    """asyncio looks for input, without a wait, before each iteration of callbacks that already wait. Most of these
    follow from input that has just been read, and the next input takes longer than they do."""

    _is_next_left_out = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._is_next_left_out = timeout == 0 and not self._is_next_left_out
        return [] if self._is_next_left_out else super().select(timeout)
