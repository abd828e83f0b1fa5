"""The health of the MCP servers, as this worker finds it.

Owns one thread that decides when each server is checked, and what the outcome says: every 15 s, unless a call was
answered or beat's own check came in between, and whenever a connection reports a change. The checks run on the session
loop, so a server that hangs delays no other one and takes no slot of the pool. What the records of all workers mean
together is in `telemetry.health_records`; writing them is in `health_writer`.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from redis.exceptions import RedisError

from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.health_records import (
    CHECK_INTERVAL_S,
    RECORD_TTL_S,
    HealthRecord,
    TakenConfiguration,
)
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.maskers import build_record_masker
from tarsy_tasks.worker.reporting.alerts import AlertFeed
from tarsy_tasks.worker.reporting.health_writer import HealthWriter
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.session_check import check_connection
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["HealthChecks"]

logger = logging.getLogger(__name__)

_LIST_S = 5.0
_CONNECT_S = 2.5
"""With a check every 15 s, a server that refuses is reported within 20 s."""
_MARGIN_S = 0.5
"""Beat's checks come every 15 s too; a worker that gets all of them makes no checks of its own."""
_SPREAD_S = 2.0
"""The first checks of all servers are spread over this time."""
_STARTING_S = 1.0
"""The interval for a server that starts for the first time."""
_BUSY_S = RECORD_TTL_S - CHECK_INTERVAL_S
"""A server that is busy with calls counts as healthy for this time after its last answer."""
_RECHECK_S = 5.0
"""A check that finds a server unhealthy is repeated so soon, and the second one may cause the alert."""
_MIN_WAIT_S = 0.5
_STOP_S = 5.0
_TARGET_CHARS = 300


@dataclass
class _Watched:
    """The state of one server's checks.

    Attributes:
        due: Monotonic time of the next check.
        target: The server's program or address, for people.
        is_requested: Beat's check came, and is not answered yet.
        queue_wait_s: How long beat's check waited in its queue.
        last: Its last record.
        healthy: The last verdict; it holds since `since`, by the clock of Redis.
    """

    connection: ServerConnection
    due: float
    target: str
    last: HealthRecord | None = None
    is_checking: bool = False
    is_requested: bool = False
    queue_wait_s: float | None = None
    healthy: bool | None = None
    since: float = 0.0


def _describe_target(server: ServerConfig) -> str:
    """The program or the address of a server, as configured: references to variables stay."""
    if (text := server.command_line) is None:
        text = re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", server.url or "")[0])
    return build_record_masker(server).mask(text)[:_TARGET_CHARS].encode("utf-8", "replace").decode()


_Event = Callable[[dict[str, HealthRecord]], None] | None
"""What happened, as a function that adds the records for it; None: the worker stops."""


class HealthChecks:
    """Checks servers, and keeps this worker's records in Redis fresh, from `start` to `stop`.

    Args:
        redis: A redis-py client of the result backend.
        alerts: Gets the alerts that the checks cause.
        max_concurrency: How many calls of a server this worker runs at once; None if there is no limit.
        taken: Which configuration this worker has.
    """

    def __init__(
        self,
        connections: Mapping[str, ServerConnection],
        loop: SessionLoop,
        redis: Any,
        alerts: AlertFeed,
        max_concurrency: Callable[[str], int | None],
        taken: Callable[[], TakenConfiguration],
        *,
        worker: str,
    ) -> None:
        self._loop = loop
        self._redis = redis
        self._writer = HealthWriter(connections, redis, alerts, worker)
        self._max_concurrency = max_concurrency
        self._taken = taken
        self._worker = worker
        self._clock = RedisClock()
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._stopping = threading.Event()
        self._is_report_due = False
        self._outage = OutageLog(logger, "the health of the MCP servers cannot be written to Redis")
        begin, step = time.monotonic(), _SPREAD_S / max(1, len(connections))
        self._watched = {
            name: _Watched(connection, due=begin + number * step, target=_describe_target(connection.server))
            for number, (name, connection) in enumerate(connections.items())
        }
        self._thread = threading.Thread(target=self._run, name="mcp-health", daemon=True)

    def start(self) -> None:
        for watched in self._watched.values():
            self._follow(watched)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and delete this worker's records, because it serves no more."""
        self._stopping.set()
        self._events.put(None)
        self._thread.join(_STOP_S)

    def request(self, server: str, queue_wait_s: float | None) -> None:
        """Check a server now, for beat; returns at once. `queue_wait_s` is None if it is not known."""
        self._events.put(partial(self._on_request, server, queue_wait_s))

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`; the server is checked at once."""
        watched = _Watched(connection, due=time.monotonic(), target=_describe_target(connection.server))
        self._follow(watched)
        self._events.put(partial(self._on_add, watched))

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`; its record is deleted."""
        self._events.put(partial(self._on_remove, server))

    def report_configuration(self) -> None:
        """`taken` gives something else from now on: write it to the records at once. From any thread."""
        self._is_report_due = True
        self._events.put(_begin_round)

    def _follow(self, watched: _Watched) -> None:
        watched.connection.on_change = partial(self._events.put, partial(self._on_change, watched))

    def _on_add(self, watched: _Watched, records: dict[str, HealthRecord]) -> None:
        self._watched[watched.connection.server.name] = watched
        self._on_change(watched, records)

    def _on_remove(self, server: str, records: dict[str, HealthRecord]) -> None:
        if self._watched.pop(server, None) is not None:
            records.pop(server, None)
            self._attempt(partial(self._writer.forget, server))

    def _run(self) -> None:
        # Without the time of Redis nothing can be recorded: until it is known, what happens waits.
        while not self._sync_clock():
            if self._stopping.wait(_MIN_WAIT_S):
                return
        is_open = True
        while is_open:
            events = self._next_events()
            is_open = None not in events
            self._sync_clock()
            self._try(self._report_configuration)
            records: dict[str, HealthRecord] = {}
            for event in events:
                if event is not None:
                    self._try(partial(event, records))
            for server in [*self._watched]:
                self._try(partial(self._begin_due_check, server, records))
            self._try(partial(self._write, records))
        self._attempt(self._writer.withdraw)

    def _report_configuration(self) -> None:
        """Write which configuration this worker has into the records that there are. The checks and tools of a round,
        which may take their time, come afterwards."""
        if not self._is_report_due:
            return
        self._is_report_due = False
        fields = self._taken().fields
        records: dict[str, HealthRecord] = {}
        for server, watched in self._watched.items():
            if watched.last is not None:
                records[server] = watched.last = watched.last.model_copy(update=fields)
        if records and not self._attempt(partial(self._writer.rewrite, records)):
            self._is_report_due = True

    def _next_events(self) -> list[_Event]:
        """What happened; waits until something did, or a check is due."""
        due = min((watched.due for watched in self._watched.values()), default=time.monotonic() + CHECK_INTERVAL_S)
        events: list[_Event] = []
        try:
            # Checks that are due at nearly the same time begin together.
            events.append(self._events.get(timeout=max(_MIN_WAIT_S, due - time.monotonic())))
            while True:
                events.append(self._events.get_nowait())
        except Empty:
            return events

    def _sync_clock(self) -> bool:
        try:
            self._clock.sync(self._redis)
        except (RedisError, OSError) as error:
            self._outage.failed(error)
            try:
                self._clock.now()
            except RuntimeError:
                return False
        return True

    def _begin_due_check(self, server: str, records: dict[str, HealthRecord]) -> None:
        watched, now = self._watched[server], time.monotonic()
        if now < watched.due:
            return
        answered_at = watched.connection.availability.answered_at
        if watched.connection.session is not None and now - answered_at < CHECK_INTERVAL_S:
            watched.due = answered_at + CHECK_INTERVAL_S + _MARGIN_S
            records[server] = self._record_answer(watched)
        else:
            watched.due = now + CHECK_INTERVAL_S + _MARGIN_S
            self._begin_check(watched, records)

    def _on_request(self, server: str, queue_wait_s: float | None, records: dict[str, HealthRecord]) -> None:
        watched = self._watched.get(server)
        if watched is not None:  # it may have been removed meanwhile
            watched.is_requested, watched.queue_wait_s = True, queue_wait_s
            self._begin_check(watched, records)

    def _is_watched(self, watched: _Watched) -> bool:
        return self._watched.get(watched.connection.server.name) is watched

    def _on_change(self, watched: _Watched, records: dict[str, HealthRecord]) -> None:
        if not self._is_watched(watched):
            return  # its last words: another connection has taken its place, or none
        connection = watched.connection
        if connection.session is not None:
            records[connection.server.name] = self._record_answer(watched)
        elif connection.is_idle:
            records[connection.server.name] = self._record(watched, None, time.monotonic(), None)
        elif (failure := connection.error) is not None:
            error = failure.operator_text
            records[connection.server.name] = self._record(watched, error, time.monotonic(), None, failure.code)

    def _begin_check(self, watched: _Watched, records: dict[str, HealthRecord]) -> None:
        if watched.connection.is_idle:
            # A check starts no server.
            records[watched.connection.server.name] = self._record(watched, None, time.monotonic(), None)
        elif watched.connection.is_starting:
            # A slow first start says nothing about health; the connection reports its outcome.
            watched.due = time.monotonic() + _STARTING_S
        elif not watched.is_checking:
            watched.is_checking = True
            self._loop.submit(self._check(watched))

    async def _check(self, watched: _Watched) -> None:
        connection = watched.connection
        timeouts = connection.server.timeouts
        list_s = timeouts.list_s if "list_s" in timeouts.model_fields_set else _LIST_S
        started = time.monotonic()
        error: str | None = None
        code: ErrorCode | None = None
        is_busy = is_restarting = False
        try:
            is_busy = not await check_connection(connection, list_s, min(_CONNECT_S, timeouts.recreate_s))
        except NoSessionError as failure:
            error, code, is_restarting = failure.operator_text, failure.code, connection.is_restarting
        except Exception as failure:
            logger.exception("the check of MCP server %s failed", connection.server.name)
            error = connection.masker.mask_start(f"the check itself failed: {failure!r}", 250)
        latency_s = time.monotonic() - started

        def on_end(records: dict[str, HealthRecord]) -> None:
            watched.is_checking = False
            if not self._is_watched(watched):
                return
            now = time.monotonic()
            watched.due = now + CHECK_INTERVAL_S + _MARGIN_S
            if is_busy and now - connection.availability.answered_at < _BUSY_S:
                record = self._record_answer(watched)
            else:
                record = self._record(watched, error, now, latency_s, code)
                record = record.model_copy(update={"is_busy": is_busy, "is_restarting": is_restarting})
            records[connection.server.name] = record

        self._events.put(on_end)

    def _record_answer(self, watched: _Watched) -> HealthRecord:
        """The server answered a call or a check a moment ago."""
        return self._record(watched, None, watched.connection.availability.answered_at, None)

    def _record(
        self,
        watched: _Watched,
        error: str | None,
        checked_at: float,
        latency_s: float | None,
        code: ErrorCode | None = None,
    ) -> HealthRecord:
        """A record for what was found at a monotonic time."""
        connection, now = watched.connection, self._clock.now()
        session, listed, healthy = connection.session, connection.listed, error is None
        if watched.healthy is not healthy:
            watched.healthy, watched.since = healthy, now
            if not healthy:
                watched.due = min(watched.due, time.monotonic() + _RECHECK_S)
        recent, failed = connection.recent_calls.count()
        record = watched.last = HealthRecord(
            server=connection.server.name,
            healthy=healthy,
            error=connection.masker.mask(error) if error else None,
            error_code=code,
            target=watched.target,
            longer_attempt_s=None if healthy else connection.errors.longer_attempt_s,
            latency_s=None if latency_s is None else round(latency_s, 6),
            is_idle=connection.is_idle,
            tool_count=len(listed.tools) if listed else None,
            checked_at=round(now - (time.monotonic() - checked_at), 6),
            since=round(watched.since, 6),
            recent_calls=recent,
            failed_calls=failed,
            worker=self._worker,
            transport=connection.server.transport,
            protocol=session.protocol if session else None,
            era=session.era if session else None,
            server_info=connection.masker.mask(session.server_info) if session else None,
            sessions_opened=connection.sessions_opened,
            is_held=connection.is_disconnected_by_operator,
            max_concurrency=self._max_concurrency(connection.server.name),
            state=connection.state,
            connected_since=round(now - (time.monotonic() - session.opened_at), 3) if session else None,
            capabilities=listed.capabilities if listed else (),
            last_error=connection.masker.mask(last.operator_text) if (last := connection.last_error) else None,
            in_flight=connection.in_flight,
            sessions_replaced=connection.sessions_replaced,
            tools_digest=self._writer.digest_of(listed) if connection.agents is None else None,
        ).model_copy(update=self._taken().fields)
        return record

    def _write(self, records: Mapping[str, HealthRecord]) -> None:
        if not records:
            return
        answered: dict[str, float | None] = {}
        for server in records:
            watched = self._watched[server]
            if watched.is_requested and not watched.is_checking:
                answered[server] = watched.queue_wait_s
                watched.is_requested = False
        if not self._attempt(partial(self._writer.write, records, answered, self._clock.now())):
            return
        for server in records:
            self._report_configuration()
            if not self._attempt(partial(self._writer.write_tools, server)):
                return

    def _try(self, act: Callable[[], None]) -> None:
        """One step of a round; if it fails, the others count nevertheless."""
        try:
            act()
        except Exception:
            logger.exception("a step of the health checks failed")

    def _attempt(self, write: Callable[[], None]) -> bool:
        """Whether it was written."""
        try:
            write()
        except (RedisError, OSError) as error:
            self._outage.failed(error)
            return False
        self._outage.succeeded()
        return True


def _begin_round(_: dict[str, HealthRecord]) -> None:
    """The event after which there is something to write."""
