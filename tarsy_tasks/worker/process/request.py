"""The worker's view of a message: what of it events, logs and `inspect` may show, and how a shutdown ends it.

Owns the overrides of Celery's `Request`; everything else is stock.
"""

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from tarsy_tasks.broker.confinement import confined_to
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.broker.parked_calls import Parking
from tarsy_tasks.broker.parked_views import TASK
from tarsy_tasks.broker.results_elsewhere import announce, forget_state, store_state
from tarsy_tasks.broker.task_names import CALLS, PREFIX
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.process.canvas_rules import keep_headers, rebuild_body
from tarsy_tasks.worker.reporting.audit_writer import Audit

__all__ = ["CallRequest", "show_call"]

logger = logging.getLogger(__name__)

_SHOWN_LIMIT = 200
_MASKED_LIMIT = 1000
_acknowledging = threading.Lock()


def show_call(audit: Audit, arguments: Any) -> str:
    """The tool's name, as events, logs and `inspect` show it in place of all arguments.

    Args:
        arguments: Those of the task, as any producer may have written them.
    """
    found = cast("list[Any]", arguments[:2]) if isinstance(arguments, list | tuple) else []
    words = [word for word in found if isinstance(word, str)]
    return audit.mask_name(".".join(words)[:_MASKED_LIMIT], server=words[0] if words else "")[:_SHOWN_LIMIT]


class CallRequest(Request):
    """Shows the tool's name in place of its arguments, whatever the producer wrote, and cancels without a retry."""

    def __init__(self, message: Any, **options: Any) -> None:
        delivery: Delivery | None = getattr(message, "delivery", None)
        context: WorkerContext = options["app"].worker_context
        self._confinement = delivery if delivery is not None and context.binding.covers(delivery.queue) else None
        try:
            if self._confinement is not None:
                options |= _rebuild(message, options, self._confinement.queue)
            super().__init__(message, **options)
        except (InvalidTaskError, KombuError):  # Celery's consumer knows them
            raise
        except Exception as error:
            raise InvalidTaskError(type(error).__name__) from None
        if delivery is not None and self._type.startswith(PREFIX) and self.id != delivery.tag:
            # Celery also takes the id from the body, as in its first protocol. What is known of one id, such as that it
            # was answered, or approved, must not count for the other.
            raise InvalidTaskError("its id is not in its headers")
        # The tracer would decode it again, in kombu's way.
        self._body, self._content_type, self._content_encoding = self._payload, None, None
        # Any producer may have written the message: its arguments need not even be a list.
        arguments: Any = self._request_dict["args"]
        audit = context.audit
        self._argsrepr = self._request_dict["argsrepr"] = show_call(audit, arguments)
        self._kwargsrepr = self._request_dict["kwargsrepr"] = "{}"
        if delivery is not None:
            delivery.signer = getattr(message, "signer", "")
        # What the transport knows of this delivery, for the call and the result backend.
        if delivery is not None and self._type in CALLS and delivery.record is None:
            found = CallMessage(arguments, self._request_dict["kwargs"], self._type)
            delivery.record = audit.open_record(self.id, found, delivery)
        self._request_dict["delivery"] = delivery

    @property
    def _stock(self) -> Any:
        return super()

    # Celery calls these also from timers, the loop and commands of operators. Each stores, and has sent what follows.

    def _announce_revoked(self, *args: Any, **kwargs: Any) -> None:
        with confined_to(self._confinement):
            self._stock._announce_revoked(*args, **kwargs)

    def on_timeout(self, *args: Any, **kwargs: Any) -> None:
        with confined_to(self._confinement):
            self._stock.on_timeout(*args, **kwargs)

    def on_failure(self, *args: Any, **kwargs: Any) -> None:
        with confined_to(self._confinement):
            self._stock.on_failure(*args, **kwargs)

    def acknowledge(self) -> None:
        """Once. Stock looks first and acknowledges then: a call that ends just when it is revoked, in another thread,
        is acknowledged twice, and the second time ends the worker.
        """
        if self._is_mine_to_end():
            self._on_ack(logger, self._connection_errors)

    def reject(self, requeue: bool = False) -> None:
        """Once, as `acknowledge`."""
        if self._is_mine_to_end():
            delivery: Delivery | None = self._request_dict.get("delivery")
            parking = delivery.parking if delivery is not None else None
            if delivery is None or parking is None:
                self._on_reject(logger, self._connection_errors, requeue)
                self.send_event("task-rejected", requeue=requeue)
                return
            if parking.state_elsewhere:
                state, until = parking.state_elsewhere, parking.until
                self._write_elsewhere(store_state.command(tag=self.id, state=state, ends_at=until))
            # The consumer does it later, and only then it is known whether the call is parked.
            delivery.requeued = partial(self._report_requeued, delivery, parking)
            self._on_reject(logger, self._connection_errors, requeue)

    def _report_requeued(self, delivery: Delivery, parking: Parking) -> None:
        """The call is parked, unless it is one too many, or nobody waits for it any more."""
        if delivery.parking is not None:
            self._report_parked(parking, delivery.queue)
            return
        if parking.state_elsewhere:
            self._write_elsewhere(forget_state.command(tag=self.id, digest=""))
        self.send_event("task-rejected", requeue=True)

    def _write_elsewhere(self, *commands: Sequence[Any]) -> None:
        """Into the Redis of results, which is not that of calls. The call is parked also without."""
        try:
            for command in commands:
                self._app.backend.client.execute_command(*command)
        except (RedisError, OSError) as error:
            logger.warning("the agent of call %s may not hear that it is parked: %s", self.id, error)

    def _report_parked(self, parking: Parking, queue: str) -> None:
        if parking.state_elsewhere:
            self._write_elsewhere(*announce(parking, self.id, queue))
        self.send_event("task-parked", until=parking.until)  # Celery makes a state of it: PARKED
        context: WorkerContext = self._app.worker_context
        if context.reporting is not None and parking.record["reason"] != TASK:
            context.reporting.report_parked(self.id, parking)

    def _is_mine_to_end(self) -> bool:
        with _acknowledging:
            is_first, self.acknowledged = not self.acknowledged, True
        return is_first

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """What `inspect` and Flower ask for; stock gives the arguments themselves unless asked to be safe."""
        return super().info(safe=True)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: ARG002
        """Called by a shutdown for what runs. Stock stores RETRY, and so loses the answer that the task still gives."""
        execution = self._apply_result() if self._apply_result is not None else None
        if execution is not None:
            execution.stop()


def _rebuild(message: Any, options: dict[str, Any], queue: str) -> dict[str, Any]:
    """The options of a request with only what may follow its message, and already decoded: or else Celery decodes the
    original once more.
    """
    body = options.get("body")
    headers: Any = options.get("headers")
    return {
        "body": rebuild_body(body if options.get("decoded") and body is not None else message.payload, queue),
        "headers": keep_headers(message.headers if headers is None else headers),
        "decoded": True,
    }
