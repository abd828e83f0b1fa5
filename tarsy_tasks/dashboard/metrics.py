"""The metrics of all workers in Flower's `/metrics`.

Owns the collector that reads them from Redis when Prometheus asks. Flower asks from its event loop, so a Redis that
does not answer is given little time; that it did not, is a metric, too.
"""

import logging
from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from redis.exceptions import RedisError

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.masking.masker import mask_text
from tarsy_tasks.telemetry.health_records import read_health
from tarsy_tasks.telemetry.metrics import known_servers, read_metrics
from tarsy_tasks.telemetry.prometheus import build_health_families, build_metric_families

__all__ = ["serve_metrics"]

logger = logging.getLogger(__name__)

_REDIS_S = 2.0


def serve_metrics(app: Any) -> None:
    """Let Flower, which serves the default registry, show the metrics of an application's workers."""
    prometheus_client.REGISTRY.register(_FleetCollector(app))


class _FleetCollector:
    def __init__(self, app: Any) -> None:
        self._app = app
        patience = {"socket_timeout": _REDIS_S, "socket_connect_timeout": _REDIS_S}
        self._redis = app.backend._create_client(**{**app.backend.connparams, **patience})

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering must not ask Redis."""
        return []

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("tarsy_redis_up", "Whether Flower could read the metrics of the workers from Redis.")
        try:
            configured = self._configured()
            servers = sorted({*known_servers(self._redis), *configured})
            metrics = read_metrics(self._redis, servers)
            health = read_health(self._redis, servers)
        except RedisError as error:
            logger.warning("the metrics of the workers cannot be read: %s", mask_text(str(error)))
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from build_metric_families(each for server in servers for each in metrics[server])
        # One that was removed or renamed has numbers for weeks yet, but is no server that nobody checks.
        yield from build_health_families(
            {server: found for server, found in health.items() if server in configured or found.checked_at is not None}
        )

    def _configured(self) -> list[str]:
        try:
            return list(self._app.mcp_config.enabled_servers)
        except ConfigError:
            return []  # Flower needs no configuration: what workers have counted, it knows from Redis
