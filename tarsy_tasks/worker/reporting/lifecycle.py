"""What a worker tells operators while it runs: beats, metrics, events, alerts.

Owns one thread that writes numbers to Redis every few seconds and sends events, and the order in which everything here
begins and ends. Nothing of it is in the way of a call; if Redis is gone, it waits with it.
"""

import logging
import queue
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

from redis.exceptions import RedisError

from tarsy_tasks.worker.reporting import alerts
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.liveness_files import LivenessFiles
from tarsy_tasks.worker.reporting.metrics_server import MetricsServer
from tarsy_tasks.worker.reporting.session_events import Event, SessionWatch, alert_event
from tarsy_tasks.worker.reporting.webhook import open_webhook
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["Reporting"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_FLUSH_S = 5.0
_CLOSE_S = 5.0
_EVENTS_LIMIT = 1000


class Reporting:
    """Of one worker, from its first being ready to its end.

    Args:
        consumer: Celery's consumer, ready.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._redis = consumer.app.backend.client
        self._connections: Mapping[str, ServerConnection] = consumer.pool.connections
        self._metrics: CallMetrics = consumer.app.worker_context.metrics
        self._instance = consumer.app.worker_instance
        self._events: queue.Queue[Event | None] = queue.Queue(_EVENTS_LIMIT)
        self._watch = SessionWatch(self._connections)
        self._beats = LivenessFiles(consumer.hostname, consumer.pool.loop)
        self._server = MetricsServer(self._redis, self._connections, self._metrics)
        self._webhook = open_webhook()
        self._unsubscribe = [alerts.subscribe(self._queue_alert)]
        if self._webhook is not None:
            self._unsubscribe.append(alerts.subscribe(self._webhook.tell))
        self._thread = Thread(target=self._report, name="reporting", daemon=True)
        self._thread.start()

    def is_ready(self, consumer: Any) -> None:
        """The worker takes calls; said again after each reconnect."""
        self._consumer = consumer
        self._beats.is_ready(consumer)

    def is_stopping(self) -> None:
        """The worker was told to stop. Safe in a signal handler."""
        self._beats.is_stopping()

    def close(self) -> None:
        """The worker has ended: what it counted last goes to Redis, what is to be told is told."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        with suppress(queue.Full):
            self._events.put_nowait(None)
        self._thread.join(_CLOSE_S)
        if self._webhook is not None:
            self._webhook.close()
        self._server.close()
        self._beats.close()

    def _queue_alert(self, alert: alerts.Alert) -> None:
        with suppress(queue.Full):
            self._events.put_nowait(alert_event(alert))

    def _report(self) -> None:
        self._flush()  # nothing yet, but from now on the time of Redis is known
        flushed_at = time.monotonic()
        is_open = True
        while is_open:
            event: Event | None = None
            with suppress(queue.Empty):
                event = self._events.get(timeout=_LOOK_S)
                is_open = event is not None
            if event is not None:
                self._send(event)
            for change in self._watch.changes():
                self._send(change)
            if time.monotonic() - flushed_at >= _FLUSH_S or not is_open:
                flushed_at = time.monotonic()
                self._flush()

    def _send(self, event: Event) -> None:
        dispatcher = self._consumer.event_dispatcher
        if dispatcher is None:
            return
        kind, fields = event
        try:
            dispatcher.send(kind, **fields)
        except Exception as error:
            # Whoever wants to miss nothing reads the log or the stream of alerts: events are sent once.
            logger.warning("the event %s was not sent: %s", kind, error)

    def _flush(self) -> None:
        try:
            self._metrics.flush(self._redis, self._instance, self._connections)
        except (RedisError, OSError) as error:
            logger.warning("the metrics were not written to Redis: %s", error)
        except Exception:
            logger.exception("the metrics were not written to Redis")


_current: Reporting | None = None
"""There is one worker a process, and Celery's signals carry no state."""


def is_ready(consumer: Any) -> None:
    """Begin to report, or go on after a reconnect."""
    global _current
    _current = _current or Reporting(consumer)
    _current.is_ready(consumer)


def is_stopping() -> None:
    """The worker was told to stop. Safe in a signal handler."""
    if _current is not None:
        _current.is_stopping()


def close() -> None:
    """Report the end."""
    global _current
    ended, _current = _current, None
    if ended is not None:
        ended.close()
