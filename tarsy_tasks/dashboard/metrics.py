"""The metrics of all workers in Flower's `/metrics`.

Owns the collector that reads them from Redis when Prometheus asks. This blocks Flower's event loop, hence the short
timeout; an outage of Redis is a metric too.
"""

import logging
from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.shares import count_waiting
from tarsy_tasks.dashboard.redis_clients import build_clients
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.masking.masker import mask_text
from tarsy_tasks.telemetry.health_records import read_health
from tarsy_tasks.telemetry.metrics import known_servers, read_metrics
from tarsy_tasks.telemetry.prometheus import build_health_families, build_metric_families, build_waiting_family

__all__ = ["FleetCollector", "serve_metrics"]

logger = logging.getLogger(__name__)

_REDIS_S = 2.0


def serve_metrics(app: Any) -> None:
    """Add the metrics of an application's workers to the default registry, which Flower serves."""
    prometheus_client.REGISTRY.register(FleetCollector(app, *build_clients(app, _REDIS_S)))


class FleetCollector:
    """Reads the metrics of all workers whenever Prometheus asks.

    Args:
        redis: A client of the result backend.
        broker: One of the broker; it may be the same.
    """

    def __init__(self, app: Any, redis: Any, broker: Any) -> None:
        self._app = app
        self._redis, self._broker = redis, broker

    def describe(self) -> list[Metric]:
        return []  # registering must not read Redis

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("tarsy_redis_up", "Whether Flower could read the metrics of the workers from Redis.")
        try:
            configured = self._configured()
            servers = sorted({*known_servers(self._redis), *configured})
            metrics = read_metrics(self._redis, servers)
            health = read_health(self._redis, servers)
            waiting = count_waiting(self._broker, list(map(keys.queue, servers)))
            dead_letters: int = self._broker.zcard(keys.DEAD_LETTERS)
        except RedisError as error:
            logger.warning("the metrics of the workers cannot be read: %s", mask_text(str(error)))
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield GaugeMetricFamily("tarsy_dead_letters", "Calls with which several workers were lost.", dead_letters)
        yield build_waiting_family(dict(zip(servers, waiting, strict=True)))
        yield from build_metric_families(each for server in servers for each in metrics[server])
        # Metrics of a removed server stay for weeks; it must not look like one that no worker checks.
        yield from build_health_families(
            {server: found for server, found in health.items() if server in configured or found.checked_at is not None}
        )

    def _configured(self) -> list[str]:
        try:
            return list(self._app.mcp_config.enabled_servers)
        except ConfigError:
            return []  # Flower needs no configuration: the servers that have metrics are in Redis
