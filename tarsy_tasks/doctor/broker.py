"""Redis: is it there, does it keep what it is given, and does its clock agree with this machine's?"""

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import redis as redis_py
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.doctor.configuration import is_loopback
from tarsy_tasks.doctor.finding import Finding

__all__ = ["Unreachable", "check_broker", "check_url", "connect"]

_REDIS_S = 5.0
_PINGS = 5
_SLOW_S = 0.05
_SKEW_S = 2.0
_FULL = 0.8
_OLDEST = (7, 0)


class Unreachable(Exception):
    """There is no Redis to look at.

    Attributes:
        finding: What was found in its place.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


def check_url(url: str) -> Iterator[Finding]:
    """Look at `TARSY_REDIS_URL` itself."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or "localhost"):
        return
    if not parts.password:
        yield Finding.warning(
            "redis url",
            f"no password for {parts.hostname}: whoever reaches it can have the workers call any tool",
            "give Redis users with passwords (ACL), and write the password into TARSY_REDIS_URL",
        )
    if parts.scheme == "redis":
        yield Finding.note(
            "redis url",
            f"what goes to {parts.hostname} is not encrypted",
            "rediss:// if the network between is not your own",
        )


def connect(url: str) -> Any:
    """A client that has been answered.

    Raises:
        Unreachable: Nobody answers, or not to us.
    """
    where = urlsplit(url).netloc.rpartition("@")[2]
    try:
        redis: Any = redis_py.Redis.from_url(url, socket_timeout=_REDIS_S, socket_connect_timeout=_REDIS_S)  # pyright: ignore[reportUnknownMemberType]
        redis.ping()
    except AuthenticationError as error:
        remedy = "write user and password into TARSY_REDIS_URL: redis://user:password@host:6379/0"
        raise Unreachable(Finding.error("redis", f"{where} does not let us in: {error}", remedy)) from None
    except (RedisError, OSError, ValueError) as error:
        remedy = "start Redis, or set TARSY_REDIS_URL to where it is; `tarsy-tasks up` brings one along"
        raise Unreachable(Finding.error("redis", f"{where} does not answer: {error}", remedy)) from None
    return redis


def check_broker(redis: Any) -> Iterator[Finding]:
    """Look at a Redis that answers."""
    try:
        info: dict[str, Any] = redis.info("everything")
    except ResponseError as error:
        # Managed ones, and users with few rights, cannot say.
        info = {}
        yield Finding.note("redis", f"it does not tell how it is set up: {error}", "look at its settings where it runs")
    yield from _check_writes(redis)
    yield from _check_audit(redis)
    yield from _check_latency_and_clock(redis)
    if info:
        yield from _check_kind(info)
        yield from _check_persistence(info)
        yield from _check_memory(info)


def _check_writes(redis: Any) -> Iterator[Finding]:
    try:
        redis.set(keys.TRIAL, "", ex=5)
    except ResponseError as error:
        yield Finding.error(
            "redis writes",
            f"it takes none: {error}",
            "free memory or disk where it runs, or point TARSY_REDIS_URL to the primary, with a user that may write",
        )


def _check_audit(redis: Any) -> Iterator[Finding]:
    for key in (keys.AUDIT, keys.AGENT_AUDIT):
        try:
            kind = redis.type(key).decode()
        except ResponseError:
            continue  # a user with few rights cannot say
        if kind not in ("stream", "none"):
            yield Finding.error(
                "audit",
                f"{key} is a {kind} and no stream: calls leave no trace",
                "find out who wrote it, then delete the key; workers and agents make it anew",
            )


def _check_latency_and_clock(redis: Any) -> Iterator[Finding]:
    rounds: list[tuple[float, float]] = []
    for _ in range(_PINGS):
        before = time.time()
        seconds, microseconds = redis.time()
        after = time.time()
        rounds.append((after - before, seconds + microseconds / 1e6 - (before + after) / 2))
    took_s, skew_s = min(rounds)
    if took_s > _SLOW_S:
        yield Finding.warning(
            "redis latency",
            f"an answer takes {took_s * 1000:.0f} ms, and a call needs several",
            "run the workers near Redis",
        )
    if abs(skew_s) > _SKEW_S:
        text = f"this machine's is {abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} that of Redis"
        yield Finding.warning("clock", text, "let NTP set both")
    else:
        yield Finding.ok("clock", f"{abs(skew_s) * 1000:.0f} ms from that of Redis")


def _check_kind(info: dict[str, Any]) -> Iterator[Finding]:
    is_valkey = "valkey_version" in info
    name = "Valkey" if is_valkey else "Redis"
    text = str(info.get("valkey_version" if is_valkey else "redis_version", "?"))
    parts = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if parts < _OLDEST:
        yield Finding.error(
            "redis",
            f"{name} {text} is too old",
            "use Redis 7.0, Valkey 7.2 or newer: the scripts that keep the books need it",
        )
    else:
        yield Finding.ok("redis", f"{name} {text}")
    if info.get("role") == "slave":
        yield Finding.error("redis", "this is a replica, which takes no writes", "set TARSY_REDIS_URL to the primary")
    if info.get("cluster_enabled"):
        yield Finding.error(
            "redis", "it is a cluster, which Celery's Redis transport cannot use", "use a single primary, with replicas"
        )


def _check_persistence(info: dict[str, Any]) -> Iterator[Finding]:
    failing = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if failing:
        yield Finding.error(
            "redis persistence", f"it fails: {', '.join(failing)}", "look at its log; mostly the disk is full"
        )
    if info.get("aof_enabled"):
        yield Finding.ok("redis persistence", "appendonly yes")
    else:
        yield Finding.warning(
            "redis persistence",
            "appendonly is off: calls that wait or run are lost when Redis is restarted",
            "appendonly yes",
        )


def _check_memory(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit, used = info.get("maxmemory_policy"), info.get("maxmemory", 0), info.get("used_memory", 0)
    if policy not in (None, "noeviction"):
        text = f"maxmemory-policy is {policy}: calls and results are thrown away when memory is short"
        remedy = "maxmemory-policy noeviction"
        yield (
            Finding.error("redis eviction", text, remedy)
            if limit
            else Finding.warning("redis eviction", f"{text}; no maxmemory is set yet", remedy)
        )
    elif policy:
        yield Finding.ok("redis eviction", "noeviction")
    size = f"{used / 2**20:.0f} MB"
    if limit and used > _FULL * limit:
        yield Finding.warning(
            "redis memory",
            f"{size} of {limit / 2**20:.0f} MB are used; when it is full, calls are refused",
            "raise maxmemory, or lower result_expires in celeryconfig.py",
        )
    else:
        yield Finding.ok("redis memory", f"{size} used" + (f" of {limit / 2**20:.0f} MB" if limit else ""))
