"""Redis: can it be reached, does it keep its data, and does its clock agree with this machine's?"""

import time
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urlsplit

import redis as redis_py
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.binding import decide_binding
from tarsy_tasks.doctor.configuration import is_loopback
from tarsy_tasks.doctor.finding import Finding, Severity

__all__ = ["check_binding", "check_broker", "check_url", "connect"]

_REDIS_S = 5.0
_PINGS = 5
_SLOW_S = 0.05
_SKEW_S = 2.0
_FULL = 0.8
_OLDEST = (7, 0)
_TEMPORARY = Finding.ok(
    "redis persistence",
    "the private Valkey of `tarsy-tasks up` keeps nothing when it ends; a deployment needs one with appendonly yes",
)


def check_url(url: str) -> Iterator[Finding]:
    """Check `TARSY_REDIS_URL` itself."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or "localhost"):
        return
    if not parts.password:
        yield Finding.warning(
            "redis url",
            f"no password for {parts.hostname}: anyone who can reach it can make the workers call any tool",
            "create Redis users with passwords (`tarsy-tasks acl`), and put user and password into TARSY_REDIS_URL",
        )
    if parts.scheme == "redis":
        yield Finding.note(
            "redis url",
            f"the connection to {parts.hostname} is not encrypted",
            "use rediss:// unless the network in between is trusted",
        )


def check_binding(canvas: Literal["any", "same_queue"] | None, url: str) -> Iterator[Finding]:
    """Check whether what follows the messages of agents has to stay in their queues."""
    binding = decide_binding(canvas, [url])
    if binding.is_bound:
        text = f"bound, because {binding.reason}: only calls of the same server may follow a call"
        yield Finding.ok("agents", text)
    elif decide_binding(None, [url]).is_bound:
        yield Finding.warning(
            "agents",
            f"not bound, because {binding.reason}: an agent that may call one server can have workers call any other",
            "unset TARSY_CANVAS for the workers, unless every agent may call every server",
        )
    else:
        yield Finding.note(
            "agents",
            f"not bound, because {binding.reason}: every agent can call every server",
            "create Redis users (`tarsy-tasks acl`), if agents may not call every server",
        )


def connect(url: str) -> Any:
    """A client of a Redis that answers, or the finding that says why there is none."""
    where = urlsplit(url).netloc.rpartition("@")[2]
    try:
        redis: Any = redis_py.Redis.from_url(url, socket_timeout=_REDIS_S, socket_connect_timeout=_REDIS_S)  # pyright: ignore[reportUnknownMemberType]
        redis.ping()
    except AuthenticationError as error:
        remedy = "put user and password into TARSY_REDIS_URL: redis://user:password@host:6379/0"
        return Finding.error("redis", f"{where} refused the login: {error}", remedy)
    except (RedisError, OSError, ValueError) as error:
        remedy = "start Redis, or set TARSY_REDIS_URL to its address; `tarsy-tasks up` starts a private one"
        return Finding.error("redis", f"{where} does not answer: {error}", remedy)
    return redis


def check_broker(redis: Any, *, is_temporary: bool = False) -> Iterator[Finding]:
    """Check a Redis that answers.

    Args:
        is_temporary: Whether it is one that `tarsy-tasks up` started, which keeps nothing and is not meant to.
    """
    try:
        info: dict[str, Any] = redis.info("everything")
    except ResponseError as error:
        # Managed services and users with few rights may not.
        info = {}
        text = f"INFO is refused, so persistence, eviction and memory were not checked: {error}"
        yield Finding.note("redis", text, "check them on the Redis server, or allow this user +info")
    yield from _check_writes(redis)
    yield from _check_fetch(redis)
    yield from _check_agents(redis)
    yield from _check_audit(redis)
    yield from _check_latency_and_clock(redis)
    if info:
        yield from _check_kind(info)
        yield from [_TEMPORARY] if is_temporary else _check_persistence(info)
        yield from _check_memory(info)


def _check_writes(redis: Any) -> Iterator[Finding]:
    try:
        redis.set(keys.TRIAL, "", ex=5)
    except ResponseError as error:
        yield Finding.error(
            "redis writes",
            f"Redis refuses writes: {error}",
            "free memory or disk of the server, or set TARSY_REDIS_URL to the primary and to a user that may write",
        )


def _check_fetch(redis: Any) -> Iterator[Finding]:
    try:
        with redis.client() as single:  # what it tracks ends with its connection
            single.execute_command("RPOP", keys.queue(""), 1)
            single.execute_command("CLIENT", "TRACKING", "ON", "OPTIN")
            single.execute_command("CLIENT", "CACHING", "YES")
            single.execute_command("CLIENT", "TRACKING", "OFF")
    except ResponseError as error:
        yield Finding.warning(
            "fetch",
            f"workers that are this user of Redis fetch messages through kombu, which costs more CPU: {error}",
            "if workers use this user, allow it +rpop, +client|tracking and +client|caching, as `tarsy-tasks acl` does",
        )


def _check_agents(redis: Any) -> Iterator[Finding]:
    try:
        redis.spop(keys.agents_key(""), 1)
        redis.zrange(keys.shares_key(""), 0, 0)
    except ResponseError as error:
        yield Finding.warning(
            "agents' queues",
            f"workers that are this user of Redis do not serve the queues of bound agents: {error}",
            "if workers use this user, give it the rights of `worker` that `tarsy-tasks acl` prints",
        )


def _check_audit(redis: Any) -> Iterator[Finding]:
    for key in (keys.AUDIT, keys.AGENT_AUDIT):
        try:
            kind = redis.type(key).decode()
        except ResponseError:
            continue  # not allowed for this user
        if kind not in ("stream", "none"):
            yield Finding.error(
                "audit",
                f"{key} is a {kind}, not a stream: calls are not audited",
                "find out what wrote it, then delete the key; workers and agents create it again",
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
            f"a round trip takes {took_s * 1000:.0f} ms, and a call needs several",
            "run the workers near Redis",
        )
    if abs(skew_s) > _SKEW_S:
        text = f"this machine's clock is {abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} that of Redis"
        yield Finding.warning("clock", text, "synchronize both clocks with NTP")
    else:
        yield Finding.ok("clock", f"{abs(skew_s) * 1000:.0f} ms difference from the clock of Redis")


def _check_kind(info: dict[str, Any]) -> Iterator[Finding]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = str(info.get(f"{name.lower()}_version", "?"))
    parts = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if parts < _OLDEST:
        remedy = "use Redis 7.0, Valkey 7.2 or newer: the scripts of the in-flight table need it"
        yield Finding.error("redis", f"{name} {text} is too old", remedy)
    else:
        yield Finding.ok("redis", f"{name} {text}")
    if info.get("role") == "slave":
        yield Finding.error("redis", "it is a replica, which refuses writes", "set TARSY_REDIS_URL to the primary")
    if info.get("cluster_enabled"):
        text = "it is a cluster, which Celery's Redis transport cannot use"
        yield Finding.error("redis", text, "use a single primary with replicas")


def _check_persistence(info: dict[str, Any]) -> Iterator[Finding]:
    failing = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if failing:
        text = f"writing to disk fails: {', '.join(failing)}"
        yield Finding.error("redis persistence", text, "check the log of Redis; most often the disk is full")
    if info.get("aof_enabled"):
        yield Finding.ok("redis persistence", "appendonly yes")
    else:
        yield Finding.warning(
            "redis persistence",
            "appendonly is off: waiting and running calls are lost when Redis restarts",
            "set appendonly yes",
        )


def _check_memory(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit, used = info.get("maxmemory_policy"), info.get("maxmemory", 0), info.get("used_memory", 0)
    if policy not in (None, "noeviction"):
        text = f"maxmemory-policy is {policy}: calls and results are deleted when memory runs short"
        severity = Severity.ERROR if limit else Severity.WARNING
        text += "" if limit else "; maxmemory is not set yet"
        yield Finding("redis eviction", severity, text, "set maxmemory-policy noeviction")
    elif policy:
        yield Finding.ok("redis eviction", "noeviction")
    size = f"{used / 2**20:.0f} MB"
    if limit and used > _FULL * limit:
        yield Finding.warning(
            "redis memory",
            f"{size} of {limit / 2**20:.0f} MB are used; when all is used, calls are refused",
            "raise maxmemory, or lower result_expires in celeryconfig.py",
        )
    else:
        yield Finding.ok("redis memory", f"{size} used" + (f" of {limit / 2**20:.0f} MB" if limit else ""))
