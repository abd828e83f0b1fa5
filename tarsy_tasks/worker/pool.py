"""The worker's pool: Celery's threads, one event loop for all MCP sessions, and calls that can be cancelled.

Owns the loop, the sessions and the jobs. Stock threads ignore time limits, revoke and soft shutdown; here each of them
becomes a cancel of the coroutine that the job waits for, and the SDK passes that on to the MCP server. The stock tracer
stays.
"""

import contextvars
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

from celery.concurrency.base import apply_target
from celery.concurrency.thread import TaskPool as ThreadsTaskPool
from celery.exceptions import Ignore, SoftTimeLimitExceeded, TimeLimitExceeded

from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.child_watch import child_watch
from tarsy_tasks.worker.connection import ServerConnection, build_connections
from tarsy_tasks.worker.masking import build_masker
from tarsy_tasks.worker.session_loop import SessionLoop

__all__ = ["Job", "TaskPool", "current_job"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_PID = 1_000_000
_CLOSE_S = 20.0
_thread = threading.local()


class Job:
    """One task in the pool; what Celery keeps of it in order to terminate it.

    Attributes:
        pid: Stands in for a process id. Celery terminates by pid, so each job needs its own.
        connections: The ways to the MCP servers, by server id.
    """

    def __init__(self, pid: int, loop: SessionLoop, connections: Mapping[str, ServerConnection]) -> None:
        self.pid = pid
        self.connections = connections
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: Future[Any] | None = None
        self._ended_by: Exception | None = None
        self.done: Future[None] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the session loop and wait for it, in the pool thread.

        Raises:
            TimeoutError: It took longer than `timeout_s`; it is cancelled, and nobody waits until it has noticed.
            Exception: What the coroutine raised, or what `end` was called with.
        """
        future = self._loop.submit(coroutine)
        with self._lock:
            self._waiting = future
            if self._ended_by is not None:
                future.cancel()
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise self._ended_by or _worker_stopped() from None
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
        """End the job because the worker stops; its call is answered, not lost."""
        self.end(_worker_stopped())

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


class TaskPool(ThreadsTaskPool):
    """Set as `worker_pool`; `-P` with anything else is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pids = itertools.count(_FIRST_PID)
        self._jobs: dict[int, Job] = {}
        self._loop = SessionLoop()
        self._closed = False
        self.connections: Mapping[str, ServerConnection] = {}

    @property
    def loop(self) -> SessionLoop:
        """The loop that the sessions live on."""
        return self._loop

    def on_start(self) -> None:
        from tarsy_tasks.worker.startup import connect_servers, served_servers

        servers = self.app.mcp_config.servers
        self.connections = build_connections((servers[name] for name in served_servers(self.app)), build_masker())
        self._loop.start()
        try:
            connect_servers(self.connections.values(), self._loop)
        except BaseException:
            # Celery stops no pool that did not start.
            self._close_sessions()
            raise

    def on_stop(self) -> None:
        """Warm shutdown: what runs may finish, what waits for a thread goes back to its queue."""
        self.executor.shutdown(cancel_futures=True)
        self._close_sessions()

    def on_terminate(self) -> None:
        """Cold shutdown: what runs is cancelled in the MCP server, and answered so."""
        for job in list(self._jobs.values()):
            job.stop()
        self.on_stop()

    def _close_sessions(self) -> None:
        if self._closed:
            return  # Celery stops a pool twice after SIGQUIT
        self._closed = True

        async def close(connection: ServerConnection) -> None:
            await connection.close()

        closing = [self._loop.submit(close(connection)) for connection in self.connections.values()]
        wait_for(closing, _CLOSE_S)
        self._loop.stop()
        child_watch.close()

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        job = self._jobs.get(pid)
        if job is not None:
            job.terminate(signal)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        timeout: float | None = None,
        soft_timeout: float | None = None,
        timeout_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> Job:
        job = Job(next(self._pids), self._loop, self.connections)
        soft_s = soft_timeout or self.options.get("soft_timeout")
        hard_s = timeout or self.options.get("timeout")

        def run() -> None:
            self._jobs[job.pid] = job
            _thread.job = job
            limits = self._arm_limits(job, soft_s, hard_s, timeout_callback) if soft_s or hard_s else ()
            try:
                # A fresh context: stock threads leak context variables from one task into the next.
                contextvars.Context().run(apply_target, target, args, kwargs, callback, accept_callback, pid=job.pid)
            except Exception:
                logger.exception("a job failed outside of its task")
            finally:
                for limit in limits:
                    limit.cancel()
                _thread.job = None
                del self._jobs[job.pid]

        job.done = self.executor.submit(run)
        return job

    def _arm_limits(
        self, job: Job, soft_s: float | None, hard_s: float | None, timeout_callback: Callable[..., Any] | None
    ) -> list[Future[None]]:
        def soft_limit() -> None:
            if timeout_callback is not None:
                timeout_callback(True, soft_s)
            job.end(SoftTimeLimitExceeded(soft_s))

        limits: list[Future[None]] = []
        if soft_s:
            limits.append(self._loop.call_later(soft_s, soft_limit))
        if hard_s:
            limits.append(self._loop.call_later(hard_s, lambda: job.end(TimeLimitExceeded(hard_s))))
        return limits


def current_job() -> Job:
    """The job of the calling pool thread.

    Raises:
        RuntimeError: The caller runs in no worker of ours.
    """
    job = getattr(_thread, "job", None)
    if job is None:
        raise RuntimeError("tarsy_tasks' tasks run only in a worker with the pool tarsy_tasks.worker.pool:TaskPool")
    return job


def _worker_stopped() -> CallError:
    return CallError(
        ErrorCode.WORKER_STOPPED,
        "The worker was stopped while the call ran, and the MCP server was told to cancel it. The tool may have begun. "
        "Look at its effects before you call it again.",
    )
