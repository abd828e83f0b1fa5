"""What a worker reports while it runs: liveness files, metrics, events, alerts.

Owns one thread that writes metrics to Redis every few seconds and sends events, and the order in which all reports
begin and end. None of it delays a call.
"""

import logging
import queue
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

from redis.exceptions import RedisError

from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.reporting.alerts import Alert, AlertFeed
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.liveness_files import LivenessFiles
from tarsy_tasks.worker.reporting.metrics_server import MetricsServer
from tarsy_tasks.worker.reporting.session_events import Event, SessionWatch, alert_event
from tarsy_tasks.worker.reporting.webhook import open_webhook
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["Reporting"]

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_FLUSH_S = 5.0
_CLOSE_S = 5.0
_EVENTS_LIMIT = 1000


class Reporting:
    """The reports of one worker, from when it is first ready until it ends.

    Args:
        consumer: Celery's consumer, ready.
        alerts: The alerts of this worker.
        metrics: What this worker counts.
    """

    def __init__(self, consumer: Any, alerts: AlertFeed, metrics: CallMetrics) -> None:
        self._consumer = consumer
        self._redis = consumer.app.backend.client
        self._connections: Mapping[str, ServerConnection] = consumer.pool.connections
        self._instance = consumer.app.worker_instance
        self._events: queue.Queue[Event | None] = queue.Queue(_EVENTS_LIMIT)
        self._metrics = metrics
        self._outage = OutageLog(logger, "the metrics cannot be written to Redis")
        self._watch = SessionWatch(self._connections)
        self._liveness = LivenessFiles(consumer.hostname, consumer.pool.loop)
        self._server = MetricsServer(self._redis, self._connections, metrics)
        self._webhook = open_webhook()
        self._unsubscribe = [alerts.subscribe(self._queue_alert)]
        if self._webhook is not None:
            self._unsubscribe.append(alerts.subscribe(self._webhook.send))
        self._thread = Thread(target=self._report, name="reporting", daemon=True)
        self._thread.start()

    def worker_ready(self, consumer: Any) -> None:
        """The worker takes calls. Called again after each reconnect."""
        self._consumer = consumer
        self._liveness.worker_ready(consumer)

    def worker_stopping(self) -> None:
        """The worker begins to stop. Safe in a signal handler."""
        self._liveness.worker_stopping()

    def close(self) -> None:
        """The worker has ended: write the last metrics, send the last events and alerts."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        with suppress(queue.Full):
            self._events.put_nowait(None)
        self._thread.join(_CLOSE_S)
        if self._webhook is not None:
            self._webhook.close()
        self._server.close()
        self._liveness.close()

    def _queue_alert(self, alert: Alert) -> None:
        with suppress(queue.Full):
            self._events.put_nowait(alert_event(alert))

    def _report(self) -> None:
        self._flush()  # there are no metrics yet, but it reads the time of Redis
        flushed_at = time.monotonic()
        is_open = True
        while is_open:
            event: Event | None = None
            with suppress(queue.Empty):
                event = self._events.get(timeout=_POLL_S)
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
            # Events are sent once; the log and the stream of alerts are complete.
            logger.warning("the event %s was not sent: %s", kind, error)

    def _flush(self) -> None:
        try:
            self._metrics.flush(self._redis, self._instance, self._connections)
        except (RedisError, OSError) as error:
            self._outage.failed(error)
        except Exception:
            logger.exception("the metrics were not written to Redis")
        else:
            self._outage.succeeded()
