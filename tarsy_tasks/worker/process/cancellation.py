"""An agent cancels its running call.

Owns the channel on which workers receive this. Celery's remote control would do, but its users can also stop all
workers and read the calls of others, so it is for operators. Here one can only name a call, and only the agent of a
call knows its id.
"""

import logging
from typing import Any, cast

from celery import bootsteps
from celery.utils.collections import AttributeDict
from celery.worker import control, state
from kombu import Consumer, Exchange, Queue
from kombu.common import ignore_errors

from tarsy_tasks.broker import keys

__all__ = ["CancellationStep"]

logger = logging.getLogger(__name__)

_QUEUE_EXPIRES_S = 10.0
"""How long the queue of a lost worker stays known."""


class CancellationStep(bootsteps.StartStopStep):
    """Listens for as long as the worker is connected."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._state: Any = None
        self._consumer: Any = None

    def start(self, parent: Any) -> None:
        self._state = AttributeDict(app=parent.app, consumer=parent)
        queue = Queue(
            f"{parent.app.worker_instance}.{keys.CANCELLATIONS}",
            exchange=Exchange(keys.CANCELLATIONS, type="fanout", durable=False),
            durable=False,
            auto_delete=True,
            expires=_QUEUE_EXPIRES_S,
        )
        self._consumer = Consumer(
            parent.connection.channel(), [queue], callbacks=[self._on_message], accept=["json"], no_ack=True
        )
        self._consumer.on_decode_error = _refuse
        self._consumer.consume()

    def stop(self, parent: Any) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            ignore_errors(parent, consumer.cancel)
            ignore_errors(parent, consumer.channel.close)

    shutdown = stop

    def _on_message(self, body: Any, message: Any) -> None:
        task_id = cast("dict[str, Any]", body).get("id") if isinstance(body, dict) else None
        if not isinstance(task_id, str):
            _refuse(message, None)
        elif task_id in state.requests:
            control.revoke(self._state, task_id, terminate=True)


def _refuse(message: Any, error: Exception | None) -> None:
    logger.error(
        "refused a cancellation that names no call (%s): %d bytes", type(error).__name__, len(message.body or "")
    )
