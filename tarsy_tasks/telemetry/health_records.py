"""Health records in Redis, and the health of a server according to all its fresh records.

Owns the shape of a record and the verdict. Workers write them (`worker.reporting.health_checks`): each worker records
the health of its servers as it finds it, and one records the result of the check that beat sent through the server's
queue. A record older than `RECORD_TTL_S`, by the clock of Redis, does not count.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tarsy_tasks.broker import keys

__all__ = [
    "CHECK_INTERVAL_S",
    "RECORD_TTL_S",
    "HealthRecord",
    "HealthStatus",
    "ServerHealth",
    "TakenConfiguration",
    "fails_its_calls",
    "is_fresh",
    "judge_health",
    "parse_record",
    "read_health",
]

CHECK_INTERVAL_S = 15.0
RECORD_TTL_S = 3 * CHECK_INTERVAL_S
_LONG_WAIT_S = 5.0
_FEWEST_CALLS = 5
_FAILING_SHARE = 0.9
"""Tools may refuse some calls, and models may make wrong ones; a server that fails nearly all calls is not healthy."""


@dataclass(frozen=True)
class TakenConfiguration:
    """Which configuration a worker has: its version, and why it has not taken the one that was saved since; whether it
    lists its tools to all agents alike."""

    version: str
    error: str | None = None
    lists_to_all: bool = False

    @property
    def fields(self) -> dict[str, str | bool | None]:
        """The fields of its health records."""
        return {
            "configuration": self.version,
            "configuration_error": self.error,
            "lists_to_all": self.lists_to_all,
        }


class HealthStatus(StrEnum):
    """Whether a server can be used."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Some of its workers cannot use it, it is busy, or its checks pass and its calls fail."""
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"
    """There is no fresh record: no worker serves it, or beat sends no checks."""


class HealthRecord(BaseModel):
    """The health of one server, as one worker found it.

    Attributes:
        error: Why it is not healthy, with the end of the server's output; None when it is.
        error_code: The `ErrorCode` of calls that it cannot run because of that; None if no code says it.
        target: The program or the address that the worker connects to, masked; without credentials.
        is_busy: It ran calls and did not list its tools meanwhile, like a server that does one thing at a time.
        is_restarting: Its process was lost and is being started again: it is not healthy, but there is no alert yet.
        is_idle: It starts on demand and does not run, because nobody needs it now, or only agents have sessions with
            it (`state` is `per_agent`): it is healthy.
        longer_attempt_s: The program of a server took too long to start, as one does that is downloaded first, and the
            next attempt may take so many seconds; None otherwise.
        latency_s: Seconds that the check took in the worker; None when a recent answer to a call made it unnecessary.
        queue_wait_s: Seconds that the check waited in its queue while the worker that took it was taking messages, by
            the clock of Redis; None for a worker's own checks.
        tool_count: How many tools the server lists, or listed before it was idle; None when it did not answer.
        checked_at: When the server last answered, or last failed to: seconds since the epoch, by the clock of Redis.
        since: Since when it is healthy, or not healthy, for this worker; by the same clock.
        recent_calls: Calls of the last minutes that this worker sent to it, at most 20.
        failed_calls: How many of them had no result, or an error.
        worker: Name of the worker.
        transport: `stdio`, `http` or `sse`.
        protocol: Version of MCP that the session speaks; None without a session.
        era: `handshake` for versions before 2026-07-28, `2026` for later ones; None without a session.
        server_info: Name and version that the server reports; None without a session.
        sessions_opened: How many shared sessions this worker has had. All but the first replaced one, or began after an
            idle time.
        is_held: An operator has disconnected the server.
        max_concurrency: How many of the server's calls this worker runs at once.
        configuration: Version of the configuration that this worker has, policy included.
        configuration_error: Why it has not taken the one that was saved since; None if it has.
        state: Of the worker's shared session: `connected`, `connecting`, `reconnecting`, `idle`, `per_agent`, `error`
            or `disconnected`.
        connected_since: When that session was opened, by the clock of Redis; None without one.
        capabilities: What the server offers, in MCP's words: `tools`, `tools.listChanged`, `resources` …
        last_error: Why the last attempt that failed to open a session did so, also when there is one again; masked.
        in_flight: Its calls that run in this worker.
        sessions_replaced: How many of the shared sessions replaced one that was lost.
        tools_digest: `catalogue.digest_listing` of what the server lists, also while it is idle; None if the worker has
            no list, or each agent its own.
        lists_to_all: The worker lists its tools to all agents alike: it has no policy, and takes unsigned messages.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = 1
    server: str
    healthy: bool
    error: str | None = None
    error_code: str | None = None
    target: str | None = None
    is_busy: bool = False
    is_restarting: bool = False
    is_idle: bool = False
    longer_attempt_s: float | None = None
    latency_s: float | None = None
    queue_wait_s: float | None = None
    tool_count: int | None = None
    checked_at: float = Field(allow_inf_nan=False)
    since: float | None = None
    recent_calls: int = 0
    failed_calls: int = 0
    worker: str
    transport: str | None = None
    protocol: str | None = None
    era: str | None = None
    server_info: str | None = None
    sessions_opened: int = 0
    is_held: bool = False
    max_concurrency: int | None = None
    configuration: str | None = None
    configuration_error: str | None = None
    state: str | None = None
    connected_since: float | None = None
    capabilities: tuple[str, ...] = ()
    last_error: str | None = None
    in_flight: int = 0
    sessions_replaced: int = 0
    tools_digest: str | None = None
    lists_to_all: bool = False


class ServerHealth(BaseModel):
    """The health of a server, according to all its fresh records.

    Attributes:
        reason: Why it is not healthy, for people and for models; empty when it is.
        checked_at: When the newest of the records was made, by the clock of Redis; None when there is none.
        age_s: How long ago that was.
        since: When a worker's verdict last changed, by the same clock.
        recent_calls: Calls of the last minutes, over all workers, at most 20 each.
        failed_calls: How many of them had no result, or an error.
        is_idle: It starts on demand, and runs nowhere, because nobody needs it now.
        check: The record of the last check that came through the queue.
        workers: The record of each worker, by its name.
        skipped: What could not be read in Redis, a phrase each.
    """

    model_config = ConfigDict(frozen=True)

    server: str
    status: HealthStatus
    reason: str = ""
    checked_at: float | None = None
    age_s: float | None = None
    since: float | None = None
    latency_s: float | None = None
    queue_wait_s: float | None = None
    tool_count: int | None = None
    recent_calls: int = 0
    failed_calls: int = 0
    is_idle: bool = False
    check: HealthRecord | None = None
    workers: dict[str, HealthRecord] = Field(default_factory=dict[str, HealthRecord])
    skipped: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return self.status is HealthStatus.HEALTHY

    @property
    def warning(self) -> str:
        """For a prompt or a page, one or two sentences; empty for a healthy server."""
        name = f"MCP server `{self.server}`"
        sentences: list[str] = []
        if self.reason:
            sentences.append(self.reason if self.reason.startswith(name) else f"{name} is {self.status}: {self.reason}")
        if self.queue_wait_s is not None and self.queue_wait_s > _LONG_WAIT_S:
            sentences.append(
                f"Checks of {name} wait {self.queue_wait_s:.0f} s in their queue; workers may be overloaded."
            )
        if self.skipped:
            sentences.append(f"About {name}: {'; '.join(self.skipped)}.")
        return " ".join(sentences)


def read_health(redis: Any, servers: Iterable[str]) -> dict[str, ServerHealth]:
    """The health of each server, from a redis-py client of the database that workers write to."""
    from tarsy_tasks.broker.key_types import execute_reading

    names = list(servers)
    if not names:
        return {}
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    pipeline.zrange(keys.HEALTH_WORKERS, 0, -1)
    pipeline.mget([keys.health_key(name) for name in names])
    (seconds, microseconds), members, checks = execute_reading(pipeline)
    unlisted = ["the list of workers cannot be read, because its key has another type"] if members is None else []
    workers = [member.decode("utf-8", "replace") for member in members or ()]
    pipeline = redis.pipeline(transaction=False)
    for worker in workers:
        pipeline.hmget(keys.worker_health_key(worker), names)
    reports: list[list[bytes | None] | None] = execute_reading(pipeline) if workers else []
    now = seconds + microseconds / 1e6
    found: dict[str, ServerHealth] = {}
    for position, (name, check) in enumerate(zip(names, checks, strict=True)):
        skipped = list(unlisted)
        own = (
            parse_record(b"" if each is None else each[position], name, f"the record of worker {worker}", skipped)
            for worker, each in zip(workers, reports, strict=True)
        )
        found[name] = judge_health(
            name,
            parse_record(check, name, "the record of the last check", skipped),
            [record for record in own if record is not None],
            now,
            skipped,
        )
    return found


def fails_its_calls(recent: int, failed: int) -> bool:
    """Whether a server is not healthy, although its checks pass, because so many of its recent calls failed."""
    return recent >= _FEWEST_CALLS and failed >= _FAILING_SHARE * recent


def judge_health(
    server: str, check: HealthRecord | None, reports: Sequence[HealthRecord], now: float, skipped: Sequence[str] = ()
) -> ServerHealth:
    """The health of a server.

    Args:
        check: The record of the last check that came through the queue.
        reports: The records of the workers.
        now: The time of Redis, in seconds since the epoch; what is older than `RECORD_TTL_S` does not count.
    """
    check = check if check is not None and is_fresh(check, now) else None
    ordered = sorted(reports, key=lambda each: each.worker)
    workers = {report.worker: report for report in ordered if is_fresh(report, now)}
    # A worker that took a check but does not report any more is gone.
    if check is not None and check.worker in workers and check.checked_at > workers[check.worker].checked_at:
        workers[check.worker] = check
    newest = max(workers.values(), key=lambda each: each.checked_at, default=None)
    recent = sum(report.recent_calls for report in workers.values())
    failed = sum(report.failed_calls for report in workers.values())
    status, reason = _verdict(check, list(workers.values()), recent, failed)
    return ServerHealth(
        server=server,
        status=status,
        reason=reason,
        checked_at=newest.checked_at if newest else None,
        age_s=round(max(0.0, now - newest.checked_at), 3) if newest else None,
        since=max((report.since for report in workers.values() if report.since is not None), default=None),
        latency_s=_first(check and check.latency_s, newest and newest.latency_s),
        queue_wait_s=check.queue_wait_s if check else None,
        tool_count=_first(newest and newest.tool_count, *(report.tool_count for report in workers.values())),
        recent_calls=recent,
        failed_calls=failed,
        is_idle=bool(workers) and all(report.is_idle for report in workers.values()),
        check=check,
        workers=workers,
        skipped=tuple(skipped),
    )


def _verdict(
    check: HealthRecord | None, reports: list[HealthRecord], recent: int, failed: int
) -> tuple[HealthStatus, str]:
    failing = [report for report in reports if not report.healthy]
    last = max(failing, key=lambda each: each.checked_at, default=None)
    why = (last.error or "it failed its check") if last else ""
    if not reports:
        return HealthStatus.UNKNOWN, f"no worker has reported on it for {RECORD_TTL_S:g} s; is one running?"
    if len(failing) == len(reports):
        return HealthStatus.UNHEALTHY, why
    if failing:
        return HealthStatus.DEGRADED, f"{len(failing)} of {len(reports)} workers cannot use it: {why}"
    if check is None:
        return HealthStatus.UNKNOWN, f"no check has come through its queue for {RECORD_TTL_S:g} s; is beat running?"
    if any(report.is_busy for report in reports):
        return HealthStatus.DEGRADED, "it is busy with calls and did not list its tools meanwhile."
    if fails_its_calls(recent, failed):
        return HealthStatus.DEGRADED, f"its checks pass, but {failed} of its last {recent} calls failed."
    return HealthStatus.HEALTHY, ""


def is_fresh(record: HealthRecord, now: float) -> bool:
    """Whether a record counts at a time of Redis, in seconds since the epoch."""
    return abs(now - record.checked_at) <= RECORD_TTL_S


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def parse_record(text: bytes | str | None, server: str, what: str, skipped: list[str]) -> HealthRecord | None:
    """A stored record; None if there is none, or if it cannot be read, which `skipped` then says of `what`."""
    if text is None:
        return None
    with suppress(ValidationError):
        record = HealthRecord.model_validate_json(text)
        if record.server == server:
            return record
    skipped.append(f"{what} cannot be read: it is damaged, or of another version")
    return None
