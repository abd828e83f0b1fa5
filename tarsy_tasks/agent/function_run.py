"""Functions of the agent's own, which may block, hang, raise anything, or be coroutine functions.

Owns where one runs: in a thread of its own, and what it returns to be awaited, on an event loop. So whatever it does,
the background loop goes on, and other functions have their threads.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Generic, TypeVar

from tarsy_tasks.agent.background import find_function_loop, wait_for

__all__ = ["FunctionRuns", "TooManyHanging"]

T = TypeVar("T")

_MOST_AT_ONCE = 16
_MOST_HANGING = 16


class TooManyHanging(Exception):
    """So many functions have not returned in time, and still run, that no more are called: threads would pile up."""

    def __init__(self) -> None:
        super().__init__(f"{_MOST_HANGING} earlier calls have not returned yet")


class FunctionRuns:
    """The function runs of one executor; some at once, the others wait."""

    def __init__(self) -> None:
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._hanging: list[_FunctionRun[Any]] = []

    async def run(
        self,
        function: "Callable[[Callable[[Any], Any]], T]",
        loop: asyncio.AbstractEventLoop | None,
        context: Context,
    ) -> "Future[T]":
        """Run a function, and wait for it on the background loop. When the waiting is cancelled, so is what it awaits.

        Args:
            function: It gets `finish`, which waits for what can be awaited, and gives everything else back.
            loop: Where that is awaited; None, or one that was closed: a loop of this process for such functions.
            context: The context variables that the function sees.

        Returns:
            Done with what it returned or raised. That is an `Exception` in any case.

        Raises:
            TooManyHanging: It was not called.
            RuntimeError: There can be no more threads.
        """
        async with self._find_slots():
            self._hanging = [run for run in self._hanging if not run.done.done()]
            if len(self._hanging) >= _MOST_HANGING:
                raise TooManyHanging
            run = _FunctionRun(function, loop, context)
            run.start()
            try:
                await wait_for(run.done)
            finally:
                if not run.done.done():
                    run.cancel()
                    self._hanging.append(run)
            return run.done

    def _find_slots(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:  # a forked child has another loop
            self._slots = (loop, asyncio.Semaphore(_MOST_AT_ONCE))
        return self._slots[1]


class _FunctionRun(Generic[T]):
    """One run; arguments and `done` are those of `FunctionRuns.run`."""

    def __init__(
        self,
        function: "Callable[[Callable[[Any], Any]], T]",
        loop: asyncio.AbstractEventLoop | None,
        context: Context,
    ) -> None:
        self.done: Future[T] = Future()
        self._function = function
        self._loop = loop
        self._context = context
        self._awaited: Future[Any] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        """Begin. Raises `RuntimeError` if there can be no more threads."""
        work = threading.Thread(target=self._context.run, args=(self._run,), name="tarsy-agent-function", daemon=True)
        work.start()

    def cancel(self) -> None:
        """Cancel what is awaited. A function that blocks its thread goes on until it returns."""
        self._is_cancelled = True
        if (awaited := self._awaited) is not None:
            awaited.cancel()

    def _run(self) -> None:
        try:
            result = self._function(self._finish)
        except Exception as error:
            self.done.set_exception(error)
        except BaseException as error:  # SystemExit: it would end the thread that reads `done`
            self.done.set_exception(RuntimeError(f"it raised {type(error).__name__}"))
        else:
            self.done.set_result(result)

    def _finish(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        loop = find_function_loop() if self._loop is None or self._loop.is_closed() else self._loop
        waiting = _await(value)
        try:
            self._awaited = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError:  # the loop was closed just now
            waiting.close()
            raise
        if self._is_cancelled:
            self._awaited.cancel()
        return self._awaited.result()


async def _await(value: Awaitable[T]) -> T:
    try:
        return await value
    except (SystemExit, KeyboardInterrupt) as error:  # it would end the loop
        raise RuntimeError(f"it raised {type(error).__name__}") from error
