"""The state of all MCP servers at one moment.

Owns reading it from Redis. What does not change is read once: past minutes and lists of tools. What cannot be read,
because it is damaged or from another version, becomes a problem of its server. It does not know how it is shown.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.key_types import execute_reading, is_wrong_type
from tarsy_tasks.broker.shares import Waiting, count_waiting
from tarsy_tasks.catalogue import ListedServer, read_catalogue
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.counting import add_up
from tarsy_tasks.telemetry.health_records import HealthRecord, HealthStatus, ServerHealth, read_health
from tarsy_tasks.telemetry.history import History, Minute
from tarsy_tasks.telemetry.metrics import Distribution, InFlight, LastError, known_servers, read_in_flight

__all__ = ["LISTINGS", "ServerSnapshot", "Snapshot", "SnapshotReader"]

LISTINGS = 20
"""The most lists of tools that are read for one snapshot, so that none takes long."""
_REMEMBERED_S = 24 * 3600
"""How long a server is shown that has no workers and is in no configuration."""


@dataclass(frozen=True)
class ServerSnapshot:
    """One server.

    Attributes:
        minutes: The last hour, the current minute last.
        in_flight: Calls that are running, by worker.
        waiting: Calls that wait in the queue of the server and in those of its agents, by priority.
        last_failure: The last call that was unavailable, unknown or timed out.
        last_tool_error: The last call that the server answered with an error.
        listed: Its tools and their changes; None if they were never listed or cannot be read.
        problems: What could not be read, a phrase each.
    """

    health: ServerHealth
    minutes: tuple[Minute, ...]
    in_flight: Mapping[str, int]
    waiting: Waiting
    last_failure: LastError | None
    last_tool_error: LastError | None
    listed: ListedServer | None
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.health.server

    @property
    def status(self) -> HealthStatus:
        return self.health.status

    @property
    def reason(self) -> str:
        """Why it is not healthy, for a page that names the server; empty if it is healthy."""
        return self.health.reason.replace(f"MCP server `{self.name}` is not available: ", "")

    @property
    def records(self) -> list[HealthRecord]:
        """The health record of each worker."""
        return list(self.health.workers.values())

    @cached_property
    def transports(self) -> list[str]:
        return sorted({record.transport for record in self.records if record.transport})

    @cached_property
    def eras(self) -> list[str]:
        return sorted({record.era for record in self.records if record.era})

    @cached_property
    def protocols(self) -> list[str]:
        return sorted({record.protocol for record in self.records if record.protocol})

    @cached_property
    def targets(self) -> list[str]:
        """The programs or addresses that its workers connect to, as configured."""
        return sorted({record.target for record in self.records if record.target})

    @cached_property
    def error_codes(self) -> list[str]:
        """The error codes of the workers that cannot use it."""
        return sorted({record.error_code for record in self.records if record.error_code})

    @property
    def tool_count(self) -> int | None:
        """As last listed, even while the server is unhealthy."""
        return self.health.tool_count if self.listed is None else len(self.listed.listing.tools)

    @cached_property
    def changed_tools(self) -> int:
        """How many tools differ from the approved ones."""
        diff = self.listed.diff if self.listed else None
        return len(diff.added) + len(diff.removed) + len(diff.changed) if diff else 0

    @cached_property
    def running(self) -> int:
        """Calls that are running."""
        return sum(self.in_flight.values())

    @cached_property
    def limit(self) -> int | None:
        """How many calls may run at once, in all workers together; None if no worker reports a limit."""
        limits = [record.max_concurrency for record in self.records if record.max_concurrency is not None]
        return sum(limits) if limits else None

    @property
    def queued(self) -> int:
        """Calls that wait."""
        return self.waiting.total

    @property
    def is_full(self) -> bool:
        """The limit is reached: further calls wait in the queue."""
        return self.limit is not None and self.running >= self.limit

    @cached_property
    def call_count(self) -> int:
        """Calls of the last hour."""
        return sum(minute.call_count for minute in self.minutes)

    @cached_property
    def failure_count(self) -> int:
        """Those that were unavailable, unknown or timed out."""
        return sum(minute.failure_count for minute in self.minutes)

    @cached_property
    def tool_error_count(self) -> int:
        """Those that the server answered with an error."""
        return sum(minute.tool_error_count for minute in self.minutes)

    @cached_property
    def codes(self) -> dict[str, int]:
        """How many of them had which error code, most frequent first."""
        total = add_up(minute.codes for minute in self.minutes)
        return dict(sorted(total.items(), key=lambda each: (-each[1], each[0])))

    @cached_property
    def duration(self) -> Distribution:
        """Of the calls of the last hour that were sent."""
        found = [minute.duration for minute in self.minutes if minute.calls]
        if not found:
            return Distribution()
        counts = zip(*(each.counts for each in found), strict=True)
        return Distribution(tuple(map(sum, counts)), longest_s=max(each.longest_s for each in found))

    @cached_property
    def uptime(self) -> float | None:
        """The share of the known minutes in which the server could be used."""
        known = [minute.status for minute in self.minutes if minute.status is not HealthStatus.UNKNOWN]
        return sum(status is not HealthStatus.UNHEALTHY for status in known) / len(known) if known else None


@dataclass(frozen=True)
class Snapshot:
    """All servers.

    Attributes:
        at: When it was read, in seconds since the epoch by the clock of Redis.
        servers: By id, in order.
        problems: What concerns all servers and could not be read, a phrase each.
    """

    at: float
    servers: Mapping[str, ServerSnapshot]
    problems: tuple[str, ...] = ()

    @property
    def has_workers(self) -> bool:
        """Whether any worker reports on any server."""
        return any(server.health.workers for server in self.servers.values())


class SnapshotReader:
    """Reads snapshots, one after the other. Not safe to share between threads.

    Attributes:
        is_complete: Whether the last snapshot had all lists of tools; some may be left for the next one.
    """

    def __init__(self, app: Any, results: Any, broker: Any) -> None:
        self.is_complete = False
        self._app = app
        self._redis = results
        self._broker = broker
        self._history = History()
        self._listed: dict[str, tuple[bytes, ListedServer | None]] = {}

    def read(self) -> Snapshot:
        """Read all servers; blocks for some round trips. Raises RedisError."""
        self._history.refresh(self._redis)
        seconds, microseconds = self._redis.time()
        now = seconds + microseconds / 1e6
        problems: list[str] = []
        if unread := self._history.skipped_minutes:
            problems.append(_of_another_type(f"{unread} minutes of the last hour"))
        names = self._names(now, problems)
        health = read_health(self._redis, names)
        in_flight: InFlight = {}
        with _recording(problems, "what is in flight"):
            in_flight = read_in_flight(self._redis, problems)
        queued = count_waiting(self._broker, list(map(keys.queue, names)))
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hgetall(keys.LAST_FAILURES)
            pipeline.hgetall(keys.TOOL_REVISIONS)
            hashes: list[dict[bytes, bytes] | None] = execute_reading(pipeline)
        for found, what in zip(hashes, ("the last failures", "which tools changed"), strict=True):
            if found is None:
                problems.append(_of_another_type(what))
        failures, revisions = ({} if found is None else found for found in hashes)
        self._update_listed(names, revisions)
        return Snapshot(
            now,
            {
                name: self._build(health[name], in_flight, count, failures)
                for name, count in zip(names, queued, strict=True)
            },
            tuple(problems),
        )

    def _names(self, now: float, problems: list[str]) -> list[str]:
        found = {*self._history.servers}
        try:
            found.update(self._app.mcp_config.enabled_servers)
        except ConfigError:
            # Flower needs no configuration: without one, the servers with recent calls are shown.
            with _recording(problems, "which servers had calls"):
                found.update(known_servers(self._redis, now - _REMEMBERED_S))
        return sorted(found)

    def _update_listed(self, names: list[str], revisions: Mapping[bytes, bytes]) -> None:
        # The revision of a list expires a month after its last change.
        known = {name: revisions.get(name.encode(), b"") for name in names}
        outdated = [name for name, revision in known.items() if self._listed.get(name, (None,))[0] != revision]
        now = outdated[:LISTINGS]
        found = read_catalogue(self._redis, now)
        for name in now:
            self._listed[name] = known[name], (listed := found.get(name))
            if listed is not None:
                _ = listed.diff  # compute it here, not when a page is shown
        self._listed = {name: each for name, each in self._listed.items() if name in known}
        self.is_complete = now == outdated

    def _build(
        self, health: ServerHealth, in_flight: InFlight, waiting: Waiting, failures: Mapping[bytes, bytes]
    ) -> ServerSnapshot:
        name = health.server
        problems = list(health.skipped)
        damaged = "cannot be read: it is damaged or from another version"
        if skipped := self._history.skipped.get(name):
            text = f"{skipped} metrics of the last hour cannot be read: they are damaged or from another version"
            problems.append(text)
        last: dict[str, LastError] = {}
        for field, what in ((name, "its last failure"), (f"{Outcome.TOOL_ERROR} {name}", "its last tool error")):
            if (text := failures.get(field.encode())) is not None:
                try:
                    last[field] = LastError.model_validate_json(text)
                except ValidationError:
                    problems.append(f"{what} {damaged}")
        revision, listed = self._listed.get(name, (None, None))
        if revision and listed is None:
            problems.append(f"its list of tools {damaged}")
        *earlier, current = self._history.minutes(name)
        running = {
            instance.rpartition("#")[0]: sum(servers[name].values())
            for instance, servers in in_flight.items()
            if name in servers
        }
        return ServerSnapshot(
            health=health,
            # The current minute is incomplete: the present status is more exact.
            minutes=(*earlier, current.with_status(health.status)),
            in_flight=running,
            waiting=waiting,
            last_failure=last.get(name),
            last_tool_error=last.get(f"{Outcome.TOOL_ERROR} {name}"),
            listed=listed,
            problems=tuple(problems),
        )


@contextmanager
def _recording(problems: list[str], what: str) -> Generator[None]:
    """Continue without the content of a key of another type."""
    try:
        yield
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        problems.append(_of_another_type(what))


def _of_another_type(what: str) -> str:
    return f"{what} cannot be read: a key has another type"
