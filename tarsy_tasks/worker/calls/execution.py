"""One task in the pool: how it waits for the session loop, and how it is ended from outside.

Owns the bridge between a pool thread and the session loop. Time limits, revoke and shutdown become a cancel of what the
job waits for; the pool makes the jobs.
"""

import threading
from collections.abc import Coroutine, Generator, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from celery.exceptions import Ignore

from tarsy_tasks.worker.calls.quarantine import Quarantine
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["TaskExecution", "WorkerContext", "WorkerStopping", "current_execution"]

T = TypeVar("T")
_thread = threading.local()


class WorkerStopping(Exception):
    """The worker stops, and its grace is over. What may be done again elsewhere goes back to the queue."""


@dataclass(frozen=True)
class WorkerContext:
    """What all jobs of a worker process share.

    Attributes:
        instance: Name of the worker process.
        lease_s: How long a worker that says nothing is taken for alive.
        connections: The ways to the MCP servers, by server id.
        quarantine: For calls whose workers died before; to be used on the session loop.
    """

    instance: str
    lease_s: float
    loop: SessionLoop
    connections: Mapping[str, ServerConnection]
    quarantine: Quarantine = field(default_factory=Quarantine)


class TaskExecution:
    """One task in the pool; what Celery keeps of it in order to terminate it.

    Attributes:
        pid: Stands in for a process id. Celery terminates by pid, so each job needs its own.
    """

    def __init__(self, pid: int, context: WorkerContext) -> None:
        self.pid = pid
        self.context = context
        self._lock = threading.Lock()
        self._waiting: Future[Any] | None = None
        self._ended_by: Exception | None = None
        self.done: Future[None] | None = None

    @property
    def connections(self) -> Mapping[str, ServerConnection]:
        """The ways to the MCP servers, by server id."""
        return self.context.connections

    @contextmanager
    def current(self) -> Generator[None]:
        """Makes this the job of the calling thread."""
        _thread.job = self
        try:
            yield
        finally:
            _thread.job = None

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the session loop and wait for it, in the pool thread.

        Raises:
            TimeoutError: It took longer than `timeout_s`; it is cancelled, and nobody waits until it has noticed.
            Exception: What the coroutine raised, or what `end` was called with.
        """
        future = self.context.loop.submit(coroutine)
        with self._lock:
            self._waiting = future
            if self._ended_by is not None:
                future.cancel()
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise self._ended_by or WorkerStopping from None
        except TimeoutError:
            future.cancel()
            raise
        finally:
            self._waiting = None

    def end(self, error: Exception) -> None:
        """Cancel what the job waits for, and everything that it will ever wait for; `error` is raised in its thread."""
        with self._lock:
            self._ended_by = self._ended_by or error
            if self._waiting is not None:
                self._waiting.cancel()

    def stop(self) -> None:
        """End the job because the worker stops; its call is answered or given back, not lost."""
        self.end(WorkerStopping())

    # What Celery calls on the result of `apply_async`.

    def terminate(self, signal: Any = None) -> None:  # noqa: ARG002
        """End the job because it was revoked. Celery has stored that already, so the task must store nothing."""
        self.end(Ignore("revoked"))

    def get(self, timeout: float | None = None) -> None:
        assert self.done is not None
        self.done.result(timeout)

    def wait(self, timeout: float | None = None) -> None:
        assert self.done is not None
        wait_for([self.done], timeout)


def current_execution() -> TaskExecution:
    """The job of the calling pool thread.

    Raises:
        RuntimeError: The caller runs in no worker of ours.
    """
    job = getattr(_thread, "job", None)
    if job is None:
        raise RuntimeError(
            "tarsy_tasks' tasks run only in a worker with the pool tarsy_tasks.worker.process.pool:TaskPool"
        )
    return job
