"""Writing the health records of a worker to Redis, with what depends on them: answers to beat's checks, alerts, tools.

Owns the one exchange with Redis per round of checks. It does not decide what a record says.
"""

import logging
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.key_types import delete_wrong_types, is_wrong_type
from tarsy_tasks.catalogue import CATALOGUE_TTL_S, digest_listing
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.telemetry.health_records import RECORD_TTL_S, HealthRecord
from tarsy_tasks.telemetry.history import build_count, health_numbers
from tarsy_tasks.worker.reporting.alerts import AlertFeed, build_observation
from tarsy_tasks.worker.reporting.tool_changes import record_listing
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.listing import Listed

__all__ = ["HealthWriter"]

logger = logging.getLogger(__name__)


class HealthWriter:
    """Writes for one worker, to the Redis of the result backend; `alerts` gets the alerts that the records cause."""

    def __init__(self, connections: Mapping[str, ServerConnection], redis: Any, alerts: AlertFeed, worker: str) -> None:
        self._connections = connections
        self._redis = redis
        self._exchange = RedisExchange(redis.connection_pool)
        self._alerts = alerts
        self._worker = worker
        self._listed: dict[str, Mapping[str, ToolDefinition]] = {}
        self._digests: dict[str, tuple[Mapping[str, ToolDefinition], str]] = {}

    def write(self, records: Mapping[str, HealthRecord], answered: Mapping[str, float | None], now: float) -> None:
        """Write all records in one exchange, in which Redis decides on alerts. `write_tools` is to follow.

        Args:
            answered: Of those that answer a check of beat: how long it waited in its queue, if that is known.

        Raises:
            RedisError, OSError: Redis could not be reached.
        """
        ttl_s = int(RECORD_TTL_S)
        key = keys.worker_health_key(self._worker)
        fields = [word for server, record in records.items() for word in (server, record.model_dump_json())]
        commands: list[tuple[Any, ...]] = [
            ("HSET", key, *fields),
            ("EXPIRE", key, ttl_s),
            ("ZADD", keys.HEALTH_WORKERS, now, self._worker),
            ("ZREMRANGEBYSCORE", keys.HEALTH_WORKERS, "-inf", now - RECORD_TTL_S),
            ("EXPIRE", keys.HEALTH_WORKERS, ttl_s),
        ]
        for server, queue_wait_s in answered.items():
            answer = records[server].model_copy(update={"queue_wait_s": queue_wait_s})
            commands.append(("SET", keys.health_key(server), answer.model_dump_json(), "EX", ttl_s))
        counts = {name: health_numbers(each, came_through_queue=name in answered) for name, each in records.items()}
        commands.append(build_count(now, counts))
        catalogues = [
            (server, key)
            for server in records
            if self._listed_of(server) is not None or records[server].is_idle
            for key in (keys.tools_key(server), keys.approved_tools_key(server))
        ]
        commands += [("EXPIRE", key, CATALOGUE_TTL_S) for _, key in catalogues]
        first = len(commands)
        commands += [("TYPE", key) for _, key in catalogues]
        commands += [build_observation(record) for record in records.values() if not record.is_restarting]
        replies = self._execute(commands)[first:]
        for reply in replies[len(catalogues) :]:
            self._alerts.publish(reply)
        for (server, _), kind in zip(catalogues, replies[: len(catalogues)], strict=True):
            if kind != b"hash":
                self._listed.pop(server, None)

    def rewrite(self, records: Mapping[str, HealthRecord]) -> None:
        """Write records of earlier checks again, about which something else has changed. Raises as `write`."""
        fields = [word for server, record in records.items() for word in (server, record.model_dump_json())]
        key = keys.worker_health_key(self._worker)
        self._execute([("HSET", key, *fields), ("EXPIRE", key, int(RECORD_TTL_S))])

    def _execute(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """The replies; a key of another type is deleted first. May send twice."""
        try:
            return self._exchange.execute(*commands)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            delete_wrong_types(self._redis, {keys.worker_health_key(self._worker): "hash", keys.HEALTH_WORKERS: "zset"})
            return self._exchange.execute(*commands)

    def _listed_of(self, server: str) -> Listed | None:
        """None also for a server that has been removed meanwhile."""
        connection = self._connections.get(server)
        return connection.listed if connection is not None else None

    def digest_of(self, listed: Listed | None) -> str | None:
        """What identifies a list in the record of its server, and in the catalogue."""
        if listed is None:
            return None
        tools, digest = self._digests.get(listed.server.name, (None, ""))
        if tools is not listed.tools:
            digest = digest_listing(listed.build())
            self._digests[listed.server.name] = (listed.tools, digest)
        return digest

    def write_tools(self, server: str) -> None:
        """Write the tools of a server, if they have changed. Raises as `write`."""
        listed = self._listed_of(server)
        if listed is None or listed.tools is self._listed.get(server):
            return
        try:
            record_listing(self._redis, listed.build(), worker=self._worker)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            raise
        except Exception:
            # Only this server's; the next check tries again.
            logger.exception("the tools of MCP server %s were not written to Redis", server)
        else:
            self._listed[server] = listed.tools

    def forget(self, server: str) -> None:
        """Delete this worker's record of a server that it serves no longer. Raises as `write`."""
        self._listed.pop(server, None)
        self._digests.pop(server, None)
        self._exchange.execute(("HDEL", keys.worker_health_key(self._worker), server))

    def withdraw(self) -> None:
        """Delete the records: this worker serves no more. Raises as `write`."""
        self._exchange.execute(
            ("DEL", keys.worker_health_key(self._worker)), ("ZREM", keys.HEALTH_WORKERS, self._worker)
        )
