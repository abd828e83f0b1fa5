"""The metrics of each server and tool, and reading those of all workers from Redis.

Owns the names of the numbers, which are the same in memory and in Redis, and what they mean. Workers count
(`worker.reporting.call_metrics`), `prometheus` exports them. A number is an integer with one of these names; times are
sums of microseconds, so that they can be added up exactly:

    calls:OUTCOME                 calls with this outcome
    cached                        calls that were answered without asking the server, from the cache of answers
    retries                       how often calls were sent again
    code:CODE                     calls with this error code
    denied:KIND                   calls that a rule of this kind in the policy denied
    limited:PLACE                 calls that were over the limit at this place of the policy; per server, not per tool
    pauses                        how often the server asked to wait; per server, not per tool
    took:BUCKET  took:us          calls that were sent, by their duration in seconds; the sum
    took:longest                  the longest of these durations, in microseconds; a maximum, not a sum
    waited:BUCKET  waited:us      the same for the time in the queue
    recreations                   sessions that replaced a lost one; per server, not per tool
    connection_attempts           how often it was tried to open a session; per server, not per tool
    connections                   how often that succeeded
    suspensions                   how often the server was suspended by a worker; per server, not per tool
    unaudited                     calls whose audit entry could not be written; per server, not per tool
    ignored_events                progress and log lines that belonged to no call, or did not count; per server
"""

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from tarsy_tasks.broker import keys
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.policy import RuleKind
from tarsy_tasks.telemetry.counting import LONGEST, add_up

__all__ = [
    "BUCKETS_S",
    "BUCKET_NAMES",
    "CODE_NAMES",
    "FAILURES",
    "NO_TOOL",
    "RECENT_MINUTES",
    "Distribution",
    "InFlight",
    "LastError",
    "ToolMetrics",
    "bucket_of",
    "count_codes",
    "is_known",
    "known_servers",
    "read_in_flight",
    "read_metrics",
]

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, math.inf)
NO_TOOL = ""
"""In place of a tool: numbers of the server, and calls of tools that it does not list."""
RECENT_MINUTES = 5
"""What the moving averages and the failure rate cover."""
IN_FLIGHT_TTL_S = 20.0

FAILURES = frozenset({Outcome.UNAVAILABLE, Outcome.UNKNOWN, Outcome.TIMEOUT})
"""The outcomes of calls that failed in the infrastructure. `tool_error` is none of them: there the server answered."""
BUCKET_NAMES = tuple("inf" if math.isinf(bucket) else f"{bucket:g}" for bucket in BUCKETS_S)
_CODE = "code:"
_DENIED = "denied:"
_LIMITED = "limited:"
CODE_NAMES = frozenset(f"{_CODE}{code}" for code in ErrorCode)
_NAMES = frozenset(
    {
        *(f"calls:{outcome}" for outcome in Outcome),
        *CODE_NAMES,
        *(f"{_DENIED}{kind}" for kind in RuleKind),
        LONGEST,
        *(f"{time}:{bucket}" for time in ("took", "waited") for bucket in (*BUCKET_NAMES, "us")),
        "cached",
        "retries",
        "recreations",
        "suspensions",
        "pauses",
        "connection_attempts",
        "connections",
        "unaudited",
        "ignored_events",
    }
)


def is_known(name: str) -> bool:
    """Whether a number has one of the names above; another version may have more."""
    return name in _NAMES or name.startswith(_LIMITED)


def bucket_of(seconds: float) -> str:
    """The name of the bucket of a time."""
    return BUCKET_NAMES[bisect_left(BUCKETS_S, seconds)]


class LastError(BaseModel):
    """The last call of a tool that failed.

    Attributes:
        at: Seconds since the epoch, by the clock of Redis.
        code: An `ErrorCode`.
        text: The text that the agent got, masked and shortened.
        tool: Name of the tool, if this is the last error of a server; else empty.
        task_id: Of the call; empty if it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: float
    code: str
    text: str
    tool: str = ""
    task_id: str = ""


InFlight = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Running calls, by instance of a worker, server and tool."""


@dataclass(frozen=True)
class Distribution:
    """A histogram of times.

    Attributes:
        counts: How many are in each of `BUCKETS_S`; not cumulative.
        longest_s: The longest of those that tell it: workers of earlier versions did not.
    """

    counts: tuple[int, ...] = (0,) * len(BUCKETS_S)
    sum_s: float = 0.0
    longest_s: float = 0.0

    def __add__(self, other: "Distribution") -> "Distribution":
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Distribution(counts, self.sum_s + other.sum_s, max(self.longest_s, other.longest_s))

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self.count if self.count else None

    @property
    def slowest_s(self) -> float | None:
        """The longest of all of them; None when that is not known, or there are none."""
        last = max((position for position, count in enumerate(self.counts) if count), default=None)
        return self.longest_s if last is not None and self.longest_s > _lower_bound(last) else None

    def quantile_s(self, share: float) -> float | None:
        """The time that this share of them does not exceed, as if they were spread evenly within each bucket; at most
        the slowest of them, or the last finite bound when that is not known. None when there are none.
        """
        rank = share * self.count
        below = 0
        slowest_s = self.slowest_s or math.inf
        for position, count in enumerate(self.counts):
            if count and below + count >= rank:
                low = _lower_bound(position)
                high = min(BUCKETS_S[position], slowest_s)
                return low if math.isinf(high) else low + (high - low) * (rank - below) / count
            below += count
        return None


def _lower_bound(position: int) -> float:
    return BUCKETS_S[position - 1] if position else 0.0


class _Number:
    """The number that has the name of the attribute."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, metrics: "ToolMetrics", _: type) -> int:
        return metrics.numbers.get(self._name, 0)


@dataclass
class ToolMetrics:
    """The numbers of one tool, or with `NO_TOOL` those of the server.

    Attributes:
        numbers: By name, since counting began.
        recent: By name, of the last `RECENT_MINUTES` minutes.
        in_flight: Calls that are running.
    """

    server: str
    tool: str
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    recent: Mapping[str, int] = field(default_factory=dict[str, int])
    in_flight: int = 0
    last_error: LastError | None = None

    @property
    def calls(self) -> dict[Outcome, int]:
        """How many calls had which outcome."""
        return {outcome: count for outcome in Outcome if (count := self.numbers.get(f"calls:{outcome}", 0))}

    @property
    def codes(self) -> dict[str, int]:
        """How many calls had which error code, most frequent first."""
        return count_codes(self.numbers)

    @property
    def denials(self) -> dict[RuleKind, int]:
        """How many calls were denied by which kind of rule."""
        return {kind: count for kind in RuleKind if (count := self.numbers.get(f"{_DENIED}{kind}", 0))}

    @property
    def limited(self) -> dict[str, int]:
        """How many calls were over which limit, by its place in the policy."""
        found = {name: count for name, count in self.numbers.items() if name.startswith(_LIMITED)}
        return {name.removeprefix(_LIMITED): count for name, count in sorted(found.items())}

    cached = _Number()
    pauses = _Number()
    retries = _Number()
    recreations = _Number()
    connection_attempts = _Number()
    connections = _Number()
    suspensions = _Number()
    unaudited = _Number()
    ignored_events = _Number()

    @property
    def duration(self) -> Distribution:
        """Of the calls that were sent: from the start in the worker until the answer was ready."""
        return _distribution(self.numbers, "took")

    @property
    def queue_wait(self) -> Distribution:
        """Of the calls whose message has the time when it was sent."""
        return _distribution(self.numbers, "waited")

    @property
    def moving_average_s(self) -> float | None:
        """Mean duration of the last minutes; None when there was no call."""
        return _distribution(self.recent, "took").mean_s

    @property
    def failure_rate(self) -> float | None:
        """The share of `FAILURES` among the calls of the last minutes; None when there was no call.

        Calls that were rejected or cancelled do not count: they say nothing about a server.
        """
        return self._recent_share(FAILURES)

    @property
    def tool_error_rate(self) -> float | None:
        """The same for calls that the server answered with an error."""
        return self._recent_share({Outcome.TOOL_ERROR})

    def _recent_share(self, outcomes: Collection[Outcome]) -> float | None:
        answered = (Outcome.OK, Outcome.TOOL_ERROR, *FAILURES)
        ended = {outcome: self.recent.get(f"calls:{outcome}", 0) for outcome in answered}
        total = sum(ended.values())
        return sum(ended[outcome] for outcome in outcomes) / total if total else None


def count_codes(numbers: Mapping[str, int]) -> dict[str, int]:
    """The error codes among numbers, most frequent first."""
    found = [(name.removeprefix(_CODE), number) for name, number in numbers.items() if name in CODE_NAMES and number]
    return dict(sorted(found, key=lambda each: (-each[1], each[0])))


def _distribution(numbers: Mapping[str, int], name: str) -> Distribution:
    counts = tuple(numbers.get(f"{name}:{bucket}", 0) for bucket in BUCKET_NAMES)
    return Distribution(counts, numbers.get(f"{name}:us", 0) / 1e6, numbers.get(f"{name}:longest", 0) / 1e6)


def known_servers(redis: Any, since: float = 0.0) -> list[str]:
    """The ids of the servers that have metrics, with a call after `since`, in seconds by the clock of Redis."""
    found: list[bytes] = redis.zrangebyscore(keys.MEASURED_SERVERS, since, "+inf")
    return sorted(name.decode(errors="replace") for name in found)


def read_metrics(redis: Any, servers: Iterable[str]) -> dict[str, list[ToolMetrics]]:
    """The numbers of all workers together: a `ToolMetrics` for each tool that has any, `NO_TOOL` included.

    What cannot be read, because another version or another application wrote it, is left out. The client `redis` is one
    of the database that workers write to, such as `app.backend.client`.
    """
    names = list(servers)
    now_s, now_us = redis.time()
    minutes = range(now_s // 60 - RECENT_MINUTES + 1, now_s // 60 + 1)
    with redis.pipeline(transaction=False) as pipeline:
        pipeline.zrangebyscore(keys.MEASURING_WORKERS, now_s + now_us / 1e6 - IN_FLIGHT_TTL_S, "+inf")
        for name in names:
            pipeline.hgetall(keys.metrics_key(name))
            for minute in minutes:
                pipeline.hgetall(keys.recent_metrics_key(name, minute))
        workers, *hashes = pipeline.execute(raise_on_error=False)
    running = _read_in_flight(redis, cast("list[bytes]", workers) if isinstance(workers, list) else [], [])
    each, loads = iter(hashes), running.values()
    return {
        name: _build(name, next(each), [next(each) for _ in minutes], add_up(load.get(name, {}) for load in loads))
        for name in names
    }


def read_in_flight(redis: Any, skipped: list[str]) -> InFlight:
    """The running calls; blocks for three round trips. `skipped` gets what cannot be read, a phrase each."""
    now, _ = redis.time()
    workers = redis.zrangebyscore(keys.MEASURING_WORKERS, now - IN_FLIGHT_TTL_S, "+inf")
    return _read_in_flight(redis, workers, skipped)


def _read_in_flight(redis: Any, workers: list[bytes], skipped: list[str]) -> InFlight:
    instances = [worker.decode(errors="replace") for worker in workers]
    texts: list[bytes | None] = redis.mget(map(keys.in_flight_key, instances)) if instances else []
    found: dict[str, dict[str, dict[str, int]]] = {}
    for instance, text in zip(instances, texts, strict=True):
        try:
            found[instance] = {
                server: {tool: max(0, int(count)) for tool, count in tools.items()}
                for server, tools in json.loads(text or b"{}").items()
            }
        except (ValueError, TypeError, AttributeError):
            skipped.append(f"what worker {instance} has in flight cannot be read: it is damaged, or of another version")
    return found


def _build(server: str, total: Any, recent: list[Any], running: dict[str, int]) -> list[ToolMetrics]:
    numbers, errors = _parse_fields(total)
    minutes = [_parse_fields(each)[0] for each in recent]
    lately = {tool: add_up(minute.get(tool, {}) for minute in minutes) for tool in set[str]().union(*minutes)}
    return [
        ToolMetrics(server, tool, numbers.get(tool, {}), lately.get(tool, {}), running.get(tool, 0), errors.get(tool))
        for tool in sorted({*numbers, *errors, *running})
    ]


def _parse_fields(found: Any) -> tuple[dict[str, dict[str, int]], dict[str, LastError]]:
    numbers: dict[str, dict[str, int]] = {}
    errors: dict[str, LastError] = {}
    for key, value in cast("dict[bytes, bytes]", found).items() if isinstance(found, dict) else ():
        name, _, tool = key.decode(errors="replace").partition(" ")
        try:
            if name == "last_error":
                errors[tool] = LastError.model_validate_json(value)
            else:
                numbers.setdefault(tool, {})[name] = int(value)
        except (ValueError, ValidationError):
            continue
    return numbers, errors
