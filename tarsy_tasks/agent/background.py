"""The event loop of an agent's process: in a thread of its own, for all executors.

Owns the thread, from its first use until the process ends, and how other threads reach an event loop. All calls run
here, no matter who waits for them: so a loop of the agent's own may be blocked or closed, and another one may wait for
what it began.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from tarsy_tasks.event_loop import EventLoop

__all__ = [
    "call_in_background",
    "find_function_loop",
    "follow",
    "run_in_background",
    "start_in_background",
    "wait_for",
]

T = TypeVar("T")


class _Inbox:
    """Functions that other threads have an event loop call. Those of one moment wake it once, which costs more than
    most of them. They must not raise."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # which has it, so it must not keep the loop
        self._functions: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, function: Callable[[], object]) -> None:
        """A loop that was closed calls nothing."""
        self._functions.append(function)
        loop = self._loop()
        if not self._is_woken and loop is not None:
            self._is_woken = True
            try:
                loop.call_soon_threadsafe(self._call_all)
            except RuntimeError:  # it was closed, and nobody waits any more
                self._is_woken = False
                self._functions.clear()

    def _call_all(self) -> None:
        self._is_woken = False  # first, so that nothing is left that comes meanwhile
        while self._functions:
            self._functions.popleft()()


class _Background:
    """A loop of this process, and what belongs to it.

    Args:
        name: Of its thread.

    Attributes:
        tasks: Those that nobody may wait for; the loop itself keeps none.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inherited: list[object] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: _Inbox | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has none of its parent's threads. The loop is kept, for to close it or its connections here
        would take them from the parent's selector."""
        self._lock = threading.Lock()
        self._inherited += [self._loop, self.tasks]
        self._loop, self._inbox, self.tasks = None, None, set()

    def find_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = EventLoop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
            return self._loop

    def find_inbox(self) -> _Inbox:
        if self._inbox is None:
            self._inbox = _inbox_of(self.find_loop())
        return self._inbox


_background = _Background("tarsy-agent")
_functions = _Background("tarsy-agent-functions")
"""Coroutine functions of synchronous agents, which may block it."""
_inboxes: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox]" = WeakKeyDictionary()


def _inbox_of(loop: asyncio.AbstractEventLoop) -> _Inbox:
    inbox = _inboxes.get(loop)
    return _inboxes.setdefault(loop, _Inbox(loop)) if inbox is None else inbox


def call_in_background(function: Callable[[], object]) -> None:
    """Have the background loop call a function, which must not raise."""
    _background.find_inbox().put(function)


def find_function_loop() -> asyncio.AbstractEventLoop:
    """The loop for coroutine functions of agents that have none of their own."""
    return _functions.find_loop()


def run_in_background(coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
    """Run a coroutine on the background loop. Cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(coroutine, _background.find_loop())


def start_in_background(coroutine: Coroutine[Any, Any, T], context: Context | None = None) -> "asyncio.Task[T]":
    """Start what nobody may wait for; only on the background loop."""
    task = asyncio.get_running_loop().create_task(coroutine, context=context)
    _background.tasks.add(task)
    task.add_done_callback(_background.tasks.discard)
    return task


def follow(future: "Future[Any]") -> "asyncio.Future[None]":
    """A future of the running event loop that is done when one of any thread is. It has no effect on that one, which
    keeps it until then."""
    inbox = _inbox_of(loop := asyncio.get_running_loop())
    done = loop.create_future()

    def end() -> None:
        if not done.done():
            done.set_result(None)

    future.add_done_callback(lambda _: inbox.put(end))
    return done


async def wait_for(future: "Future[Any]") -> None:
    """Wait on any event loop until a future is done. It has no effect on the future, and may be cancelled."""
    await follow(future)
