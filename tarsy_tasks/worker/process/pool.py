"""The worker's pool: Celery's threads, one event loop for all MCP sessions, and calls that can be cancelled.

Owns the loop, the sessions, the leases and the stopping. Stock threads ignore time limits, revoke and soft shutdown;
here each of them becomes a cancel of the coroutine that the job waits for, and the SDK passes that on to the MCP
server. The stock tracer stays.
"""

import contextvars
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from celery.concurrency.base import apply_target
from celery.concurrency.thread import TaskPool as ThreadsTaskPool
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from tarsy_tasks.broker.deliveries import Delivery
from tarsy_tasks.broker.kombu_transport import release_lease
from tarsy_tasks.celery_app import broker_urls
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.settings import load_settings
from tarsy_tasks.worker.calls.execution import TaskExecution, WorkerContext
from tarsy_tasks.worker.maskers import build_record_masker
from tarsy_tasks.worker.process.bulkhead import bulkhead
from tarsy_tasks.worker.process.lease import LeaseKeeper
from tarsy_tasks.worker.process.shutdown import ShutdownWatch
from tarsy_tasks.worker.reporting.audit_writer import audit
from tarsy_tasks.worker.reporting.call_metrics import call_metrics
from tarsy_tasks.worker.sessions.connection import ServerConnection, build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["TaskPool"]

logger = logging.getLogger(__name__)

_FIRST_PID = 1_000_000
_ANSWER_S = 5.0
"""How long calls that were ended may take to be answered or given back."""
_CLOSE_S = 20.0


class TaskPool(ThreadsTaskPool):
    """Set as `worker_pool`; `-P` with anything else is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pids = itertools.count(_FIRST_PID)
        self._jobs: dict[int, TaskExecution] = {}
        self._loop = SessionLoop()
        self._closed = False

    @property
    def loop(self) -> SessionLoop:
        """The loop that the sessions live on."""
        return self._loop

    @property
    def connections(self) -> Mapping[str, ServerConnection]:
        """The ways to the MCP servers, by server id."""
        return self._context.connections

    def on_start(self) -> None:
        from tarsy_tasks.worker.sessions.connecting import connect_servers, served_servers

        servers = served_servers(self.app)
        configured = self.app.mcp_config.servers
        self._session_context = SessionContext(Inheritance(configured.values(), broker_urls(self.app)))
        connections = build_connections((configured[name] for name in servers), self._session_context)
        bulkhead.open(self.limit, (connection.server for connection in connections.values()))
        instance = self.app.worker_instance
        lease_s = float(self.app.conf.broker_transport_options["visibility_timeout"])
        self._context = WorkerContext(instance, lease_s, self._loop, connections)
        self._leases = LeaseKeeper(self.app, instance, servers, lease_s)
        settings = load_settings()
        maskers = {name: build_record_masker(connection.server) for name, connection in connections.items()}
        audit.open(instance.partition("#")[0], maskers, settings, call_metrics.clock)
        self._grace_s = settings.shutdown_grace_s
        self._shutdown = ShutdownWatch(self._grace_s, self._end_jobs)
        # From here on a result waits for a Redis that is away, until the worker stops.
        self.app.backend.stopping = threading.Event()
        self._loop.start()
        try:
            connect_servers(connections.values(), self._loop)
        except BaseException:
            # Celery stops no pool that did not start.
            self._close_sessions()
            raise
        self._leases.start()
        self._shutdown.start()

    def register_with_event_loop(self, loop: Any) -> None:
        bulkhead.watch(loop)

    def on_stop(self) -> None:
        """Warm shutdown: what runs may finish within the grace, then it ends like a cold one."""
        self._shutdown.done()
        self._leases.depart()
        self._wait_for_jobs(self._grace_s)
        self.on_terminate()

    def on_terminate(self) -> None:
        """Cold shutdown: what runs is cancelled in the MCP server; what may be done again goes back to its queue, the
        rest is answered.
        """
        self._shutdown.done()
        self._leases.depart()
        self._end_jobs()
        self._wait_for_jobs(_ANSWER_S)
        # Whoever still waits for Redis to take an answer gives up: its lease lapses, and the call is dealt with again.
        self.app.backend.stopping.set()
        self._wait_for_jobs(_ANSWER_S)
        if self._jobs:
            logger.error("%d calls could not be ended", len(self._jobs))
        self.executor.shutdown(wait=False, cancel_futures=True)
        self._leases.stop()
        self._close_sessions()
        audit.close()

    def _end_jobs(self) -> None:
        for job in list(self._jobs.values()):
            job.stop()

    def _wait_for_jobs(self, timeout_s: float) -> None:
        wait_for([job.done for job in list(self._jobs.values()) if job.done is not None], timeout_s)

    def _close_sessions(self) -> None:
        if self._closed:
            return  # Celery stops a pool twice after SIGQUIT
        self._closed = True

        async def close(connection: ServerConnection) -> None:
            await connection.close()

        closing = [self._loop.submit(close(connection)) for connection in self._context.connections.values()]
        wait_for(closing, _CLOSE_S)
        self._loop.stop()
        self._session_context.child_watch.close()

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
    ) -> TaskExecution:
        job = TaskExecution(next(self._pids), self._context)
        # Celery's tracer takes the name of the task, its id and what the request says.
        request: dict[str, Any] = args[2] if args is not None and len(args) > 2 else {}
        delivery: Delivery | None = request.get("delivery")
        queue = delivery.queue if delivery is not None else ""
        soft_s = soft_timeout or self.options.get("soft_timeout")
        hard_s = timeout or self.options.get("timeout")

        def run() -> None:
            limits = self._arm_limits(job, soft_s, hard_s, timeout_callback) if soft_s or hard_s else ()
            try:
                self.app.backend.retry_until_stopped()
                # A fresh context: stock threads leak context variables from one task into the next.
                with job.current():
                    contextvars.Context().run(
                        apply_target, target, args, kwargs, callback, accept_callback, pid=job.pid
                    )
            except Exception:
                logger.exception("a job failed outside of its task")
            finally:
                for limit in limits:
                    limit.cancel()
                if delivery is not None:
                    # It is acknowledged a moment later, unless Celery itself failed: then it has to come back.
                    release_lease(delivery)
                del self._jobs[job.pid]
                bulkhead.leave(queue)

        self._jobs[job.pid] = job
        if delivery is not None:
            delivery.runs = True
        bulkhead.enter(queue)
        job.done = self.executor.submit(run)
        return job

    def _arm_limits(
        self,
        job: TaskExecution,
        soft_s: float | None,
        hard_s: float | None,
        timeout_callback: Callable[..., Any] | None,
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
