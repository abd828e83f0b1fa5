"""Reads what the pages show from Redis, in threads, so that Tornado's loop is not blocked.

Owns the threads and connections, and the latest snapshot of all servers, which all requests share. During an outage of
Redis the pages keep the last snapshot and say so; each later request tries again, in a thread.
"""

import asyncio
import json
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from redis.exceptions import RedisError, ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_views import ParkedCallView, load, load_waiting
from tarsy_tasks.dashboard.alerts import ShownAlert, read_alerts
from tarsy_tasks.dashboard.dead_letters import DeadLetterList, read_dead_letters
from tarsy_tasks.dashboard.limits import LimitView, read_limits
from tarsy_tasks.dashboard.recent_calls import RecentCalls
from tarsy_tasks.dashboard.redis_clients import build_clients
from tarsy_tasks.dashboard.snapshot import ServerSnapshot, Snapshot, SnapshotReader
from tarsy_tasks.dashboard.tools import ToolView, build_tools
from tarsy_tasks.dashboard.waterfall import Waterfall, build_waterfall
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.models import ToolResult
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, AuditPage, Step, read_audit
from tarsy_tasks.telemetry.metrics import ToolMetrics, is_known, read_metrics
from tarsy_tasks.telemetry.running_calls import RunningCallReport, read_running
from tarsy_tasks.telemetry.server_log import LogLine, read_server_log

__all__ = ["CallDetails", "DashboardReader", "FleetState", "ServerDetails"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FRESH_S = 1.0
_SHORTEST_S = 5.0
"""Workers write their metrics every 5 s."""
_LONGEST_S = 60.0
_SHARE = 0.005
_SNAPSHOT = "snapshot"
_COSTS = 6
_REDIS_S = 2.0
_THREADS = 4
_LATEST_CALLS = 10
_SHOWN = 200
"""Calls that wait for people, and for tasks of servers."""
_SCAN_LIMIT = 2000
"""Audit entries that are searched for one page of older calls."""
_LONG_SCAN_LIMIT = 20_000
"""Audit entries that are searched once, after those in memory."""
_PLACES = 1000
_FAILURE_CHARS = 1000
_OUTAGE_WAIT_S = 0.3
"""How long a request waits for Redis during an outage; a Redis that is back answers sooner."""
_NEAR_S = 600.0
"""Workers' clocks may differ from that of Redis by minutes."""


@dataclass(frozen=True)
class FleetState:
    """The latest snapshot, None before the first, and why no newer one could be read: empty when it is fresh."""

    snapshot: Snapshot | None
    outage: str = ""


@dataclass(frozen=True)
class CallDetails:
    """One call.

    Attributes:
        entry: Its audit entry; None if that has expired or the call has not ended yet.
        result: The agent's result; None if it has expired or never existed.
        failure: What Celery stored in place of a result, masked; empty without one.
        running: What its worker reports while it runs.
        parked: What it waits for, if it waits for a person.
    """

    task_id: str
    entry: AuditEntry | None
    result: ToolResult | None
    failure: str = ""
    running: RunningCallReport | None = None
    parked: ParkedCallView | None = None

    @property
    def steps(self) -> list[Step]:
        """The steps in order of time. Agent and worker know the time of Redis only to some milliseconds, so a step that
        is later than the next one is moved to it.
        """
        steps: list[Step] = []
        for step in reversed(self.entry.steps if self.entry else ()):
            steps.append(step.model_copy(update={"at": min(step.at, steps[-1].at)}) if steps else step)
        return steps[::-1]

    @property
    def waterfall(self) -> Waterfall:
        """The same as bars."""
        return build_waterfall(self.steps, self.entry.worker if self.entry else "")


@dataclass(frozen=True)
class ServerDetails:
    """What only the page of one server shows.

    Attributes:
        calls: The latest; None if they could not be read.
        running: Those that run, the oldest first; None if that could not be read.
        alerts: The latest about it, those that fire first.
        lines: What it wrote last to stderr, oldest first.
        problems: What could not be read, a phrase each.
        limits: How much of it may be called, with what is used of it, and how often calls were over it.
    """

    tools: list[ToolView]
    calls: AuditPage | None
    has_metrics: bool = True
    problems: tuple[str, ...] = ()
    running: list[RunningCallReport] | None = None
    alerts: tuple[ShownAlert, ...] = ()
    lines: tuple[LogLine, ...] = ()
    limits: tuple[LimitView, ...] = ()


class DashboardReader:
    """The reader of one Flower process. Its methods are for Tornado's loop.

    Those that read raise RedisError if Redis could not be reached; during an outage, `state` does not.
    """

    def __init__(self, app: Any) -> None:
        self._redis, self._broker = build_clients(app, _REDIS_S)
        self._lease_s = float(app.conf.broker_transport_options["visibility_timeout"])
        self._snapshots = SnapshotReader(app, self._redis, self._broker)
        self._recent_calls = RecentCalls(self._broker)
        self._snapshot_thread = ThreadPoolExecutor(1, thread_name_prefix="mcp-snapshot")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mcp-pages")
        self._state = FleetState(None)
        self._read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._costs_s = defaultdict[str, deque[float]](lambda: deque(maxlen=_COSTS))
        self._server_details: dict[str, ServerDetails] = {}
        self._places_ms: dict[str, int] = {}
        self._masker = build_masker()

    def warm_up(self) -> None:
        """Start to read what the first request would have to wait for. Flower need not run yet."""

        def read() -> None:
            with suppress(RedisError, OSError):  # the first request reports it
                self._snapshots.read()
                if not self._snapshots.is_complete:
                    self._snapshot_thread.submit(read)

        self._snapshot_thread.submit(read)

    async def state(self) -> FleetState:
        """The state at most a second ago. During an outage no request waits for Redis."""
        if time.monotonic() - self._read_at > _FRESH_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.ensure_future(self._refresh())
            done, _ = await asyncio.wait([self._reading], timeout=_OUTAGE_WAIT_S if self._state.outage else None)
            for each in done:
                each.result()
        return self._state

    def interval_s(self, page: str) -> float:
        """How often a page may be refreshed so that this takes half a percent of a core."""
        cost_s = sum(map(self._cost_s, (_SNAPSHOT, f"{page} read", f"{page} shown")))
        return min(max(cost_s / _SHARE, _SHORTEST_S), _LONGEST_S)

    @contextmanager
    def measuring_cost(self, what: str) -> Generator[None]:
        """Record the CPU time of a piece of work of this thread."""
        started = time.thread_time()
        try:
            yield
        finally:
            self._costs_s[what].append(time.thread_time() - started)

    def _cost_s(self, what: str) -> float:
        """The recent average. The first time does not count: it reads more than all later ones."""
        costs_s = [*self._costs_s[what]][1:]
        return sum(costs_s) / len(costs_s) if costs_s else 0.0

    async def _refresh(self) -> None:
        try:
            self._state = FleetState(await self._run(_SNAPSHOT, self._snapshots.read, self._snapshot_thread))
        except (RedisError, OSError) as error:
            outage = self.describe_error(error)
            if not self._state.outage:
                logger.warning("the MCP pages cannot read Redis and show the last known state: %s", outage)
            self._state = FleetState(self._state.snapshot, outage)
        self._read_at = time.monotonic()

    def describe_error(self, error: Exception) -> str:
        """The error of Redis, masked."""
        return self._masker.mask(str(error)) or type(error).__name__

    async def server(self, server: ServerSnapshot) -> ServerDetails:
        """The tools and the latest calls of a server."""

        def read() -> ServerDetails:
            problems: list[str] = []
            metrics = self._attempt(problems, "its metrics", lambda: read_metrics(self._redis, [server.name]))
            wanted = AuditFilter(server=server.name)
            find = partial(self._recent_calls.find_further, wanted, _LATEST_CALLS, _LONG_SCAN_LIMIT)
            calls = self._attempt(problems, "its latest calls", find)
            numbers = metrics[server.name] if metrics else []
            problems += _find_problems(self._redis.type(keys.metrics_key(server.name)), numbers)
            tools = build_tools(server.name, server.listed, numbers, self._masker)
            running = self._attempt(problems, "its running calls", lambda: read_running(self._redis, problems))
            alerts = self._attempt(problems, "its alerts", lambda: read_alerts(self._redis, problems))
            limits = self._attempt(problems, "its limits", lambda: self._read_limits(server.name, numbers, problems))
            lines = self._attempt(problems, "its log lines", lambda: read_server_log(self._redis, server.name))
            return ServerDetails(
                tools,
                calls,
                metrics is not None,
                tuple(problems),
                None if running is None else [each for each in running if each.server == server.name],
                tuple(each for each in alerts or () if each.alert.server == server.name),
                tuple(lines or ()),
                limits or (),
            )

        self._server_details[server.name] = await self._run("server read", read)
        return self._server_details[server.name]

    def _read_limits(self, server: str, numbers: list[ToolMetrics], problems: list[str]) -> tuple[LimitView, ...]:
        try:
            return read_limits(self._broker, server, numbers, self._lease_s)
        except ValueError as error:
            problems.append(str(error))
            return ()

    def known_details(self, server: ServerSnapshot) -> ServerDetails:
        """The same as last read, without Redis."""
        tools = build_tools(server.name, server.listed, (), self._masker)
        return self._server_details.get(server.name, ServerDetails(tools, None, has_metrics=False))

    def _attempt(self, problems: list[str], what: str, read: Callable[[], T]) -> T | None:
        """What is read; None and a problem if Redis refuses, as for a key of another type."""
        try:
            return read()
        except ResponseError as error:
            problems.append(f"{what} cannot be read: {self.describe_error(error)}")
            return None

    async def calls(self, wanted: AuditFilter, limit: int, after: str | None = None) -> AuditPage:
        """Calls that have ended, newest first.

        Raises:
            ValueError: `after` is not an audit cursor.
        """

        def read() -> AuditPage:
            if after is None:
                return self._recent_calls.find_further(wanted, limit, _LONG_SCAN_LIMIT)
            return read_audit(self._broker, wanted, limit=limit, after=after, scan_limit=_SCAN_LIMIT)

        return await self._run("calls read", read)

    async def call(self, call_id: str, written_ms: int | None = None, near: float | None = None) -> CallDetails:
        """Audit entry and result of one call.

        Args:
            call_id: Task id, or the id of the audit entry for a call that never became a task.
            written_ms: When its entry was written, if known: it is found sooner.
            near: About when it was written, in seconds since the epoch: the same.
        """
        place_ms = self._places_ms.get(call_id) if written_ms is None else written_ms

        def read() -> CallDetails:
            entry = self._find_entry(call_id, place_ms, near)
            task_id = entry.task_id if entry else call_id
            call = self._build_call(task_id, entry, self._redis.get(keys.result_key(task_id)) if task_id else None)
            if call.entry is None and call.result is None:
                running = (each for each in read_running(self._redis, []) if each.task_id == task_id)
                parked = self._attempt([], "", lambda: load(self._broker, task_id))
                return replace(call, running=next(running, None), parked=parked)
            return call

        call = await self._run("call read", read)
        if call.entry is not None:
            # An entry never changes its place: it is searched for only once.
            self._places_ms[call_id] = int(call.entry.id.partition("-")[0])
            while len(self._places_ms) > _PLACES:
                del self._places_ms[next(iter(self._places_ms))]
        return call

    async def running_call(self, task_id: str) -> RunningCallReport | None:
        """What a worker reports about a call that runs; None if none does."""
        calls = await self._run("running read", lambda: read_running(self._redis, []))
        return next((each for each in calls if each.task_id == task_id), None)

    async def alerts(self) -> tuple[list[ShownAlert], list[str]]:
        """The latest alerts of all servers, those that fire first, and what could not be read."""
        problems: list[str] = []
        return await self._run("alerts read", lambda: read_alerts(self._redis, problems)), problems

    async def dead_letters(self) -> DeadLetterList:
        """The latest dead letters, newest first."""
        return await self._run("dead-letters read", lambda: read_dead_letters(self._broker, self._recent_calls))

    async def inbox(self) -> tuple[list[ParkedCallView], int]:
        """The calls that wait for people, those first that expire first, and how many there are in all."""
        return await self._run("inbox read", lambda: load_waiting(self._broker, _SHOWN))

    async def server_tasks(self) -> tuple[list[ParkedCallView], int]:
        """The calls that wait for tasks of servers, as `inbox`."""
        return await self._run("tasks read", lambda: load_waiting(self._broker, _SHOWN, for_tasks=True))

    async def parked(self, task_id: str) -> ParkedCallView | None:
        """One of them, also when it was decided already."""
        return await self._run("parked read", lambda: load(self._broker, task_id))

    def _find_entry(self, call_id: str, written_ms: int | None, near: float | None) -> AuditEntry | None:
        if written_ms is not None:
            at = (written_ms + 0.5) / 1000  # rounding must not make it the millisecond before
            entries = read_audit(self._broker, AuditFilter(since=at, until=at), limit=_SCAN_LIMIT).entries
            return next((entry for entry in entries if call_id in (entry.task_id, entry.id)), None)
        wanted = AuditFilter(task_id=call_id)
        if near is None:
            found = self._recent_calls.find_further(wanted, 1, _LONG_SCAN_LIMIT).entries
        elif not (found := self._recent_calls.find(wanted, 1).entries):
            wanted = AuditFilter(task_id=call_id, since=max(0.0, near - _NEAR_S), until=near + _NEAR_S)
            found = read_audit(self._broker, wanted, limit=1, scan_limit=_LONG_SCAN_LIMIT).entries
        return found[0] if found else None

    def _build_call(self, task_id: str, entry: AuditEntry | None, stored: bytes | None) -> CallDetails:
        try:
            meta: Any = json.loads(stored or b"null")
            if isinstance(meta, dict):
                found = cast("dict[str, Any]", meta)
                if found.get("status") == "SUCCESS":
                    return CallDetails(task_id, entry, ToolResult.model_validate(found.get("result")))
                return CallDetails(task_id, entry, None, self._masker.mask(_describe_failure(found))[:_FAILURE_CHARS])
        except (ValueError, ValidationError, RecursionError):
            return CallDetails(task_id, entry, None, "The value stored under its id is not the result of a tool call.")
        return CallDetails(task_id, entry, None)

    async def _run(self, what: str, read: Callable[[], T], threads: ThreadPoolExecutor | None = None) -> T:
        def measured() -> T:
            with self.measuring_cost(what):
                return read()

        return await asyncio.get_running_loop().run_in_executor(threads or self._threads, measured)


def _find_problems(kind: bytes, metrics: Iterable[ToolMetrics]) -> Iterator[str]:
    if kind not in (b"hash", b"none"):
        yield "its metrics cannot be read: they are damaged"
    if unknown := sum(not is_known(name) for each in metrics for name in each.numbers):
        yield f"{unknown} metrics of its tools cannot be read: another version wrote them"


def _describe_failure(meta: dict[str, Any]) -> str:
    result: Any = meta.get("result")
    status = str(meta.get("status"))
    if isinstance(result, dict):
        error = cast("dict[str, Any]", result)
        if status == keys.PARKED_STATE:
            return str(error.get("text"))
        return f"{status}: {error.get('exc_type')}: {error.get('exc_message')}"
    return status
