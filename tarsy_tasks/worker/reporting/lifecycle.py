"""What a worker reports while it runs: liveness files, metrics, running calls, lines of servers, events, alerts.

Owns one thread that writes what is for Redis every few seconds and sends events, and the order in which all reports
begin and end. None of it delays a call.

The types of events are `worker-mcp-connected`, `worker-mcp-disconnected`, `worker-mcp-error` for each server of a
worker, `worker-mcp-tools-changed`, and `worker-mcp-healthy`, `worker-mcp-unhealthy` for alerts. They are of the group
`worker`, which needs no `-E` to be sent. Those of servers are also published for agents, as `ServerEvent`.
"""

import logging
import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_calls import Parking
from tarsy_tasks.server_events import ServerEvent
from tarsy_tasks.settings import load_settings
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.reporting.alerts import Alert, AlertFeed
from tarsy_tasks.worker.reporting.approval_requests import APPROVAL, ApprovalRequest
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.liveness_files import LivenessFiles
from tarsy_tasks.worker.reporting.metrics_server import serve_metrics
from tarsy_tasks.worker.reporting.running_report import write_running_report
from tarsy_tasks.worker.reporting.server_lines import ServerLines
from tarsy_tasks.worker.reporting.session_watch import SessionEvent, SessionWatch
from tarsy_tasks.worker.reporting.webhook import open_webhooks
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["Reporting"]

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_FLUSH_S = 5.0
_CLOSE_S = 5.0
_EVENTS_LIMIT = 1000

Event = tuple[str, dict[str, Any]]
"""Type and fields."""


class Reporting:
    """The reports of one worker, from when it is first ready until it ends."""

    def __init__(
        self, consumer: Any, alerts: AlertFeed, metrics: CallMetrics, audit: Audit, lines: ServerLines
    ) -> None:
        self._consumer = consumer
        self._redis = consumer.app.backend.client
        self._connections: Mapping[str, ServerConnection] = consumer.pool.connections
        self._instance = consumer.app.worker_instance
        self._events: queue.Queue[Event | None] = queue.Queue(_EVENTS_LIMIT)
        self._metrics = metrics
        self._audit = audit
        self._lines = lines
        self._outage = OutageLog(logger, "the metrics cannot be written to Redis")
        self._unpublished = OutageLog(logger, "events of MCP servers cannot be published")
        self._worker = str(consumer.hostname)
        self._watch = SessionWatch(self._connections)
        self._liveness = LivenessFiles(consumer.hostname, consumer.pool.loop)
        self._stop_serving = serve_metrics(self._redis, self._connections, metrics)
        self._webhook, self._approvals = open_webhooks()
        self._settings = load_settings()
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
        for webhook in (self._webhook, self._approvals):
            if webhook is not None:
                webhook.close()
        self._stop_serving()
        self._lines.close()
        self._liveness.close()

    def report_parked(self, task_id: str, parking: Parking) -> None:
        """A call waits for people: send the event, and for an approval the webhook's request. Safe in any thread."""
        request, reason = ApprovalRequest.of(task_id, parking, self._settings), parking.record["reason"]
        if self._approvals is not None and reason == APPROVAL:
            self._approvals.send(request)
        fields = request.model_dump(include={"server", "tool", "agent_id", "expires_at", "approvers"})
        fields["reason"] = reason
        with suppress(queue.Full):
            self._events.put_nowait(("worker-mcp-parked", {"uuid": task_id, **fields}))

    def _queue_alert(self, alert: Alert) -> None:
        fields = {"server": alert.server, "alert_id": alert.id, "lasted_s": alert.lasted_s, "error": alert.error}
        with suppress(queue.Full):
            self._events.put_nowait((f"worker-mcp-{alert.status}", fields))

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
            if changes := list(self._watch.changes()):
                for kind, fields in changes:
                    self._send((f"worker-mcp-{kind.replace('_', '-')}", fields))
                self._publish(changes)
            if time.monotonic() - flushed_at >= _FLUSH_S or not is_open:
                flushed_at = time.monotonic()
                self._flush()

    def _send(self, event: Event) -> None:
        if (dispatcher := self._consumer.event_dispatcher) is None:
            return
        kind, fields = event
        try:
            dispatcher.send(kind, **fields)
        except Exception as error:
            # Events are sent once; the log and the stream of alerts are complete.
            logger.warning("the event %s was not sent: %s", kind, error)

    def _publish(self, changes: Sequence[SessionEvent]) -> None:
        """For agents that listen."""
        try:
            now = self._metrics.clock.now()
            with self._redis.pipeline(transaction=False) as pipeline:
                for kind, fields in changes:
                    event = ServerEvent.model_validate({"kind": kind, "worker": self._worker, "at": now, **fields})
                    pipeline.publish(keys.SERVER_EVENTS, event.model_dump_json())
                pipeline.execute()
        except (RedisError, OSError, RuntimeError) as error:  # also before the time of Redis is known
            self._unpublished.failed(error)
        except Exception:
            logger.exception("events of MCP servers were not published")
        else:
            self._unpublished.succeeded()

    def _flush(self) -> None:
        try:
            self._metrics.flush(self._redis, self._instance, self._connections)
            write_running_report(self._redis, self._instance, self._audit)
            self._lines.write(self._redis)
        except (RedisError, OSError) as error:
            self._outage.failed(error)
        except Exception:
            logger.exception("the metrics were not written to Redis")
        else:
            self._outage.succeeded()
