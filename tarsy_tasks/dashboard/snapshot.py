"""What is known of all MCP servers at one moment.

Owns reading it from Redis, at a cost that does not grow with what has not changed: minutes that are over and lists of
tools are read once. What cannot be read, because it is damaged or of another version, is said of the server that it
concerns. How it is shown, the pages know.
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
from tarsy_tasks.catalogue import ListedServer, read_catalogue
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.telemetry.health_records import HealthRecord, HealthStatus, ServerHealth, read_health
from tarsy_tasks.telemetry.history import History, Minute
from tarsy_tasks.telemetry.metrics import Distribution, InFlight, LastError, known_servers, read_in_flight

__all__ = ["LISTINGS", "ServerSnapshot", "Snapshot", "SnapshotReader"]

LISTINGS = 20
"""So many lists of tools are read for one snapshot, so that none takes long."""
_COUNT_QUEUED = """
-- The lengths of the queues KEYS; what is no list has none.
local lengths = {}
for i, key in ipairs(KEYS) do
    local length = redis.pcall('LLEN', key)
    lengths[i] = type(length) == 'number' and length or 0
end
return lengths
"""
_REMEMBERED_S = 24 * 3600
"""So long is a server shown that nobody serves any more and that no configuration names."""


@dataclass(frozen=True)
class ServerSnapshot:
    """One server.

    Attributes:
        minutes: The last hour, the current minute last.
        in_flight: Calls that are running, by worker.
        queued: Calls that wait in the queue.
        last_failure: The last call that failed through no fault of its caller.
        listed: Its tools and what changed in them; None when they were never listed, or cannot be read.
        problems: What was found in Redis and could not be read, a phrase each.
    """

    health: ServerHealth
    minutes: tuple[Minute, ...]
    in_flight: Mapping[str, int]
    queued: int
    last_failure: LastError | None
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
        """Why it is not healthy, for a page that says which server it is about; empty when it is."""
        return self.health.reason.replace(f"MCP server `{self.name}` is not available: ", "")

    @property
    def records(self) -> list[HealthRecord]:
        """How each worker finds it."""
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

    @property
    def tool_count(self) -> int | None:
        """As last listed, also while the server is ill."""
        return self.health.tool_count if self.listed is None else len(self.listed.listing.tools)

    @cached_property
    def changed_tools(self) -> int:
        """How many tools differ from what was approved."""
        diff = self.listed.diff if self.listed else None
        return len(diff.added) + len(diff.removed) + len(diff.changed) if diff else 0

    @cached_property
    def running(self) -> int:
        """Calls that are running."""
        return sum(self.in_flight.values())

    @cached_property
    def limit(self) -> int | None:
        """How many calls may run at once, over all workers; None while no worker says so."""
        limits = [record.max_concurrency for record in self.records if record.max_concurrency is not None]
        return sum(limits) if limits else None

    @property
    def is_full(self) -> bool:
        """The limit is in force: further calls wait in the queue."""
        return self.limit is not None and self.running >= self.limit

    @cached_property
    def call_count(self) -> int:
        """Calls of the hour."""
        return sum(minute.call_count for minute in self.minutes)

    @cached_property
    def failure_count(self) -> int:
        """Those of them that failed through no fault of their callers."""
        return sum(minute.failure_count for minute in self.minutes)

    @cached_property
    def duration(self) -> Distribution:
        """Of the calls of the hour that were sent."""
        counts = [minute.duration.counts for minute in self.minutes if minute.calls]
        return Distribution(tuple(map(sum, zip(*counts, strict=True)))) if counts else Distribution()

    @cached_property
    def uptime(self) -> float | None:
        """In which part of the minutes of which something is known the server could be used."""
        known = [minute.status for minute in self.minutes if minute.status is not HealthStatus.UNKNOWN]
        return sum(status is not HealthStatus.UNHEALTHY for status in known) / len(known) if known else None


@dataclass(frozen=True)
class Snapshot:
    """All servers.

    Attributes:
        at: When it was read, in seconds since the epoch by the clock of Redis.
        servers: By id, in order.
        problems: What concerns all of them and could not be read, a phrase each.
    """

    at: float
    servers: Mapping[str, ServerSnapshot]
    problems: tuple[str, ...] = ()

    @property
    def has_workers(self) -> bool:
        """Some worker reports on some server."""
        return any(server.health.workers for server in self.servers.values())


class SnapshotReader:
    """Reads snapshots, one after the other. Not safe to share between threads.

    Args:
        app: The Celery application, with its configuration where this process has one.
        results: A redis-py client of the database that workers write to.
        broker: The same of the broker's database.

    Attributes:
        is_complete: Whether the last snapshot had all that there is; some lists of tools may be left for the next.
    """

    def __init__(self, app: Any, results: Any, broker: Any) -> None:
        self.is_complete = False
        self._app = app
        self._redis = results
        self._broker = broker
        self._history = History()
        self._listed: dict[str, tuple[bytes, ListedServer | None]] = {}

    def read(self) -> Snapshot:
        """The servers as they are now; blocks for some round trips.

        Raises:
            RedisError: Redis could not be reached.
        """
        self._history.refresh(self._redis)
        seconds, microseconds = self._redis.time()
        now = seconds + microseconds / 1e6
        problems: list[str] = []
        if unread := self._history.skipped_minutes:
            problems.append(_of_another_type(f"{unread} minutes of the last hour"))
        names = self._names(now, problems)
        health = read_health(self._redis, names)
        in_flight: InFlight = {}
        with _noting(problems, "what is in flight"):
            in_flight = read_in_flight(self._redis, problems)
        queued: list[int] = self._broker.eval_ro(_COUNT_QUEUED, len(names), *map(keys.queue, names)) if names else []
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
                name: self._build(health[name], in_flight, count, failures.get(name.encode()))
                for name, count in zip(names, queued, strict=True)
            },
            tuple(problems),
        )

    def _names(self, now: float, problems: list[str]) -> list[str]:
        found = {*self._history.servers}
        try:
            found.update(self._app.mcp_config.enabled_servers)
        except ConfigError:
            # Flower needs no configuration; then what was seen lately is all that is known.
            with _noting(problems, "which servers had calls"):
                found.update(known_servers(self._redis, now - _REMEMBERED_S))
        return sorted(found)

    def _update_listed(self, names: list[str], revisions: Mapping[bytes, bytes]) -> None:
        # A listing that has not changed for a month has no revision any more.
        known = {name: revisions.get(name.encode(), b"") for name in names}
        outdated = [name for name, revision in known.items() if self._listed.get(name, (None,))[0] != revision]
        now = outdated[:LISTINGS]
        found = read_catalogue(self._redis, now)
        for name in now:
            self._listed[name] = known[name], (listed := found.get(name))
            if listed is not None:
                _ = listed.diff  # here, rather than when a page is shown
        self._listed = {name: each for name, each in self._listed.items() if name in known}
        self.is_complete = now == outdated

    def _build(self, health: ServerHealth, in_flight: InFlight, queued: int, failure: bytes | None) -> ServerSnapshot:
        name = health.server
        problems = list(health.skipped)
        if skipped := self._history.skipped.get(name):
            problems.append(
                f"{skipped} numbers of the last hour cannot be read: they are damaged, or of another version"
            )
        last_failure: LastError | None = None
        if failure is not None:
            try:
                last_failure = LastError.model_validate_json(failure)
            except ValidationError:
                problems.append("its last failure cannot be read: it is damaged, or of another version")
        revision, listed = self._listed.get(name, (None, None))
        if revision and listed is None:
            problems.append("its list of tools cannot be read: it is damaged, or of another version")
        *earlier, current = self._history.minutes(name)
        running = {
            instance.rpartition("#")[0]: sum(servers[name].values())
            for instance, servers in in_flight.items()
            if name in servers
        }
        return ServerSnapshot(
            health=health,
            # The current minute has only begun: what is known now says more.
            minutes=(*earlier, current.with_status(health.status)),
            in_flight=running,
            queued=queued,
            last_failure=last_failure,
            listed=listed,
            problems=tuple(problems),
        )


@contextmanager
def _noting(problems: list[str], what: str) -> Generator[None]:
    """Go on without what a key of another type holds."""
    try:
        yield
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        problems.append(_of_another_type(what))


def _of_another_type(what: str) -> str:
    return f"{what} cannot be read: a key is of another type"
