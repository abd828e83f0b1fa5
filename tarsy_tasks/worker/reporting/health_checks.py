"""How this worker finds its MCP servers, told in Redis.

Owns one thread that says when each server is checked, and writes down how that went: every 15 s, unless a call was
answered or beat's own check came meanwhile, and whenever a connection tells of a change. The checks themselves run on
the session loop, so that a server that hangs holds up no other, and no slot of the pool. What the records mean
together, `tarsy_tasks.health` says; what changed in the tools, `tool_changes`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from celery import bootsteps
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.key_types import delete_wrong_types, is_wrong_type
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.catalogue import CATALOGUE_TTL_S
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S, RECORD_TTL_S, HealthRecord
from tarsy_tasks.telemetry.history import build_count, health_numbers
from tarsy_tasks.worker.reporting import alerts
from tarsy_tasks.worker.reporting.tool_changes import record_listing
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.listing import build_listing
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["HealthChecks", "HealthStep", "request_check"]

logger = logging.getLogger(__name__)

_LIST_S = 5.0
_CONNECT_S = 2.5
"""A check that is asked for every 15 s and a server that refuses: told within 20 s that it is gone."""
_SLACK_S = 0.5
"""Checks of beat come every 15 s, too; a worker that gets them all makes none of its own."""
_FIRST_S = 2.0
"""The first checks of all servers are spread over so many seconds."""
_STARTING_S = 1.0
"""How often one looks after a server that is started for the first time."""
_BUSY_S = RECORD_TTL_S - CHECK_INTERVAL_S
"""A server that is busy with calls, and answered one so lately, is as well as it was then."""
_AGAIN_S = 5.0
"""A check that finds a server ill is soon followed by another one, which may give the alert."""
_PAUSE_S = 0.5
_STOP_S = 5.0


@dataclass
class _Watched:
    """What the thread knows of one server.

    Attributes:
        due: Monotonic time of the next check.
        checking: A check is under way.
        queue_wait_s: What beat's check, whose outcome is awaited, waited in its queue.
        is_asked: Beat's check came, and is not answered yet.
        listed: The tools that were last written down.
        healthy: The last verdict, since `since`, by the clock of Redis.
    """

    connection: ServerConnection
    due: float
    checking: bool = False
    is_asked: bool = False
    queue_wait_s: float | None = None
    listed: Mapping[str, ToolDefinition] | None = None
    healthy: bool | None = None
    since: float = 0.0


@dataclass(frozen=True)
class _Asked:
    server: str
    queue_wait_s: float | None


@dataclass(frozen=True)
class _Changed:
    server: str


@dataclass(frozen=True)
class _Checked:
    server: str
    error: str | None
    latency_s: float
    is_busy: bool
    is_restarting: bool


@dataclass(frozen=True)
class _Stop:
    pass


_Event = _Asked | _Changed | _Checked | _Stop


class HealthChecks:
    """Checks servers, and keeps this worker's records in Redis fresh, from `start` to `stop`.

    Args:
        connections: The ways to the servers, by id.
        loop: Where they live.
        redis: A redis-py client of the result backend.
        worker: Name of this worker.
        limit_of: Gives how many calls of a server run here at once.
    """

    def __init__(
        self,
        connections: Mapping[str, ServerConnection],
        loop: SessionLoop,
        redis: Any,
        *,
        worker: str,
        limit_of: Callable[[str], int | None],
    ) -> None:
        self._limit_of = limit_of
        self._loop = loop
        self._redis = redis
        self._exchange = RedisExchange(redis.connection_pool)
        self._worker = worker
        self._clock = RedisClock()
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._can_write = True
        begin, step = time.monotonic(), _FIRST_S / max(1, len(connections))
        self._watched = {
            name: _Watched(connection, due=begin + number * step)
            for number, (name, connection) in enumerate(connections.items())
        }
        self._thread = threading.Thread(target=self._run, name="mcp-health", daemon=True)

    def start(self) -> None:
        for name, watched in self._watched.items():
            watched.connection.on_change = lambda server=name: self._events.put(_Changed(server))
        self._thread.start()

    def stop(self) -> None:
        """End the thread; this worker's records are taken back, for it serves no more."""
        self._events.put(_Stop())
        self._thread.join(_STOP_S)

    def request(self, server: str, queue_wait_s: float | None) -> None:
        """Check a server now, for beat; returns at once.

        Args:
            queue_wait_s: Seconds that the request waited in its queue, None if that is not known.
        """
        self._events.put(_Asked(server, queue_wait_s))

    def _run(self) -> None:
        while True:
            events = self._next_events()
            try:
                touched: dict[str, HealthRecord] = {}
                if self._sync_clock():
                    touched = self._handle(events)
                self._write(touched)
            except Exception:
                logger.exception("the health checks failed, and go on")
            if _Stop() in events:
                self._withdraw()
                return

    def _next_events(self) -> list[_Event]:
        """What happened; waits for that until a check is due."""
        wait_s = min((watched.due for watched in self._watched.values()), default=time.monotonic() + CHECK_INTERVAL_S)
        events: list[_Event] = []
        try:
            # Checks that are due one shortly after the other are begun together.
            events.append(self._events.get(timeout=max(_PAUSE_S, wait_s - time.monotonic())))
            while True:
                events.append(self._events.get_nowait())
        except Empty:
            return events

    def _sync_clock(self) -> bool:
        try:
            self._clock.sync(self._redis)
        except (RedisError, OSError) as error:
            self._tell_redis(error)
            try:
                self._clock.now()
            except RuntimeError:
                return False
        return True

    def _handle(self, events: list[_Event]) -> dict[str, HealthRecord]:
        records: dict[str, HealthRecord] = {}
        for event in events:
            if isinstance(event, _Stop):
                continue
            watched = self._watched[event.server]
            match event:
                case _Asked(server, queue_wait_s):
                    watched.is_asked, watched.queue_wait_s = True, queue_wait_s
                    self._begin_check(server, watched)
                case _Checked(server, error, latency_s, is_busy, is_restarting):
                    watched.checking = False
                    watched.due = time.monotonic() + CHECK_INTERVAL_S + _SLACK_S
                    if is_busy and time.monotonic() - watched.connection.answered_at < _BUSY_S:
                        records[server] = self._record(watched, None, watched.connection.answered_at, None)
                        continue
                    record = self._record(watched, error, time.monotonic(), latency_s)
                    records[server] = record.model_copy(update={"is_busy": is_busy, "is_restarting": is_restarting})
                case _Changed(server):
                    if watched.connection.session is not None:
                        records[server] = self._record(watched, None, watched.connection.answered_at, None)
                    elif watched.connection.error is not None:
                        records[server] = self._record(watched, watched.connection.trouble, time.monotonic(), None)
        now = time.monotonic()
        for server, watched in self._watched.items():
            if now < watched.due:
                continue
            answered_at = watched.connection.answered_at
            if watched.connection.session is not None and now - answered_at < CHECK_INTERVAL_S:
                watched.due = answered_at + CHECK_INTERVAL_S + _SLACK_S
                records[server] = self._record(watched, None, answered_at, None)
            else:
                watched.due = now + CHECK_INTERVAL_S + _SLACK_S
                self._begin_check(server, watched)
        return records

    def _begin_check(self, server: str, watched: _Watched) -> None:
        if watched.connection.is_starting:
            # That its first start takes a while says nothing. How it goes, the connection tells.
            watched.due = time.monotonic() + _STARTING_S
        elif not watched.checking:
            watched.checking = True
            self._loop.submit(self._check(server, watched.connection))

    async def _check(self, server: str, connection: ServerConnection) -> None:
        timeouts = connection.server.timeouts
        list_s = timeouts.list_s if "list_s" in timeouts.model_fields_set else _LIST_S
        started = time.monotonic()
        error: str | None = None
        is_busy = is_restarting = False
        try:
            is_busy = not await connection.check(list_s, min(_CONNECT_S, timeouts.recreate_s))
        except CallError as failure:
            error = connection.trouble if failure is connection.error else failure.text
            is_restarting = connection.is_restarting
        except Exception as failure:
            logger.exception("the check of MCP server %s failed", server)
            error = connection.masker.mask_start(f"the check itself failed: {failure!r}", 250)
        self._events.put(_Checked(server, error, time.monotonic() - started, is_busy, is_restarting))

    def _record(self, watched: _Watched, error: str | None, checked_at: float, latency_s: float | None) -> HealthRecord:
        """A record for what was found at a monotonic time."""
        connection, now = watched.connection, self._clock.now()
        session = connection.session
        healthy = error is None
        if watched.healthy is not healthy:
            watched.healthy, watched.since = healthy, now
            if not healthy:
                watched.due = min(watched.due, time.monotonic() + _AGAIN_S)
        recent, failed = connection.recent_calls
        return HealthRecord(
            server=connection.server.name,
            healthy=healthy,
            error=connection.masker.mask(error) if error else None,
            latency_s=None if latency_s is None else round(latency_s, 6),
            tool_count=len(session.tools) if session else None,
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
            is_held=connection.is_held,
            max_concurrency=self._limit_of(connection.server.name),
        )

    def _write(self, records: Mapping[str, HealthRecord]) -> None:
        """All records in one exchange with Redis, which says what is an alert; after it the tools that changed."""
        if not records:
            return
        ttl_s, now = int(RECORD_TTL_S), self._clock.now()
        key = keys.worker_health_key(self._worker)
        fields = [word for server, record in records.items() for word in (server, record.model_dump_json())]
        commands: list[tuple[Any, ...]] = [
            ("HSET", key, *fields),
            ("EXPIRE", key, ttl_s),
            ("ZADD", keys.HEALTH_WORKERS, now, self._worker),
            ("ZREMRANGEBYSCORE", keys.HEALTH_WORKERS, "-inf", now - RECORD_TTL_S),
            ("EXPIRE", keys.HEALTH_WORKERS, ttl_s),
        ]
        counted: dict[str, dict[str, int]] = {}
        for server, record in records.items():
            watched = self._watched[server]
            is_answer = watched.is_asked and not watched.checking
            counted[server] = health_numbers(record, came_through_queue=is_answer)
            if is_answer:
                answer = record.model_copy(update={"queue_wait_s": watched.queue_wait_s})
                commands.append(("SET", keys.health_key(server), answer.model_dump_json(), "EX", ttl_s))
                watched.is_asked = False
        commands.append(build_count(now, counted))
        catalogues = [
            (server, key)
            for server in records
            if self._watched[server].connection.session is not None
            for key in (keys.tools_key(server), keys.approved_tools_key(server))
        ]
        commands += [("EXPIRE", key, CATALOGUE_TTL_S) for _, key in catalogues]
        first = len(commands)
        commands += [("TYPE", key) for _, key in catalogues]
        commands += [alerts.note_command(record) for record in records.values() if not record.is_restarting]
        try:
            replies = self._execute(commands)[first:]
            for reply in replies[len(catalogues) :]:
                alerts.pass_on(reply)
            for (server, _), kind in zip(catalogues, replies[: len(catalogues)], strict=True):
                if kind != b"hash":
                    self._watched[server].listed = None
            for server in records:
                self._write_tools(self._watched[server])
        except (RedisError, OSError) as error:
            self._tell_redis(error)
        else:
            self._can_write = True

    def _execute(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """The replies, also where somebody has put something else in the place of the records. May send twice."""
        try:
            return self._exchange.execute(*commands)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            delete_wrong_types(self._redis, {keys.worker_health_key(self._worker): "hash", keys.HEALTH_WORKERS: "zset"})
            return self._exchange.execute(*commands)

    def _write_tools(self, watched: _Watched) -> None:
        session = watched.connection.session
        if session is None or session.tools is watched.listed:
            return
        tools = session.tools
        try:
            listing = build_listing(watched.connection.server, session, watched.connection.masker)
            record_listing(self._redis, listing, worker=self._worker)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            raise
        except Exception:
            # Of one server only; the next check tries again.
            logger.exception("the tools of MCP server %s were not written down", watched.connection.server.name)
        else:
            watched.listed = tools

    def _withdraw(self) -> None:
        try:
            self._exchange.execute(
                ("DEL", keys.worker_health_key(self._worker)), ("ZREM", keys.HEALTH_WORKERS, self._worker)
            )
        except (RedisError, OSError) as error:
            self._tell_redis(error)

    def _tell_redis(self, error: Exception) -> None:
        if self._can_write:
            logger.warning("the health of the MCP servers could not be written to Redis: %s", error)
        self._can_write = False


class HealthStep(bootsteps.StartStopStep):
    """Runs the checks while the worker's pool runs."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._checks: HealthChecks | None = None

    def start(self, parent: Any) -> None:
        worker = parent
        logging.getLogger("celery.app.trace").addFilter(_is_no_check)
        self._checks = HealthChecks(
            worker.pool.connections,
            worker.pool.loop,
            worker.app.backend.client,
            worker=worker.hostname,
            limit_of=worker.pool.limit_of,
        )
        self._checks.start()
        _running.append(self._checks)

    def stop(self, parent: Any) -> None:  # noqa: ARG002
        if self._checks is not None:
            _running.remove(self._checks)
            self._checks.stop()
            self._checks = None

    terminate = stop


_running: list[HealthChecks] = []
"""Of this process: at most one."""


def request_check(server: str, queue_wait_s: float | None) -> None:
    """As `HealthChecks.request`, in whatever worker this process is; while that stops, nothing."""
    for checks in _running:
        checks.request(server, queue_wait_s)


def _is_no_check(record: logging.LogRecord) -> bool:
    """Checks are many, and a change of health has its own line."""
    return not (
        record.levelno <= logging.INFO and isinstance(record.args, dict) and record.args.get("name") == CHECK_SERVER
    )
