"""Celery's consumer, with its own replies to messages that it cannot execute.

Owns the answers to messages that are not calls. Stock prints their whole bodies, and arguments must not be logged; and
it leaves the agents that wait for such a task without an answer. Owns also what becomes of commands that are none,
since when messages are taken, that those which are not due are given back, and that the consumer's thread works for a
message of a bound agent confined to it.
"""

import logging
import random
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import signals
from celery.exceptions import InvalidTaskError, NotRegistered
from celery.worker import consumer
from celery.worker.consumer.control import Control
from celery.worker.consumer.gossip import Gossip
from kombu.exceptions import ContentDisallowed

from tarsy_tasks.broker.confinement import confined_to
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.broker.refusal_log import RefusalLog
from tarsy_tasks.broker.signing import explain
from tarsy_tasks.broker.task_headers import check_headers
from tarsy_tasks.broker.task_names import PREFIX
from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.process.canvas_rules import CanvasRefused
from tarsy_tasks.worker.process.eta import InvalidETA, handle_when_due
from tarsy_tasks.worker.process.hub import wake_in_signal_handler

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)
_refusals = RefusalLog(logger)
_RETRY_S = (0.4, 0.4, 5.0)
"""Between two attempts to connect: at first, how much longer each time, and at most."""


class Consumer(consumer.Consumer):
    """Set as `worker_consumer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        steps: list[Any] = self.steps
        for box in [step.box for step in steps if issubclass(type(step), Control)]:
            box.on_message = partial(_handle_command, box)
        for gossip in [step for step in steps if issubclass(type(step), Gossip)]:
            gossip.stop = partial(_stop_if_connected, gossip.stop)
        # Stock recommends a setting when Redis was lost. Here a call goes on, and its answer is stored later.
        warnings.filterwarnings("ignore", "\nIn Celery 5.1", PendingDeprecationWarning, "celery.worker.consumer")
        signals.worker_shutting_down.connect(self._notice_shutdown)

    def on_ready(self) -> None:
        self.app.worker_context.taking_since = time.monotonic()
        super().on_ready()

    def _notice_shutdown(self, **_: Any) -> None:
        """Called in a signal handler. Celery's event loop checks in each iteration whether it has to stop, and one in
        which nothing happens takes a second.
        """
        worker: Any = self
        wake_in_signal_handler(worker.hub, worker.pool.loop)

    def ensure_connected(self, conn: Any) -> Any:
        """As Celery's, which waits 2, 4, 6 and more seconds between two attempts: long after a short restart of Redis,
        and for up to half a minute after a long one."""
        connect, (first_s, step_s, most_s) = conn.ensure_connection, _RETRY_S
        first_s = random.uniform(first_s / 2, first_s)  # noqa: S311 - no secret
        conn.ensure_connection = partial(connect, interval_start=first_s, interval_step=step_s, interval_max=most_s)
        stock: Any = super()
        return stock.ensure_connected(conn)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        stock: Any = super()
        handle = stock.create_task_handler(*args, **kwargs)
        binding = self.app.worker_context.binding

        def check(message: Any) -> Any:
            try:
                body = message.decode()
            except Exception as error:
                return self.on_decode_error(message, error)
            if why := check_headers(message.headers, body):
                return self.on_invalid_task(None, message, InvalidTaskError(why))
            return handle(message)

        def check_confined(message: Any) -> Any:
            delivery: Delivery | None = getattr(message, "delivery", None)
            with confined_to(delivery if delivery is not None and binding.covers(delivery.queue) else None):
                return check(message)

        return check_confined if binding.is_bound else check

    def update_strategies(self) -> None:
        stock: Any = super()
        stock.update_strategies()
        for name, strategy in self.strategies.items():
            self.strategies[name] = partial(self._handle, strategy, name.startswith(PREFIX))

    def _handle(self, strategy: Callable[..., None], is_ours: bool, message: Any, body: Any, *more: Any) -> None:
        binding, delivery = self.app.worker_context.binding, getattr(message, "delivery", None)
        if not is_ours and binding.is_bound and delivery is not None and binding.covers(delivery.queue):
            raise CanvasRefused("only tasks of this package may be in the queue of a server")
        try:
            handle_when_due(strategy, message, body, *more)
        except InvalidETA as error:
            self._refuse(message, InvalidTaskError(), str(error))

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        if isinstance(exc, ContentDisallowed):
            self.on_invalid_task(None, message, exc)
            return
        why = explain(exc)
        self._refuse(message, exc, f"its signature: {why}" if why else "its body cannot be decoded")

    def on_unknown_message(self, body: Any, message: Any) -> None:  # noqa: ARG002
        self._refuse(message, None, "it is not a Celery task")

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002
        if isinstance(exc, CanvasRefused):
            self._refuse(message, InvalidTaskError(), str(exc))
            return
        is_other = isinstance(exc, ContentDisallowed)
        self._refuse(message, exc, "it is not signed, or not JSON" if is_other else "it is not a valid task")

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002
        name = str(_header(message, "task"))
        self._refuse(message, NotRegistered(name[:200]), "this worker has no task of that name")

    def _refuse(self, message: Any, error: Exception | None, why: str) -> None:
        task_id = _header(message, "id")
        kind = type(error).__name__ if error is not None else "no headers"
        logger.error(
            "refused a message, %s (%s): task %.200r, id %.200r, %d bytes",
            why,
            kind,
            _header(message, "task"),
            task_id,
            len(message.body or ""),
        )
        delivery: Delivery | None = getattr(message, "delivery", None)
        binding = self.app.worker_context.binding
        if delivery is not None:
            name = task_id if isinstance(task_id, str) and task_id else delivery.tag
            context: WorkerContext = self.app.worker_context
            record = delivery.record = context.audit.open_record(name, CallMessage((), {}), delivery)
            text = f"A message was refused: {why} ({kind}). No tool ran."
            record.failure = CallError(ErrorCode.INVALID_MESSAGE, text)
            message.reject_log_error(logger, self.connection_errors)  # what came by remote control takes none
        if isinstance(task_id, str) and task_id and error is not None:
            # kombu calls this also by itself, for what it cannot decode.
            with confined_to(delivery if delivery is not None and binding.covers(delivery.queue) else None):
                # Its own text may quote the body.
                self.app.backend.mark_as_failure(task_id, type(error)(why))
        signals.task_rejected.send(sender=self, message=message, exc=error)


def _stop_if_connected(stop: Callable[[Any], None], consumer: Any) -> None:
    """When Redis was lost, the connection is gone, and stock fails: it asks the connection which errors to ignore."""
    if consumer.connection is not None:
        stop(consumer)


def _handle_command(box: Any, body: Any, message: Any) -> None:
    """As stock, which also subscribes again after every command that fails, and loses those that come meanwhile."""
    box.c.app.clock.forward()
    try:
        box.node.handle_message(body, message)
    except Exception as error:
        _refusals.note("remote control", f"it is not a command ({type(error).__name__})")


def _header(message: Any, name: str) -> Any:
    try:
        return message.headers[name]
    except (KeyError, TypeError):
        return None
