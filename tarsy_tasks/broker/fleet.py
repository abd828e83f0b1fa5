"""Which workers live, and which MCP servers each of them serves, as they say themselves every few seconds.

Owns the heartbeat in Redis and how it is read, by the clock of Redis. A worker that dies stops saying so and is
forgotten; one that stops says goodbye.
"""

from collections.abc import Iterable
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange

__all__ = ["ALIVE_S", "QUIET", "announce", "depart", "is_alive", "leave", "serving_workers"]

ALIVE_S = 20.0
"""A worker that said nothing for so long is taken for dead."""
QUIET = 0.35
"""Of a lease: longer than between two renewals, so that every owner that lives has renewed when a sweep begins."""
_KEPT_S = 60

_ANNOUNCE = """#!lua flags=allow-oom
local now = redis.call('TIME')[1]
for _, key in ipairs(KEYS) do
    redis.call('ZADD', key, now, ARGV[1])
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now - ARGV[2])
    redis.call('EXPIRE', key, ARGV[2])
end
"""


def announce(exchange: RedisExchange, instance: str, servers: Iterable[str]) -> None:
    """Say that a worker lives and serves these servers.

    Args:
        instance: Name of the worker process; another one in the same place has another name.
    """
    names = [keys.WORKERS, *map(keys.serving_key, servers)]
    exchange.execute(("EVAL", _ANNOUNCE, len(names), *names, instance, _KEPT_S))


def depart(exchange: RedisExchange, instance: str, servers: Iterable[str]) -> None:
    """Say that a worker takes no calls of these servers any more; it lives until its own have ended."""
    names = list(map(keys.serving_key, servers))
    if names:
        exchange.execute(*(("ZREM", name, instance) for name in names))


def leave(exchange: RedisExchange, instance: str) -> None:
    """Say that a worker has ended."""
    exchange.execute(("ZREM", keys.WORKERS, instance))


def is_alive(exchange: RedisExchange, instance: str, within_s: float = ALIVE_S) -> bool:
    """Whether a worker announced lately that it is alive, or could not because Redis was away."""
    return judge_alive(exchange.execute(*alive_commands(instance)), within_s)


def alive_commands(instance: str) -> list[tuple[str, ...]]:
    """What to ask Redis for `judge_alive`."""
    return [("TIME",), ("ZSCORE", keys.WORKERS, instance), ("HMGET", keys.SWEEPS, "last", "quiet_until")]


def judge_alive(replies: list[Any], within_s: float) -> bool:
    """As `is_alive`, from the replies to `alive_commands`."""
    time, score, (swept_at, quiet_until) = replies
    if score is None:
        return False
    now = float(time[0])
    # Nobody swept for that long, because Redis stood still: the next sweep gives all owners time to say that they live.
    is_quiet = now < float(quiet_until or 0) or (swept_at is not None and now - float(swept_at) > within_s * QUIET)
    return now - float(score) < within_s or is_quiet


def serving_workers(redis: Any, servers: Iterable[str]) -> dict[str, list[str]]:
    """The live workers of each server, by server.

    Args:
        redis: A redis-py client of the broker's database.
    """
    names = list(servers)
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    for name in names:
        pipeline.zrange(keys.serving_key(name), 0, -1, withscores=True)
    (seconds, _), *found = pipeline.execute()
    return {
        name: sorted(instance.decode() for instance, said_at in members if seconds - said_at < ALIVE_S)
        for name, members in zip(names, found, strict=True)
    }
