"""Which workers serve which MCP server, as anyone with access to Redis may read it.

Owns how their heartbeats are read back.
"""

from collections.abc import Iterable
from typing import Any

from tarsy_tasks import keys

__all__ = ["serving_workers"]

_LIVE_S = 20.0


def serving_workers(redis: Any, servers: Iterable[str]) -> dict[str, list[str]]:
    """The worker instances with a heartbeat of the last 20 s, for each server.

    Args:
        redis: A client of the database that workers write to, such as `app.backend.client`.
    """
    names = list(servers)
    seconds, microseconds = redis.time()
    since = seconds + microseconds / 1e6 - _LIVE_S
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.zrangebyscore(keys.serving_key(name), since, "+inf")
        found: list[list[bytes] | Exception] = pipeline.execute(raise_on_error=False)
    return {
        name: [] if isinstance(members, Exception) else [member.decode(errors="replace") for member in members]
        for name, members in zip(names, found, strict=True)
    }
