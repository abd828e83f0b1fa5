"""One task in the pool: how its thread waits for the session loop, and how it is ended from outside.

Owns the bridge between a pool thread and the session loop, and the masking of what a task raises. Time limits, revoke
and shutdown become a cancel of what the task waits for; the pool makes the executions.
"""

import threading
import traceback
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import Any, TypeVar

from celery.exceptions import Ignore

from tarsy_tasks.broker.confinement import Confined
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.interceptors import Ending
from tarsy_tasks.worker.calls.execution import CallRunner, WorkerStopping
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.maskers import Masker

__all__ = ["TaskExecution", "current_execution", "masked_failure"]

T = TypeVar("T")
_thread = threading.local()


class TaskExecution:
    """One task in the pool; what Celery keeps of it in order to terminate it.

    Attributes:
        pid: Stands in for a process id. Celery terminates by pid, so each execution needs its own.
        context: What all calls of the worker share.
    """

    def __init__(self, pid: int, runner: CallRunner, delivery: Delivery | None) -> None:
        self.pid = pid
        self._delivery = delivery
        self._has_run = False
        self.context = runner.context
        self._runner = runner
        self._lock = threading.Lock()
        self._end: Callable[[Exception], object] | None = None
        self._ended_by: Exception | None = None
        self.done: Future[None] | None = None

    @property
    def queue(self) -> str:
        """Where its message came from; empty for a task that no message brought."""
        return self._delivery.queue if self._delivery is not None else ""

    def require_delivery(self, delivery: Delivery | None) -> None:
        """Check that the body of a task runs for the message of this execution, and for the first time.

        Celery can also run a task inside another one (`apply`, `is_eager`, errbacks). Such a body has no message, so
        nothing says which server its agent may call.

        Args:
            delivery: That of the request that the body sees.

        Raises:
            Confined: It does not.
        """
        if self._has_run or delivery is None or delivery is not self._delivery:
            raise Confined("where agents are bound, a task runs only for a message of its own")
        self._has_run = True

    @contextmanager
    def current(self) -> Generator[None]:
        """Makes this the execution of the calling thread."""
        _thread.execution = self
        try:
            yield
        finally:
            _thread.execution = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the session loop and wait for it, in the pool thread.

        Raises:
            Exception: What the coroutine raised, or what `end` was called with.
        """
        future = self.context.loop.submit(coroutine)
        self._watch(lambda _: future.cancel())
        try:
            return future.result()
        except CancelledError:
            raise self._ended_by or WorkerStopping from None

    def run_call(self, call: RunningCall) -> Ending:
        """Run a call on the session loop and wait for its ending, in the pool thread.

        Raises:
            Exception: What ended it, if that is not an ending.
        """
        future: Future[Ending] = Future()

        def report_ending(ending: Ending | BaseException) -> None:
            if isinstance(ending, BaseException):
                future.set_exception(ending)
            else:
                future.set_result(ending)

        execution = self._runner.build(call, report_ending)
        loop = self.context.loop
        loop.call_soon(execution.start)
        self._watch(lambda error: loop.call_soon(lambda: execution.end(error)))
        return future.result()

    def end(self, error: Exception) -> None:
        """End what the task waits for, and everything that it will ever wait for; `error` says why."""
        with self._lock:
            self._ended_by = self._ended_by or error
            if self._end is not None:
                self._end(self._ended_by)

    def stop(self) -> None:
        """End the task because the worker stops; its call is answered or given back, not lost."""
        self.end(WorkerStopping())

    def _watch(self, end: Callable[[Exception], object]) -> None:
        with self._lock:
            self._end = end
            if self._ended_by is not None:
                end(self._ended_by)

    # What Celery calls on the result of `apply_async`.

    def terminate(self, signal: Any = None) -> None:  # noqa: ARG002
        """End the task because it was revoked. Celery has stored that already, so the task must store nothing."""
        self.end(Ignore("revoked"))

    def get(self, timeout: float | None = None) -> None:
        assert self.done is not None
        self.done.result(timeout)

    def wait(self, timeout: float | None = None) -> None:
        assert self.done is not None
        wait_for([self.done], timeout)


def current_execution() -> TaskExecution:
    """The execution of the calling pool thread.

    Raises:
        RuntimeError: The caller does not run in a worker of this package.
    """
    execution = getattr(_thread, "execution", None)
    if execution is None:
        raise RuntimeError(
            "tarsy_tasks' tasks run only in a worker with the pool tarsy_tasks.worker.process.pool:TaskPool"
        )
    return execution


def masked_failure(error: Exception, masker: Masker) -> Exception:
    """What may leave a task in place of an exception: Celery stores it with its traceback, logs it, and sends it in
    events. The same one, if neither it nor those that led to it name a secret.
    """
    text = "".join(traceback.format_exception(error))
    if masker.mask(text) == text:
        return error
    return RuntimeError(f"{type(error).__name__}: {masker.mask(str(error))}").with_traceback(None)
