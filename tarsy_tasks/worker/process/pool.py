"""The worker's pool: Celery's threads, one event loop for all MCP sessions, and calls that can be cancelled.

Owns the loop, the sessions, the leases and the stopping. Stock threads ignore time limits, revoke and soft shutdown;
here each of them becomes a cancel of the coroutine that the task waits for, and the SDK passes that on to the MCP
server. The stock tracer stays.
"""

import contextvars
import gc
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from typing import Any

from celery.concurrency.base import apply_target
from celery.concurrency.thread import TaskPool as ThreadsTaskPool
from celery.exceptions import Ignore, SoftTimeLimitExceeded, TimeLimitExceeded

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.binding import decide_binding
from tarsy_tasks.broker.confinement import confine
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.kombu_transport import broker_pool
from tarsy_tasks.broker.leases import release_lease
from tarsy_tasks.broker.priority_lists import lists_of
from tarsy_tasks.celery_app import broker_urls
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.settings import load_settings
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.execution import CallRunner
from tarsy_tasks.worker.calls.interceptors import build_answering, build_interceptors, has_approvals, has_cache
from tarsy_tasks.worker.calls.isolated_sessions import IsolatedSessions
from tarsy_tasks.worker.calls.operations import build_operations
from tarsy_tasks.worker.calls.resource_watches import ResourceWatches
from tarsy_tasks.worker.calls.task_execution import TaskExecution
from tarsy_tasks.worker.long_work import cancel_long_work
from tarsy_tasks.worker.maskers import build_record_masker
from tarsy_tasks.worker.process.bulkhead import Bulkhead, QueueOrderStrategy
from tarsy_tasks.worker.process.cancellation import cancel_call, cancel_in_thread, look_for_cancelled
from tarsy_tasks.worker.process.error_budgets import ErrorBudgets
from tarsy_tasks.worker.process.fetcher import QueueFetcher
from tarsy_tasks.worker.process.lease import LeaseKeeper
from tarsy_tasks.worker.process.limit_reporter import LimitReporter
from tarsy_tasks.worker.process.plain_calls import PlainCall
from tarsy_tasks.worker.process.policy_terms import build_fetch_limits, build_limit_report, weights_of
from tarsy_tasks.worker.process.resource_changes import ResourceChanges
from tarsy_tasks.worker.process.server_changes import ServerChanges
from tarsy_tasks.worker.process.shared_pauses import SharedPauses
from tarsy_tasks.worker.process.shutdown import ShutdownWatch
from tarsy_tasks.worker.process.suspended_queues import SuspendedQueues
from tarsy_tasks.worker.process.task_events import send_unsent
from tarsy_tasks.worker.process.task_poller import TaskPoller
from tarsy_tasks.worker.process.withdrawn_calls import build_forgetting
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.server_lines import ServerLines
from tarsy_tasks.worker.sessions.connecting import connect_servers, served_servers
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connections import Connections, build_connection
from tarsy_tasks.worker.sessions.elicitation_connections import ElicitationConnections
from tarsy_tasks.worker.sessions.isolated_connection import IsolatedConnection
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tarsy_tasks.worker.sessions.sign_ins import build_sign_ins
from tarsy_tasks.worker.transport.provided_credentials import build_credential_source

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
        self._executions: dict[int, TaskExecution | PlainCall] = {}
        self._loop = SessionLoop()
        self._polling: Future[None] = Future()
        self._bulkhead = Bulkhead()
        self.commands: dict[str, tuple[str, Future[dict[str, Any]]]] = {}
        """The last command of an operator for each server, by name, and its outcome."""
        self._closed = False
        self._watching: Future[None] | None = None

    @property
    def context(self) -> WorkerContext:
        """What all calls of this worker share."""
        return self._context

    @property
    def loop(self) -> SessionLoop:
        """The loop that the sessions live on."""
        return self._loop

    @property
    def connections(self) -> Mapping[str, ServerConnection]:
        """The connections to the MCP servers, by server id."""
        return self._context.connections

    @property
    def bulkhead(self) -> Bulkhead:
        """What runs here, and how much more may."""
        return self._bulkhead

    def limit_of(self, server: str) -> int | None:
        """How many calls of a server run here at once; None for one that is not served."""
        return self._bulkhead.limit(server)

    def on_start(self) -> None:
        servers = served_servers(self.app)
        context = self._context = self._build_context(servers)
        self.app.worker_context = context
        self._bulkhead.open(self.limit, (connection.server for connection in context.connections.values()))
        options = self.app.conf.broker_transport_options
        if isinstance(options.get("queue_order_strategy"), QueueOrderStrategy | None):
            options["queue_order_strategy"] = QueueOrderStrategy(self._bulkhead)
        config, users = self.app.mcp_config, self.app.interceptors
        build = partial(
            build_interceptors, context, users, is_cached=has_cache(config), has_approvals=has_approvals(config)
        )
        self.isolated = IsolatedSessions(context, self._connect_run, self._consume_own)
        context.consume_own = self.isolated.consume_own
        changes = ResourceChanges(context.connections, context.in_flight.exchange)
        self._watches = ResourceWatches(context, changes.dropped)
        asked_for = build_operations(context, self._watches)
        isolated = build(isolation=self.isolated)
        self.runner = CallRunner(context, build(), isolated, asked_for, build_answering(context))
        weights, limiting = weights_of(context.policy), self.build_fetch_limits()
        pool, instance = partial(broker_pool, self.app), context.instance
        self.fetcher = QueueFetcher(pool, self._bulkhead, self._loop, weights, limiting, instance)
        suspended = SuspendedQueues(context.connections, self._bulkhead, context.instance)
        pauses = SharedPauses(context.connections, context.in_flight.exchange)
        reporter = self.limit_reporter = LimitReporter(build_limit_report(context.policy, config.enabled_servers))
        budgets = ErrorBudgets(context.connections, self._loop, context.instance)

        def tend(exchange: RedisExchange) -> None:
            for each in (suspended, pauses, reporter, budgets):
                each.tend(exchange)

        context.elicitation = ElicitationConnections(self._sessions, self._bulkhead)
        keeping = (context.audit, context.instance, servers, context.lease_s, tend)
        self._leases = LeaseKeeper(self.app, *keeping, build_forgetting(context, self._loop))
        kept = (self._bulkhead, suspended, pauses, changes, self._leases, self.isolated, context.elicitation)
        context.connections.inform(*kept)
        grace_s = context.settings.shutdown_grace_s
        self.server_changes = ServerChanges(context.connections, self, self._connect, grace_s)
        self._shutdown = ShutdownWatch(context.settings.shutdown_grace_s, self._end_all)
        # From here on a result waits for an unavailable Redis, until the worker stops.
        self.app.backend.stopping = threading.Event()
        # What has been imported stays. Without this, each full collection of garbage visits all of it, and calls wait.
        gc.collect()
        gc.freeze()
        self._loop.start()
        try:
            connect_servers(context.connections.values(), self._loop)
        except BaseException:
            # Celery stops no pool that did not start.
            self._close_sessions()
            raise
        self._watching = self._loop.submit(self._watches.run())
        self._leases.start()
        self._polling = self._loop.submit(TaskPoller(context).run())
        self._shutdown.start()

    def build_fetch_limits(self) -> str:
        """What the fetch has to know of the limits of the policy, for the servers that are served now."""
        context = self._context
        servers, is_bound = list(context.connections), context.binding.is_bound
        return build_fetch_limits(context.policy, self.app.conf, servers, context.lease_s, is_bound=is_bound)

    def calls_of(self, server: str) -> list[int]:
        """The calls of a server that run now, and what is in no queue of a server, which may be such a call."""
        running = self._executions.copy().items()
        return [pid for pid, each in running if keys.server_of_queue(each.queue) in (server, None)]

    def still_runs(self, call: int) -> bool:
        """Whether one of these calls still runs."""
        return call in self._executions

    def _connect(self, server: ServerConfig) -> ServerConnection:
        return build_connection(server, self._sessions)

    def _connect_run(self, shared: ServerConnection, principal: str) -> IsolatedConnection:
        return IsolatedConnection(shared, self._sessions, principal)

    def _consume_own(self, queue: str) -> bool:
        """Take messages from a queue of this worker alone; on the loop."""
        if self.fetcher.is_taking:
            self.fetcher.consume(queue, lists_of(queue))
        return self.fetcher.is_taking

    def _build_context(self, servers: Sequence[str]) -> WorkerContext:
        app, settings, metrics = self.app, load_settings(), CallMetrics()
        binding = decide_binding(settings.canvas, broker_urls(app))
        configured = app.mcp_config.servers
        self.inheritance = Inheritance(configured.values(), broker_urls(app))
        broker = results = AsyncRedisExchange(lambda: app.backend.client.connection_pool, is_eager=True)
        if app.conf.broker_url != app.conf.result_backend:
            broker = AsyncRedisExchange(partial(broker_pool, app), is_eager=True)
        sign_ins = build_sign_ins(settings, broker)
        sessions = self._sessions = SessionContext(
            self.inheritance, credentials=build_credential_source(settings), sign_ins=sign_ins
        )
        connections = Connections(map(self._connect, (configured[name] for name in servers)))
        # Of all servers: any worker may find a call that its own worker left behind.
        maskers = {name: build_record_masker(server) for name, server in configured.items()}
        worker = app.worker_instance.partition("#")[0]
        lines = ServerLines(maskers, metrics.clock, worker)
        lines.open()  # before the servers start: what they write then matters most
        return WorkerContext(
            instance=app.worker_instance,
            lease_s=float(app.conf.broker_transport_options["visibility_timeout"]),
            settings=settings,
            binding=binding,
            loop=self._loop,
            connections=connections,
            record_maskers=maskers,
            taken=app.generation.taken(settings),
            clock=metrics.clock,
            metrics=metrics,
            audit=Audit(worker, maskers, settings, metrics.clock, metrics, [metrics], is_bound=binding.is_bound),
            in_flight=AsyncDeliveries(broker),
            results=results,
            server_lines=lines,
            child_watch=sessions.child_watch,
            policy=app.policy,
        )

    def take_no_more(self) -> None:
        """Fetch no more messages. Safe in a signal handler, also when the pool has closed."""
        if not self._closed:
            self._loop.submit(self.fetcher.stop())

    def on_stop(self) -> None:
        """Warm shutdown: what runs may finish within the grace, then it ends like a cold one."""
        self._shutdown.done()
        self._leases.depart()
        self._loop.submit(self.isolated.close())
        looking = self._loop.submit(look_for_cancelled(self._context.in_flight, self._cancel))
        self._wait_for_all(self._context.settings.shutdown_grace_s)
        looking.cancel()
        self.on_terminate()

    def _cancel(self, task_id: str) -> None:
        """Cancel a call while the worker stops, and its consumer's thread waits for the calls."""
        cancel_in_thread(partial(cancel_call, self.app, self, task_id))

    def on_terminate(self) -> None:
        """Cold shutdown: what runs is cancelled on the MCP server; what may be done again goes back to its queue, the
        rest is answered.
        """
        self._shutdown.done()
        self._leases.depart()
        self._end_all()
        self._wait_for_all(_ANSWER_S)
        # A thread that still waits for Redis to take an answer gives up: the lease lapses, the call is delivered again.
        self.app.backend.stopping.set()
        self._wait_for_all(_ANSWER_S)
        if self._executions:
            logger.error("%d calls could not be ended", len(self._executions))
        self.executor.shutdown(wait=False, cancel_futures=True)
        self._leases.stop()
        self._close_sessions()
        self._context.audit.close()
        send_unsent(self.app)
        cancel_long_work()

    def _end_all(self) -> None:
        for execution in list(self._executions.values()):
            execution.stop()

    def _wait_for_all(self, timeout_s: float) -> None:
        wait_for([each.done for each in list(self._executions.values()) if each.done is not None], timeout_s)

    def _close_sessions(self) -> None:
        if self._closed:
            return  # Celery stops a pool twice after SIGQUIT
        self._closed = True
        self._polling.cancel()

        async def close(connection: ServerConnection) -> None:
            await connection.close()

        if self._watching is not None:
            self._watching.cancel()
            wait_for([self._loop.submit(self._watches.close())], _ANSWER_S)
        closing = [self._loop.submit(close(connection)) for connection in self._context.connections.values()]
        kept = filter(None, (self.server_changes, self.isolated, self._context.elicitation))
        closing += [self._loop.submit(each.close()) for each in kept]
        wait_for(closing, _CLOSE_S)
        for each in (self.fetcher, self._context.in_flight.exchange, self._context.results):
            self._loop.call_soon(each.close)
        self._loop.stop()
        self._context.child_watch.close()

    def run_plain(self, call: PlainCall) -> None:
        """Run a call that needs no thread. Called on the loop."""
        call.pid = next(self._pids)
        self._executions[call.pid] = call
        self._bulkhead.enter(call.queue)
        if self._context.binding.covers(call.queue):
            confined = contextvars.copy_context()
            confined.run(confine, call.delivery)
            confined.run(call.start)
        else:
            call.start()

    def leave_plain(self, call: PlainCall) -> None:
        """It has ended, or goes on in a thread."""
        del self._executions[call.pid]
        self._bulkhead.leave(call.queue)

    def terminate_job(self, pid: int, signal: Any = None) -> None:  # noqa: ARG002
        execution = self._executions.get(pid)
        if execution is not None:
            execution.end(Ignore("revoked"))

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
        # Celery's tracer takes the name of the task, its id and what the request says.
        request: dict[str, Any] = args[2] if args is not None and len(args) > 2 else {}
        delivery: Delivery | None = request.get("delivery")
        queue, size_bytes = (delivery.queue, delivery.size_bytes) if delivery is not None else ("", 0)
        execution = TaskExecution(next(self._pids), self.runner, delivery)
        soft_s = soft_timeout or self.options.get("soft_timeout")
        hard_s = timeout or self.options.get("timeout")

        def run() -> None:
            limits = self._arm_limits(execution, soft_s, hard_s, timeout_callback) if soft_s or hard_s else ()
            try:
                self.app.backend.retry_until_stopped()
                # A fresh context: stock threads leak context variables from one task into the next.
                fresh = contextvars.Context()
                if delivery is not None and self._context.binding.covers(queue):
                    fresh.run(confine, delivery)
                with execution.current():
                    fresh.run(apply_target, target, args, kwargs, callback, accept_callback, pid=execution.pid)
            except Exception:
                logger.exception("a task failed outside its body")
                if delivery is not None and delivery.forget is not None:
                    delivery.forget()  # or it would take a slot for good
            finally:
                for limit in limits:
                    limit.cancel()
                if delivery is not None:
                    # It is acknowledged a moment later, unless Celery itself failed: then it has to come back.
                    release_lease(delivery)
                del self._executions[execution.pid]
                self._bulkhead.leave(queue, size_bytes)

        self._executions[execution.pid] = execution
        if delivery is not None:
            delivery.runs = True
        self._bulkhead.enter(queue, size_bytes)
        execution.done = self.executor.submit(run)
        return execution

    def _arm_limits(
        self,
        execution: TaskExecution,
        soft_s: float | None,
        hard_s: float | None,
        timeout_callback: Callable[..., Any] | None,
    ) -> list[Future[None]]:
        def soft_limit() -> None:
            if timeout_callback is not None:
                timeout_callback(True, soft_s)
            execution.end(SoftTimeLimitExceeded(soft_s))

        limits: list[Future[None]] = []
        if soft_s:
            limits.append(self._loop.call_later(soft_s, soft_limit))
        if hard_s:
            limits.append(self._loop.call_later(hard_s, lambda: execution.end(TimeLimitExceeded(hard_s))))
        return limits
