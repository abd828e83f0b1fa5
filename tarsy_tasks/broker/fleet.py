"""Which workers are alive, and which MCP servers each of them serves.

Owns the heartbeat in Redis and how it is read, by the clock of Redis. Each worker writes it every few seconds, and
removes it when it stops.
"""

from collections.abc import Iterable
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.script import Key, constants, script

__all__ = [
    "ALIVE_S",
    "IS_ALIVE",
    "QUIET",
    "announce",
    "depart",
    "is_alive",
    "leave",
    "resume",
    "serving_workers",
    "suspend",
]

ALIVE_S = 20.0
"""A worker without a heartbeat for that long is considered dead."""
QUIET = 0.35
"""Share of a lease; longer than between two renewals, so that every live owner has renewed when a sweep begins."""
_KEPT_S = 3600
"""A worker of which nothing was heard for so long is forgotten: longer than an outage of Redis, in which nothing can be
heard of those that live."""

IS_ALIVE = (
    constants(heartbeats=keys.WORKERS, last_sweeps=keys.SWEEPS, quiet=QUIET)
    + r"""
    local function is_alive(instance, within_s)
        local said_at = redis.call('ZSCORE', heartbeats, instance)
        if not said_at then return false end
        if now - said_at < within_s then return true end
        local last, quiet_until = unpack(redis.call('HMGET', last_sweeps, 'last', 'quiet_until'))
        return now < tonumber(quiet_until or '0') or last and now - last > within_s * quiet
    end
    """
)
"""In Lua, `is_alive`. It needs `NOW`."""


@script(
    """
    local now = redis.call('TIME')[1]
    for _, index in ipairs(indexes) do
        redis.call('ZADD', index, now, instance)
        redis.call('ZREMRANGEBYSCORE', index, '-inf', now - kept_s)
        redis.call('EXPIRE', index, kept_s)
    end
    """
)
def _announce(*indexes: Key, instance: str, kept_s: int) -> None: ...


def announce(exchange: RedisExchange, instance: str, servers: Iterable[str]) -> None:
    """Write the heartbeat of a worker that serves these servers. `instance` names its process; the next process of the
    same worker has another name."""
    _announce.run(exchange, keys.WORKERS, *map(keys.serving_key, servers), instance=instance, kept_s=_KEPT_S)


def depart(exchange: RedisExchange, instance: str, servers: Iterable[str]) -> None:
    """Record that a worker takes no more calls of these servers; it stays alive until its own calls have ended."""
    names = list(map(keys.serving_key, servers))
    if names:
        exchange.execute(*(("ZREM", name, instance) for name in names))


# Returns whether another live worker of the server has not suspended it.
@script(
    f"""
    local now = tonumber(redis.call('TIME')[1])
    redis.call('ZADD', suspended, now + left_s, instance)
    redis.call('ZREMRANGEBYSCORE', suspended, '-inf', now)
    redis.call('EXPIRE', suspended, math.ceil(left_s) + 1)
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', serving, now - {ALIVE_S}, '+inf')) do
        if other ~= instance and not redis.call('ZSCORE', suspended, other) then return 1 end
    end
    return 0
    """
)
def _suspend(*, suspended: Key, serving: Key, instance: str, left_s: float) -> int: ...


def suspend(exchange: RedisExchange, instance: str, server: str, left_s: float) -> bool:
    """Record that a worker has suspended a server, for so many seconds more; whether another one can take its calls."""
    suspended, serving = keys.suspended_key(server), keys.serving_key(server)
    return bool(_suspend.run(exchange, suspended=suspended, serving=serving, instance=instance, left_s=left_s))


def resume(exchange: RedisExchange, instance: str, server: str) -> None:
    """Record that a worker takes the calls of a server again."""
    exchange.execute(("ZREM", keys.suspended_key(server), instance))


def leave(exchange: RedisExchange, instance: str) -> None:
    """Record that a worker has stopped."""
    exchange.execute(("ZREM", keys.WORKERS, instance))


def ask_alive(instance: str) -> list[tuple[str, ...]]:
    """The commands whose replies `is_alive` judges."""
    return [("TIME",), ("ZSCORE", keys.WORKERS, instance), ("HMGET", keys.SWEEPS, "last", "quiet_until")]


def is_alive(replies: list[Any], within_s: float = ALIVE_S) -> bool:
    """Whether a worker has a fresh heartbeat, or could not write one because Redis was unavailable."""
    time, score, (swept_at, quiet_until) = replies
    if score is None:
        return False
    now = float(time[0])
    # Nobody has swept for that long, because Redis stood still: the next sweep gives all owners time to write theirs.
    is_quiet = now < float(quiet_until or 0) or (swept_at is not None and now - float(swept_at) > within_s * QUIET)
    return now - float(score) < within_s or is_quiet


def ask_serving(server: str, now: float) -> tuple[str, ...]:
    """The command that finds the live workers of a server; `now` is the time of Redis."""
    return ("ZRANGE", keys.serving_key(server), f"({now - ALIVE_S}", "+inf", "BYSCORE")


def serving_workers(redis: Any, servers: Iterable[str]) -> dict[str, list[str]]:
    """The live workers of each server, by server; `redis` is a redis-py client of the broker's database."""
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
