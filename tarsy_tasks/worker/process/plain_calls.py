"""Plain calls: messages that need nothing of Celery's tracer run as coroutines alone, without a thread and a `Request`.

Owns running them, storing and acknowledging their answers, and what Celery's commands see of them; `plain_messages`
decides which messages they are. All others go Celery's way, through its request and its tracer in a pool thread; and so
does a plain call that ends in any other way than with an answer that Redis takes at once.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, cast

from celery import states
from celery.app.trace import LOG_SUCCESS
from celery.exceptions import Ignore
from celery.worker import state
from celery.worker.request import create_request_cls
from redis.exceptions import RedisError
from vine import promise

from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.fetch import FetchedMessage
from tarsy_tasks.broker.leases import release_lease
from tarsy_tasks.broker.messages import CallMessage, DamagedMessage, decode_body, read_plain_arguments
from tarsy_tasks.broker.result_backend import ResultBackend
from tarsy_tasks.broker.task_names import CALLS
from tarsy_tasks.interceptors import Answer, Ending
from tarsy_tasks.models import ToolResult
from tarsy_tasks.worker.calls.execution import CallExecution, WorkerStopping
from tarsy_tasks.worker.calls.intake import open_call
from tarsy_tasks.worker.process.plain_messages import why_none_is_plain, why_not_plain
from tarsy_tasks.worker.process.request import CallRequest, show_call
from tarsy_tasks.worker.reporting.call_record import CallRecord

__all__ = ["PlainCall", "PlainCallFactory"]

logger = logging.getLogger(__name__)
_traced = logging.getLogger("celery.app.trace")

_LARGEST_BYTES = 256 * 1024
"""Of a message that is read on the loop, which nothing may block for long."""
_acknowledging = threading.Lock()
_STORED: Future[None] = Future()
_STORED.set_result(None)


class PlainCallFactory:
    """Makes plain calls of messages, while Celery's consumer keeps its connection.

    Args:
        consumer: That of Celery, which has its channel.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._pool = consumer.pool
        tasks, options = [consumer.app.tasks[name] for name in CALLS], {"app": consumer.app}
        self.reason = next(filter(None, (why_none_is_plain(task, consumer) for task in tasks)), "")
        """Why it builds none; empty if it builds some."""
        self._request_classes: dict[str, Any] = {
            each.name: create_request_cls(
                *(CallRequest, each, consumer.pool, consumer.hostname, consumer.event_dispatcher), **options
            )
            for each in tasks
        }

    def build(self, message: FetchedMessage) -> "PlainCall | None":
        """The call that a message asks for, or None if it is not plain. Called on the loop."""
        if self.reason or len(message.text) > _LARGEST_BYTES or message.payload is None:
            return None
        name = message.headers.get("task")
        if name not in CALLS or why_not_plain(message) or self._consumer.task_buckets.get(name):
            return None
        try:
            body = decode_body(message.payload)
            if (arguments := read_plain_arguments(body)) is None:
                return None
            return PlainCall(self._pool, message, arguments, self._consumer.event_dispatcher, self._build_request)
        except DamagedMessage:
            return None
        except Exception:  # on to Celery, which answers it
            logger.exception("a message could not be run as a plain call")
            return None

    def _build_request(self, fetched: FetchedMessage) -> CallRequest:
        consumer, app = self._consumer, self._consumer.app
        channel = consumer.task_consumer.channel
        message = channel.Message(fetched.payload, channel=channel)
        channel.qos.hold(message, fetched.delivery)
        name = fetched.headers["task"]
        return self._request_classes[name](
            message,
            on_ack=promise(consumer.call_soon_ack, (message.ack_log_error,)),
            on_reject=promise(consumer.call_soon_ack, (message.reject_log_error,)),
            headers=message.headers,
            body=message.body,
            decoded=False,
            utc=app.uses_utc_timezone(),
            app=app,
            hostname=consumer.hostname,
            eventer=consumer.event_dispatcher,
            task=app.tasks[name],
            connection_errors=consumer.connection_errors,
        )


class PlainCall:
    """One plain call; for Celery's commands it is the request, and for the pool what runs.

    Args:
        arguments: Those of the task.
        build_request: Makes Celery's request of the message, for what is rarely needed.
    """

    stamps: Mapping[str, Any] = MappingProxyType({})
    """What Celery's request of a message with stamps has."""

    def __init__(
        self,
        pool: Any,
        message: FetchedMessage,
        arguments: tuple[Any, ...],
        eventer: Any,
        build_request: Callable[[FetchedMessage], CallRequest],
    ) -> None:
        context = self._context = pool.context
        self._pool = pool
        self._arguments = arguments
        self.eventer = eventer
        self._build_request = build_request
        self._request: CallRequest | None = None
        self._is_acknowledged = False
        self._execution: CallExecution | None = None
        self._end: Exception | None = None
        self._message = message
        self._delivery = message.delivery
        self._storing: asyncio.Task[None] | None = None
        self.id: str = message.headers["id"]
        self.name: str = message.headers["task"]
        self.pid = 0
        self.time_start: float | None = None
        self._done: Future[None] | None = None
        delivery = self._delivery
        record = context.audit.open_record(self.id, CallMessage(arguments, {}, self.name), delivery)
        self._record: CallRecord = record
        delivery.record = record
        delivery.runs = True
        state.task_reserved(self)
        if eventer is not None and eventer.enabled and (not eventer.groups or "task" in eventer.groups):
            shown = show_call(context.audit, arguments)
            self._send_event("task-received", name=self.name, args=shown, kwargs="{}", root_id=self.id, retries=0)

    @property
    def delivery(self) -> Delivery:
        return self._delivery

    @property
    def queue(self) -> str:
        return self._delivery.queue

    @property
    def task(self) -> Any:
        return self._pool.app.tasks[self.name]

    @property
    def acknowledged(self) -> bool:
        return self._is_acknowledged if self._request is None else self._request.acknowledged

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """As `CallRequest.info`, without making Celery's request."""
        assert self._message.payload is not None
        properties: dict[str, Any] = self._message.payload["properties"]
        given: Any = properties.get("delivery_info")
        found: dict[str, Any] = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        return {
            "id": self.id,
            "name": self.name,
            "args": show_call(self._context.audit, self._arguments),
            "kwargs": "{}",
            "type": self.name,
            "hostname": self._context.instance.partition("#")[0],
            "time_start": self.time_start,
            "acknowledged": self.acknowledged,
            "delivery_info": {
                "exchange": found.get("exchange"),
                "routing_key": found.get("routing_key"),
                "priority": properties.get("priority"),
                "redelivered": found.get("redelivered", False),
            },
            "worker_pid": self.pid,
        }

    # On the session loop.

    def start(self) -> None:
        """Begin; `pid` is set."""
        self.time_start = time.time()
        self._record.picked_up_at = time.monotonic()
        state.task_accepted(self)
        self._send_event("task-started")
        try:
            call = open_call(self._context, self.id, self._arguments, self._delivery, self._record)
        except Exception as error:
            self._hand_over(error)
            return
        if isinstance(call, Answer):
            self._storing = asyncio.get_running_loop().create_task(self._store(call))
            return
        execution: CallExecution = self._pool.runner.build(call, self._ended)
        self._execution = execution
        execution.start()
        if self._end is not None:
            execution.end(self._end)

    def _ended(self, ending: Ending | BaseException) -> Awaitable[None] | None:
        if isinstance(ending, Answer):
            return self._store(ending)
        self._hand_over(ending)
        return None

    async def _store(self, answer: Answer) -> None:
        backend: ResultBackend = self._pool.app.backend
        delivery, record, result = self._delivery, self._record, answer.result
        try:
            key, value = backend.encode_answer(self.id, result)
            entry, large = record.write(states.SUCCESS, result, len(value)), delivery.large_of(result)
            await self._context.in_flight.answer(delivery, key, value, backend.expires, entry, large)
        except (RedisError, OSError) as error:
            logger.warning("Redis did not take an answer at once: %s", error)
            self._hand_over(answer)
            return
        except Exception:
            logger.exception("an answer could not be stored at once")
            self._hand_over(answer)
            return
        delivery.answered = True
        self._acknowledge()
        self._leave(successful=True)
        self._stored()
        self._report(result)

    def _report(self, result: ToolResult) -> None:
        assert self._record.picked_up_at is not None
        runtime = time.monotonic() - self._record.picked_up_at
        shown = repr(result)
        if _traced.isEnabledFor(logging.INFO):
            said = {"id": self.id, "name": self.name, "return_value": shown, "runtime": runtime}
            # Not by `info`, which looks for its caller: that costs more than the rest.
            _traced.handle(_traced.makeRecord(_traced.name, logging.INFO, __file__, 0, LOG_SUCCESS, (said,), None))
        self._send_event("task-succeeded", result=shown, runtime=runtime)

    def _hand_over(self, ending: Ending | BaseException) -> None:
        """Have it stored, requeued, dropped or failed by a task that does nothing else, in a pool thread."""
        self._record.ended = cast("Ending | Exception", ending)
        try:
            request = self.request()
        except Exception:
            logger.exception("a call that ended cannot be handed over to Celery: it is delivered again")
            release_lease(self._delivery)
            self._leave()
            self._stored()
            return
        self._leave()
        state.task_reserved(request)
        try:
            execution: Any = request.execute_using_pool(self._pool)
        except Exception as error:  # it is revoked; or the pool is closed, and the lease lapses
            logger.info("a call that ended was not stored: %s", type(error).__name__)
            self._stored()
        else:
            execution.done.add_done_callback(self._stored)

    def _stored(self, _: Any = None) -> None:
        with _acknowledging:
            done, self._done = self._done, _STORED
        if done is not None:
            done.set_result(None)

    def _leave(self, *, successful: bool = False) -> None:
        self._execution = None  # it refers to this object: both would wait for the garbage collector
        state.task_ready(self, successful=successful)
        self._pool.leave_plain(self)

    # From any thread.

    @property
    def done(self) -> "Future[None]":
        """Done when the call has left this worker. Made for who waits for it: usually nobody does."""
        with _acknowledging:
            self._done = self._done or Future()
            return self._done

    def end(self, error: Exception) -> None:
        """End the call; `error` says why, as for `CallExecution.end`."""

        def end() -> None:
            self._end = self._end or error
            if self._execution is not None:
                self._execution.end(self._end)

        self._context.loop.call_soon(end)

    def stop(self) -> None:
        """As `TaskExecution.stop`."""
        self.end(WorkerStopping())

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: ARG002
        """As `CallRequest.cancel`."""
        self.stop()

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Revoke it while it runs. Called in the thread of Celery's consumer."""
        self.end(Ignore("revoked"))
        if self.acknowledged:
            return  # it has just been answered
        request = self.request()
        request.time_start = request.time_start or time.time()
        request.terminate(pool, signal)

    def request(self) -> CallRequest:
        """Celery's own request of this message."""
        with _acknowledging:
            if self._request is None:
                request = self._request = self._build_request(self._message)
                request.acknowledged = self._is_acknowledged
                request.time_start, request.worker_pid = self.time_start, self.pid
            return self._request

    def _acknowledge(self) -> None:
        with _acknowledging:
            self._is_acknowledged, request = True, self._request
        if request is not None:
            request.acknowledge()
        else:
            release_lease(self._delivery)

    def _send_event(self, kind: str, **fields: Any) -> None:
        eventer = self.eventer
        if eventer is not None and eventer.enabled and (not eventer.groups or "task" in eventer.groups):
            eventer.send(kind, uuid=self.id, **fields)

    def __getattr__(self, name: str) -> Any:
        """What else commands ask a request of Celery for."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.request(), name)
