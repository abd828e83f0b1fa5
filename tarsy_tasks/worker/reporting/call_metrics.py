"""Counting calls in a worker: in memory for each call, in Redis every few seconds.

Owns this process's numbers and what of them is not in Redis yet. A call costs a few additions under a lock; `flush`
adds up over all workers what came together. Labels are names that the worker knows from its servers, never what a model
wrote. `tarsy_tasks.telemetry.metrics` defines the numbers.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.policy import RuleKind
from tarsy_tasks.telemetry.counting import LONGEST, add_numbers, add_up
from tarsy_tasks.telemetry.history import build_count, is_kept
from tarsy_tasks.telemetry.metrics import (
    FAILURES,
    IN_FLIGHT_TTL_S,
    NO_TOOL,
    RECENT_MINUTES,
    LastError,
    ToolMetrics,
    bucket_of,
)
from tarsy_tasks.worker.reporting.call_record import CallRecord
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["CallMetrics"]

Label = tuple[str, str]
"""Server and tool."""
Numbers = dict[str, int]

_TTL_S = 30 * 24 * 3600
_MOST_TOOLS = 1000
"""Of one server; calls of any further ones are counted without their names."""
_LONGEST_NAME = 128
_LONGEST_ERROR = 300
_LONGEST_WAIT_S = 24 * 3600.0
"""A wait that is longer comes from a wrong clock."""
_RECENT_TTL_S = (RECENT_MINUTES + 1) * 60


class CallMetrics:
    """The numbers of this process. Safe to share between threads.

    Attributes:
        clock: That of Redis, kept right by `flush`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[Label, Numbers] = {}
        self._pending: dict[Label, Numbers] = {}
        self._recent: deque[tuple[int, dict[Label, Numbers]]] = deque()
        self._in_flight: dict[Label, int] = {}
        self._errors: dict[Label, LastError] = {}
        self._pending_errors: set[Label] = set()
        self._failures: dict[str, LastError] = {}
        self._pending_failures: set[str] = set()
        self._counted: WeakKeyDictionary[ServerConnection, dict[str, int]] = WeakKeyDictionary()
        self.clock = RedisClock()

    def add(self, server: str, tool: str, numbers: Mapping[str, int]) -> None:
        with self._lock:
            self._add(self._label(server, tool), numbers)

    def _add(self, label: Label, numbers: Mapping[str, int]) -> None:
        total, pending = self._totals.setdefault(label, {}), self._pending.setdefault(label, {})
        for name, value in numbers.items():
            if name != LONGEST:
                total[name] = total.get(name, 0) + value
                pending[name] = pending.get(name, 0) + value
            else:
                if value > total.get(name, 0):
                    total[name] = value
                if value > pending.get(name, 0):
                    pending[name] = value

    def has_counted(self, server: str, tool: str) -> bool:
        """Whether a call of this tool was counted: then the server has listed it."""
        return (server, tool) in self._totals

    def _label(self, server: str, tool: str) -> Label:
        label = server, _cut(tool)
        if label not in self._totals and sum(each[0] == server for each in self._totals) > _MOST_TOOLS:
            return server, NO_TOOL
        return label

    @contextmanager
    def running(self, server: str, tool: str) -> Generator[None]:
        """Count a call as in flight; `tool` is as the server lists it, or `NO_TOOL`."""
        with self._lock:
            label = self._label(server, tool)
            self._in_flight[label] = self._in_flight.get(label, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._in_flight[label] -= 1

    def ended(self, record: CallRecord, result: ToolResult) -> None:
        """As `Observer.ended`. Calls that no worker picked up, or of unknown servers, are not counted."""
        if record.picked_up_at is not None and record.is_served:
            tool = record.tool if record.is_listed else NO_TOOL
            self.note_result(record.server, tool, result, self._waited_s(record), record.task_id)
            if record.denial is not None:
                self.add(record.server, tool, {f"denied:{record.denial.kind}": 1})
                if record.denial.kind is RuleKind.LIMIT:
                    self.add(record.server, NO_TOOL, {f"limited:{record.denial.rule}": 1})

    def note_result(
        self, server: str, tool: str, result: ToolResult, waited_s: float | None, task_id: str = ""
    ) -> None:
        """Count a call that has ended; `waited_s` is how long it waited in its queue, if that is known."""
        numbers = {f"calls:{result.outcome}": 1}
        if result.error_code is not None:
            numbers[f"code:{result.error_code}"] = 1
        if result.attempts and result.duration_s:
            numbers[f"took:{bucket_of(result.duration_s)}"] = 1
            numbers["took:us"] = numbers[LONGEST] = round(result.duration_s * 1e6)
        if result.cached:
            numbers["cached"] = 1
        if result.attempts > 1:
            numbers["retries"] = result.attempts - 1
        if waited_s is not None:
            numbers[f"waited:{bucket_of(waited_s)}"] = 1
            numbers["waited:us"] = round(waited_s * 1e6)
        with self._lock:
            label = self._label(server, tool)
            self._add(label, numbers)
            if result.error_code is not None:
                text = result.content[:_LONGEST_ERROR]
                error = LastError(at=self._now(), code=result.error_code, text=text, task_id=_cut(task_id))
                self._errors[label] = error
                self._pending_errors.add(label)
                field = server if result.outcome in FAILURES else f"{result.outcome} {server}"
                if result.outcome in (*FAILURES, Outcome.TOOL_ERROR):
                    self._failures[field] = error.model_copy(update={"tool": label[1]})
                    self._pending_failures.add(field)

    def _waited_s(self, record: CallRecord) -> float | None:
        """Seconds that a call waited in its queue, by the clock of Redis; None when that cannot be known."""
        sent_at = record.time("sent_at")
        if sent_at is None or record.picked_up_at is None:
            return None
        try:
            waited_s = self.clock.at(record.picked_up_at) - sent_at
        except RuntimeError:
            return None
        return max(0.0, waited_s) if waited_s < _LONGEST_WAIT_S else None

    def _now(self) -> float:
        try:
            return self.clock.now()
        except RuntimeError:
            return time.time()

    def snapshot(self) -> list[ToolMetrics]:
        """What this process has counted since it started."""
        with self._lock:
            recent = [self._pending, *(minute for _, minute in self._recent)]
            return [
                ToolMetrics(
                    *label,
                    dict(self._totals.get(label, {})),
                    add_up([minute.get(label, {}) for minute in recent]),
                    self._in_flight.get(label, 0),
                    self._errors.get(label),
                )
                for label in sorted({*self._totals, *self._in_flight})
            ]

    def flush(self, redis: Any, worker: str, connections: Mapping[str, ServerConnection]) -> None:
        """Add what was counted since the last time to what all workers have counted, in one exchange.

        Raises:
            RedisError: Redis is not there, or takes no writes. Nothing is lost: the next flush tries again. Only when
                the connection breaks after Redis has read it, some seconds are counted twice.
        """
        self.clock.sync(redis)
        now = self.clock.now()
        minute = int(now) // 60
        self._count_sessions(connections)
        with self._lock:
            pending, self._pending = self._pending, {}
            self._remember(minute, pending)
            errors = {label: self._errors[label].model_dump_json() for label in self._pending_errors}
            self._pending_errors.clear()
            failures = {field: self._failures[field].model_dump_json() for field in self._pending_failures}
            self._pending_failures.clear()
            in_flight: dict[str, Numbers] = {}
            for (server, tool), count in self._in_flight.items():
                if count:
                    in_flight.setdefault(server, {})[tool] = count
        fields = _fields_by_server(pending, errors)
        refused = set(fields)
        try:
            with redis.pipeline(transaction=False) as pipeline:
                pipeline.set(keys.in_flight_key(worker), json.dumps(in_flight), ex=int(IN_FLIGHT_TTL_S))
                _touch(pipeline, keys.MEASURING_WORKERS, worker, now, IN_FLIGHT_TTL_S)
                servers = sorted(refused)
                for server in servers:
                    _touch(pipeline, keys.MEASURED_SERVERS, server, now, _TTL_S)
                if failures:
                    pipeline.hset(keys.LAST_FAILURES, mapping=failures)
                    pipeline.expire(keys.LAST_FAILURES, _TTL_S)
                if counted := _numbers_of_minute(pending):
                    pipeline.execute_command(*build_count(now, counted))
                for server in servers:
                    numbers, texts = fields[server]
                    hashes = keys.metrics_key(server), keys.recent_metrics_key(server, minute)
                    ttls_s = [_TTL_S, _RECENT_TTL_S]
                    pipeline.execute_command(*add_numbers.command(*hashes, numbers=numbers, texts=texts, ttls_s=ttls_s))
                replies = pipeline.execute(raise_on_error=False)
            added = replies[len(replies) - len(servers) :]
            refused = {server for server, reply in zip(servers, added, strict=True) if isinstance(reply, Exception)}
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        finally:
            with self._lock:
                for label, numbers in pending.items():
                    if label[0] in refused:
                        self._pending[label] = add_up([self._pending.get(label, {}), numbers])
                self._pending_errors |= {label for label in errors if label[0] in refused}
                self._pending_failures |= {field for field in failures if field.rpartition(" ")[2] in refused}

    def _count_sessions(self, connections: Mapping[str, ServerConnection]) -> None:
        for server, connection in connections.items():
            attempts, opened = connection.connection_attempts
            numbers = {"recreations": connection.sessions_replaced, "suspensions": connection.suspension.count}
            numbers["pauses"] = connection.pause_count
            numbers |= {"connection_attempts": attempts, "connections": opened}
            numbers |= {"ignored_events": connection.ignored_events}
            # Of the connection: another one of the same server begins at zero.
            counted = self._counted.setdefault(connection, {})
            for name, number in numbers.items():
                if more := number - counted.get(name, 0):
                    counted[name] = number
                    self.add(server, NO_TOOL, {name: more})

    def _remember(self, minute: int, numbers: Mapping[Label, Numbers]) -> None:
        if not self._recent or self._recent[-1][0] != minute:
            self._recent.append((minute, {}))
        while self._recent[0][0] <= minute - RECENT_MINUTES:
            self._recent.popleft()
        kept = self._recent[-1][1]
        for label, found in numbers.items():
            kept[label] = add_up([kept.get(label, {}), found])


def _cut(name: str) -> str:
    """A foreign name. It may have half a character, which neither Redis nor Prometheus takes."""
    return name[:_LONGEST_NAME].encode("utf-8", "replace").decode()


def _fields_by_server(
    pending: Mapping[Label, Numbers], errors: Mapping[Label, str]
) -> dict[str, tuple[Numbers, dict[str, str]]]:
    """The fields of each server's hash: numbers to add, and texts to set."""
    fields: dict[str, tuple[Numbers, dict[str, str]]] = {}
    for (server, tool), numbers in pending.items():
        added, _ = fields.setdefault(server, ({}, {}))
        for name, value in numbers.items():
            added[f"{name} {tool}"] = value
    for (server, tool), text in errors.items():
        fields.setdefault(server, ({}, {}))[1][f"last_error {tool}"] = text
    return fields


def _numbers_of_minute(pending: Mapping[Label, Numbers]) -> dict[str, Numbers]:
    """What of all tools together the last hour is made of, by server."""
    counted: dict[str, Numbers] = {}
    for (server, _), numbers in pending.items():
        kept = {name: value for name, value in numbers.items() if is_kept(name)}
        if kept:
            counted[server] = add_up([counted.get(server, {}), kept])
    return counted


def _touch(pipeline: Any, key: str, member: str, now: float, lifetime_s: float) -> None:
    """Keep a member of an index for so long, and remove those that were not kept."""
    pipeline.zadd(key, {member: now})
    pipeline.zremrangebyscore(key, "-inf", now - lifetime_s)
    pipeline.expire(key, int(lifetime_s))
