"""The last hour of every MCP server, minute by minute: its health and its calls.

Owns the numbers of a minute, in Redis and read back. All workers count into one hash per minute, which expires after
the hour; a field is one of these names and the server's id:

    up  failing  down     health records: healthy; busy, or failing its calls; not healthy
    checked               checks that came through the queue
    calls:OUTCOME         calls with this outcome
    code:CODE             calls with this error code
    took:BUCKET           calls that were sent, by their duration in seconds
    took:longest          the longest of these durations, in microseconds

A `History` reads each minute once after it is over.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.key_types import execute_reading
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.counting import LONGEST, add_numbers, add_up
from tarsy_tasks.telemetry.health_records import HealthRecord, HealthStatus, fails_its_calls
from tarsy_tasks.telemetry.metrics import BUCKET_NAMES, CODE_NAMES, FAILURES, Distribution, count_codes

__all__ = ["MINUTES", "History", "Minute", "build_count", "health_numbers", "is_kept"]

MINUTES = 60
_TTL_S = (MINUTES + 5) * 60
_SETTLED_S = 20
"""Workers write every 5 s what they counted; after that long, a minute that is over does not change any more."""
_CALLS, _TOOK = "calls:", "took:"
_CALL_NAMES = {f"{_CALLS}{outcome}": outcome for outcome in Outcome}
_TOOK_NAMES = {f"{_TOOK}{bucket}": position for position, bucket in enumerate(BUCKET_NAMES)}
_NAMES = frozenset({"up", "failing", "down", "checked", *_CALL_NAMES, *CODE_NAMES, *_TOOK_NAMES, LONGEST})


def build_count(now: float, numbers: Mapping[str, Mapping[str, int]]) -> tuple[Any, ...]:
    """The Redis command that counts in the minute of `now`, by the clock of Redis: numbers by server and name, at least
    one."""
    fields = {f"{name} {server}": number for server, found in numbers.items() for name, number in found.items()}
    return add_numbers.command(keys.minute_key(int(now) // 60), numbers=fields, texts={}, ttls_s=[_TTL_S])


def is_kept(name: str) -> bool:
    """Whether a number that workers count for a tool is also kept by the minute."""
    return name in _CALL_NAMES or name in _TOOK_NAMES or name in CODE_NAMES or name == LONGEST


def health_numbers(record: HealthRecord, *, came_through_queue: bool) -> dict[str, int]:
    """What a health record counts as."""
    if not record.healthy:
        name = "down"
    else:
        is_failing = record.is_busy or fails_its_calls(record.recent_calls, record.failed_calls)
        name = "failing" if is_failing else "up"
    return {name: 1, "checked": 1} if came_through_queue else {name: 1}


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of one server, over all workers.

    Attributes:
        at: Its beginning, in seconds since the epoch.
        status: As in `tarsy_tasks.health`; `unknown` without a check.
        calls: How many calls had which outcome.
        call_count: All of them.
        failure_count: Those with an outcome in `FAILURES`.
        tool_error_count: Those that the server answered with an error.
        codes: How many calls had which error code.
        duration: Of the calls that were sent; its sum is not known.
        p50_s: Its median.
        p95_s: The 95th percentile.
    """

    at: int
    status: HealthStatus = HealthStatus.UNKNOWN
    calls: Mapping[Outcome, int] = field(default_factory=dict[Outcome, int])
    call_count: int = 0
    failure_count: int = 0
    tool_error_count: int = 0
    codes: Mapping[str, int] = field(default_factory=dict[str, int])
    duration: Distribution = field(default_factory=Distribution)
    p50_s: float | None = None
    p95_s: float | None = None

    def with_status(self, status: HealthStatus) -> "Minute":
        """The same minute with another status."""
        return self if status is self.status else replace(self, status=status)


class History:
    """The last hour of all servers, as last read. Not safe to share between threads.

    Attributes:
        skipped: How many numbers of the hour could not be read, by server: they are damaged, or of another version.
        skipped_minutes: How many minutes could not be read, because their keys have another type.
    """

    def __init__(self) -> None:
        self.skipped: Mapping[str, int] = {}
        self.skipped_minutes = 0
        self._minutes: dict[int, dict[str, Minute]] = {}
        self._skipped: dict[int, dict[str, int]] = {}
        self._complete: set[int] = set()
        self._unread: set[int] = set()
        self._hour: list[tuple[Mapping[str, Minute], Minute]] = []

    def refresh(self, redis: Any) -> None:
        """Read what is new from the database that workers write to; blocks for two round trips. After a `RedisError`,
        what was read before is kept."""
        seconds, _ = redis.time()
        now = seconds // 60
        hour = range(now - MINUTES + 1, now + 1)
        wanted = [minute for minute in hour if minute not in self._complete]
        with redis.pipeline(transaction=False) as pipeline:
            for minute in wanted:
                pipeline.hgetall(keys.minute_key(minute))
            hashes = execute_reading(pipeline)
        for minute, found in zip(wanted, hashes, strict=True):
            self._minutes[minute], self._skipped[minute] = _parse(minute, found)
            (self._unread.add if found is None else self._unread.discard)(minute)
        settled = (seconds - _SETTLED_S) // 60
        self._complete = {minute for minute in (*self._complete, *wanted) if hour[0] <= minute < settled}
        for outdated in [minute for minute in self._minutes if minute not in hour]:
            del self._minutes[outdated], self._skipped[outdated]
        self._unread.intersection_update(hour)
        self.skipped_minutes = len(self._unread)
        self._hour = [(self._minutes[minute], Minute(minute * 60)) for minute in hour]
        self.skipped = add_up(self._skipped.values())

    @property
    def servers(self) -> Collection[str]:
        """The ids of the servers that have numbers in this hour."""
        return {server for found in self._minutes.values() for server in found}

    def minutes(self, server: str) -> tuple[Minute, ...]:
        """The hour of a server, oldest minute first, the current one last."""
        return tuple(found.get(server, nothing) for found, nothing in self._hour)


def _parse(minute: int, found: Mapping[bytes, bytes] | None) -> tuple[dict[str, Minute], dict[str, int]]:
    numbers: dict[str, dict[str, int]] = {}
    skipped: dict[str, int] = {}
    for key, text in (found or {}).items():
        name, _, server = key.decode(errors="replace").partition(" ")
        if name in _NAMES and text.isdigit():
            numbers.setdefault(server, {})[name] = int(text)
        else:
            skipped[server] = skipped.get(server, 0) + 1
    return {server: _build(minute, each) for server, each in numbers.items()}, skipped


def _build(minute: int, numbers: Mapping[str, int]) -> Minute:
    counts = [0] * len(BUCKET_NAMES)
    calls: dict[Outcome, int] = {}
    for name, number in numbers.items():
        if name in _TOOK_NAMES:
            counts[_TOOK_NAMES[name]] = number
        elif name in _CALL_NAMES:
            calls[_CALL_NAMES[name]] = number
    duration = Distribution(tuple(counts), longest_s=numbers.get(LONGEST, 0) / 1e6)
    return Minute(
        at=minute * 60,
        status=_judge(numbers),
        calls=calls,
        call_count=sum(calls.values()),
        failure_count=sum(count for outcome, count in calls.items() if outcome in FAILURES),
        tool_error_count=calls.get(Outcome.TOOL_ERROR, 0),
        codes=count_codes(numbers),
        duration=duration,
        p50_s=duration.quantile_s(0.5),
        p95_s=duration.quantile_s(0.95),
    )


def _judge(numbers: Mapping[str, int]) -> HealthStatus:
    up, failing, down = (numbers.get(name, 0) for name in ("up", "failing", "down"))
    if not up and not failing:
        return HealthStatus.UNHEALTHY if down else HealthStatus.UNKNOWN
    if down or failing > up:
        return HealthStatus.DEGRADED
    return HealthStatus.HEALTHY if numbers.get("checked") else HealthStatus.UNKNOWN
