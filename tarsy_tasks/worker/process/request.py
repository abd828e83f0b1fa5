"""The worker's view of a message: what of it events, logs and `inspect` may show, and how a shutdown ends it.

Owns the overrides of Celery's `Request`; everything else is stock.
"""

import logging
import threading
from typing import Any, cast

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from kombu.exceptions import KombuError

from tarsy_tasks.broker.deliveries import Delivery
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.broker.task_names import CALL_TOOL
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.process import canvas_limits
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        except (InvalidTaskError, KombuError):  # Celery's consumer knows them
            raise
        except Exception as error:
            raise InvalidTaskError(type(error).__name__) from None
        # The tracer would decode it again, in kombu's way.
        self._body, self._content_type, self._content_encoding = self._payload, None, None
        # Any producer may have written the message: its arguments need not even be a list.
        arguments: Any = self._request_dict["args"]
        context: WorkerContext = self._app.worker_context
        audit = context.audit
        self._argsrepr = self._request_dict["argsrepr"] = show_call(audit, arguments)
        self._kwargsrepr = self._request_dict["kwargsrepr"] = "{}"
        # What the transport knows of this delivery, for the call and the result backend.
        message = self._message
        delivery: Delivery | None = getattr(message, "delivery", None)
        if delivery is not None and self._type == CALL_TOOL and delivery.record is None:
            delivery.record = audit.open_record(
                self.id, CallMessage(arguments, self._request_dict["kwargs"]), delivery.queue
            )
        self._request_dict["delivery"] = delivery
        if delivery is not None and context.settings.canvas == "same_queue":
            canvas_limits.require_own_queue(self._payload[2], delivery.queue)

    def acknowledge(self) -> None:
        """Once. Stock looks first and acknowledges then: a call that ends just when it is revoked, in another thread,
        is acknowledged twice, and the second time ends the worker.
        """
        if self._is_mine_to_end():
            self._on_ack(logger, self._connection_errors)

    def reject(self, requeue: bool = False) -> None:
        """Once, as `acknowledge`."""
        if self._is_mine_to_end():
            self._on_reject(logger, self._connection_errors, requeue)
            self.send_event("task-rejected", requeue=requeue)

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
