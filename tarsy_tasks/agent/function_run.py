"""One run of a function of the agent's own: it may block, hang, raise anything, or be a coroutine function.

Owns where it runs: in a thread of its own, and what it returns to be awaited, on an event loop. So whatever it does,
the background loop goes on, and other functions have their threads.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Generic, TypeVar, cast

from tarsy_tasks.agent.background import find_function_loop

__all__ = ["FunctionRun"]

T = TypeVar("T")


class FunctionRun(Generic[T]):
    """A run, from any thread.

    Args:
        function: It gets `finish`, which waits for what can be awaited, and gives everything else back.
        loop: Where that is awaited; None, or one that was closed: a loop of this process for such functions.
        context: The context variables that the function sees.

    Attributes:
        done: Done with what the function returned or raised. That is an `Exception` in any case.
    """

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
        waiting = _await(cast("Awaitable[Any]", value))
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
