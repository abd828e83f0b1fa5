"""A worker's own numbers for Prometheus, over HTTP.

Owns the port. It is off unless `TARSY_METRICS_PORT` is set, and on loopback unless `TARSY_METRICS_HOST` is set, because
the names of servers and tools may be confidential. Flower serves the metrics of all workers together.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from redis.exceptions import RedisError

from tarsy_tasks.settings import load_settings
from tarsy_tasks.telemetry.health_records import read_health
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.telemetry.prometheus import build_health_families, build_metric_families
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connection_state import State

__all__ = ["serve_metrics"]

logger = logging.getLogger(__name__)


def serve_metrics(redis: Any, connections: Mapping[str, ServerConnection], metrics: CallMetrics) -> Callable[[], None]:
    """Serve in threads of their own, until the function is called that this returns."""
    settings = load_settings()
    if not settings.metrics_port:
        return lambda: None
    registry = CollectorRegistry()
    registry.register(_WorkerCollector(redis, connections, metrics))
    where = f"{settings.metrics_host}:{settings.metrics_port}"
    try:
        server, _ = start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        # The worker runs without them.
        logger.error(  # noqa: TRY400
            "metrics cannot be served at %s: %s. Give each worker of a machine its own TARSY_METRICS_PORT, or 0.",
            where,
            error.strerror or error,
        )
        return lambda: None
    logger.info("metrics: http://%s/metrics", where)

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


class _WorkerCollector:
    def __init__(self, redis: Any, connections: Mapping[str, ServerConnection], metrics: CallMetrics) -> None:
        self._redis = redis
        self._connections = connections
        self._metrics = metrics
        self._outage = OutageLog(logger, "the health of the MCP servers cannot be read from Redis")

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        connected = GaugeMetricFamily(
            "tarsy_session_connected", "Whether this worker has a session with the MCP server.", labels=["server"]
        )
        for server, connection in self._connections.items():
            connected.add_metric([server], float(connection.state is State.CONNECTED))
        yield connected
        yield from build_metric_families(self._metrics.snapshot())
        try:
            health = read_health(self._redis, self._connections)
        except RedisError as error:
            self._outage.failed(error)
        else:
            self._outage.succeeded()
            yield from build_health_families(health)
