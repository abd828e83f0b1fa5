"""The audit: one entry in Redis for each call that has ended.

Owns the shape of an entry and reading them: newest or oldest first, filtered, page by page, or live. There are two
streams, so that agents, which may write to one of them, cannot forge the entries of workers: a worker writes the entry
of every call that a worker took, in the step that ends it (`broker.deliveries`); agents write those of all other calls.
An entry that cannot be read is shown as damaged.
"""

import hashlib
import heapq
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.agent_audit import FURTHEST_AHEAD_S
from tarsy_tasks.methods import TOOL_CALL
from tarsy_tasks.models import LargeResult
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.priorities import NORMAL

__all__ = [
    "LATEST_S",
    "AuditEntry",
    "AuditFilter",
    "AuditPage",
    "Follower",
    "Source",
    "Step",
    "StepName",
    "build_canonical",
    "build_digest",
    "read_audit",
]

Source = Literal["worker", "agent"]
"""Who wrote an entry; each has a stream."""

_STREAMS: dict[Source, str] = {"agent": keys.AGENT_AUDIT, "worker": keys.AUDIT}
_RANKS: dict[Source, int] = {source: rank for rank, source in enumerate(_STREAMS)}
LATEST_S = 253_402_300_799
"""The end of the year 9999, where the calendar of Python ends."""
_LONGEST_BYTES = 64 * 1024
_FIRST_CHUNK, _LARGEST_CHUNK = 50, 1000
_REPAIR_S = 1.0
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


class StepName(StrEnum):
    """The steps of a call, in this order; those in the middle may be missing or repeated."""

    QUEUED = "queued"
    """Published, by the time in the message."""
    PICKED_UP = "picked_up"
    """Started by a thread of a worker's pool."""
    SENT = "sent"
    """Sent to the MCP server; once for each attempt, but of an earlier worker only its first is known."""
    RECOVERED = "recovered"
    """A new session has replaced the one that was lost."""
    ANSWERED = "answered"
    """It has ended."""


class Step(BaseModel):
    """One step of a call.

    Attributes:
        at: Seconds since the epoch, by the clock of Redis.
        worker: Node name of an earlier worker, which sent the call and was lost or stopped; None of any other step.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: StepName
    at: float = Field(ge=0, le=LATEST_S, allow_inf_nan=False)
    worker: str | None = None


class AuditEntry(BaseModel):
    """How one call ended.

    Attributes:
        id: Of the entry in its stream: milliseconds since the epoch, when Redis took it, and a number.
        source: Who wrote it. Entries of agents are not verified.
        damage: Why it cannot be read; then only `id`, `source` and `at` are known. None if it can.
        at: When the call ended, in seconds since the epoch by the clock of Redis.
        call_id: The model's id of the call. The caller gives it, and `agent_id` and `run_id`, too.
        task_id: Celery's id of the task, empty for a call that was rejected before it was sent.
        principal: Who called, as far as a worker could verify that; None for an anonymous call. Agents do not say it.
        priority: By which the call waited; of an agent's entry, by which it was to wait.
        operation: `tool_call`, or the method of another request, which then stands in place of the tool, too.
        tool: Name of the tool as it was requested, or as the server lists it; without the server's id.
        arguments: Masked and cut: JSON with sorted keys, or the text that could not be read as JSON.
        arguments_digest: SHA-256, in hexadecimal, of the arguments as `build_canonical` writes them, before masking:
            as they were sent to the MCP server, or as they came if they were not sent.
        repairs: As in `ToolResult`.
        outcome: None only of a damaged entry.
        error_code: An `ErrorCode`, perhaps of a later version; None if the outcome is `ok`.
        error: The text that the agent got, masked and cut.
        policy: The version of the policy that decided whether it was permitted; None if none did.
        rule: The place of the rule in it that denied the call; None if it was permitted.
        approval: What people decided of it, and who: `approved by ann, bob`; None if nobody was asked.
        input: How often the server asked for input, and who answered last; None if it did not.
        attempts: How often the call was sent to the MCP server by the worker that answered it.
        duration_s, cached: As in `ToolResult`.
        worker: Node name of the worker that wrote it; empty for an agent.
        bytes: Size of the stored answer; None if none was stored.
        large: What the result had in all, if it was cut, and its handle; None if it is whole.
        steps: When it took its steps.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = 1
    id: str = ""
    source: Source = "worker"
    damage: str | None = None
    at: float = Field(ge=0, le=LATEST_S, allow_inf_nan=False)
    call_id: str = ""
    task_id: str = ""
    agent_id: str | None = None
    run_id: str | None = None
    principal: str | None = None
    priority: str = NORMAL
    server: str = ""
    operation: str = TOOL_CALL
    tool: str = ""
    arguments: str = ""
    arguments_digest: str = ""
    repairs: tuple[str, ...] = ()
    outcome: Outcome | None = None
    error_code: str | None = None
    error: str | None = None
    policy: str | None = None
    rule: str | None = None
    approval: str | None = None
    input: str | None = None
    attempts: int = 0
    duration_s: float = Field(default=0.0, allow_inf_nan=False)
    worker: str = ""
    bytes: int | None = None
    cached: bool = False
    large: LargeResult | None = None
    steps: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        """`server.tool`, as far as it is known."""
        return f"{self.server}.{self.tool}" if self.server and self.tool else self.server or self.tool

    @property
    def cursor(self) -> str:
        """Position of the entry, for the next page of `read_audit`."""
        return f"{self.id} {self.source}"

    def encode(self) -> str:
        """The text that Redis stores. Stream and id are known from where it is stored."""
        unset = {name for name, default in _DEFAULTS.items() if getattr(self, name) == default}
        return self.model_dump_json(exclude={"id", "source", "damage", *unset}, exclude_none=True)


class AuditFilter(BaseModel):
    """Which entries are wanted. A filter on anything but the time leaves out damaged entries.

    Attributes:
        tool: A glob (`get_*`, `k8s.*`) that matches the name of a tool, with or without its server.
        outcomes: Any of these; empty for all.
        since: Entries written from then on, in seconds since the epoch by the clock of Redis.
        until: Entries written up to then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str | None = None
    operation: str | None = None
    tool: str | None = None
    outcomes: frozenset[Outcome] = frozenset()
    error_code: str | None = None
    worker: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    principal: str | None = None
    priority: str | None = None
    call_id: str | None = None
    task_id: str | None = None
    since: float | None = Field(default=None, ge=0, le=LATEST_S, allow_inf_nan=False)
    until: float | None = Field(default=None, ge=0, le=LATEST_S, allow_inf_nan=False)

    def matches(self, entry: AuditEntry) -> bool:
        """Whether an entry is wanted; its time is not compared."""
        return (
            (self.tool is None or fnmatchcase(entry.tool, self.tool) or fnmatchcase(entry.name, self.tool))
            and (not self.outcomes or entry.outcome in self.outcomes)
            and all(getattr(self, name) in (None, getattr(entry, name)) for name in _IDS)
            and (entry.damage is None or self._is_only_a_time)
        )

    @property
    def _is_only_a_time(self) -> bool:
        return not self.model_dump(exclude={"since", "until"}, exclude_defaults=True)


@dataclass(frozen=True)
class AuditPage:
    """Some entries, in the requested order.

    Attributes:
        entries: Those that match.
        cursor: Where the next page begins; None when there are no more.
    """

    entries: list[AuditEntry]
    cursor: str | None


_EVERYTHING = AuditFilter()
_DEFAULTS = {"priority": NORMAL, "operation": TOOL_CALL, "cached": False}
_IDS = AuditFilter.model_fields.keys() - {"tool", "outcomes", "since", "until"}


def read_audit(
    redis: Any,
    wanted: AuditFilter = _EVERYTHING,
    *,
    limit: int = 100,
    newest_first: bool = True,
    after: str | None = None,
    scan_limit: int | None = None,
    ends: Mapping[Source, str] | None = None,
) -> AuditPage:
    """A page of entries of both streams, without those whose ids are in the future: workers give them others.

    Args:
        redis: A redis-py client of the broker's database, one that decodes nothing.
        limit: How many at most.
        after: The `cursor` of a page or an entry; the page begins after it.
        scan_limit: How many entries to read, where few match; None for all.
        ends: Ids of the last entries to read, by stream.

    Raises:
        RedisError: Redis cannot be reached, or one of the keys has another type.
        ValueError: `after` is not a cursor.
    """
    if limit <= 0:
        return AuditPage([], after)
    begun = None if after is None else _parse_cursor(after)
    scans: list[Iterator[AuditEntry]] = []
    latest = _latest_ms(redis)
    for source in _STREAMS:
        first = "-" if wanted.since is None else str(int(wanted.since * 1000))
        last = (ends or {}).get(source) or str(
            latest if wanted.until is None else min(latest, int(wanted.until * 1000))
        )
        if begun is not None:
            place, beside = begun
            # If two streams have the same id, the agents' entry comes first.
            is_behind = _RANKS[source] < _RANKS[beside] if newest_first else _RANKS[source] > _RANKS[beside]
            bound = place if is_behind else f"({place}"
            begun_ms = _milliseconds(place.encode())
            if newest_first and (wanted.until is None or begun_ms <= int(wanted.until * 1000)):
                last = bound
            elif not newest_first and (wanted.since is None or begun_ms >= int(wanted.since * 1000)):
                first = bound
        scans.append(_scan(redis, source, first, last, newest_first=newest_first, chunk=limit))
    entries: list[AuditEntry] = []
    for scanned, entry in enumerate(heapq.merge(*scans, key=_order, reverse=newest_first), start=1):
        if wanted.matches(entry):
            entries.append(entry)
        if len(entries) == limit or scanned == scan_limit:
            return AuditPage(entries, entry.cursor)
    return AuditPage(entries, None)


class Follower:
    """Reads new entries. It goes on with another client after the first one failed, and misses nothing."""

    def __init__(self, wanted: AuditFilter = _EVERYTHING) -> None:
        self._wanted = wanted
        self._read: dict[Source, str] = {}

    def begin(self, redis: Any, limit: int) -> list[AuditEntry]:
        """The latest entries, oldest first; `poll` continues after them. Raises as `read_audit`."""
        latest = _latest_ms(redis)
        for source, key in _STREAMS.items():
            last = redis.xrevrange(key, max=latest, count=1)
            self._read[source] = last[0][0].decode() if last else "0-0"
        return read_audit(redis, self._wanted, limit=limit, ends=self._read).entries[::-1]

    def poll(self, redis: Any, timeout_s: float) -> list[AuditEntry]:
        """The entries since the last call; waits for one if there are none. Raises as `read_audit`.

        Args:
            redis: Its socket timeout must be longer.
        """
        if not self._read:
            self.begin(redis, 0)
        places = {_STREAMS[source]: last for source, last in self._read.items()}
        replies = redis.xread(places, count=_LARGEST_CHUNK, block=max(1, int(timeout_s * 1000)))
        latest = _latest_ms(redis)
        found: list[AuditEntry] = []
        for key, entries in replies or ():
            source: Source = "worker" if key.decode() == keys.AUDIT else "agent"
            for each in entries:
                if _milliseconds(each[0]) <= latest:
                    found.append(_parse(source, *each))
                    self._read[source] = each[0].decode()
        if replies and not found:
            time.sleep(min(timeout_s, _REPAIR_S))  # until they have other ids, they are found again at once
        return [entry for entry in sorted(found, key=_order) if self._wanted.matches(entry)]


def build_canonical(arguments: Any) -> str:
    """Arguments as one text, the same for the same arguments: JSON with sorted keys and no spaces.

    Args:
        arguments: A JSON value. A text that is JSON is decoded, any other text stays, and None is an empty object.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    if arguments is None:
        arguments = {}
    try:
        return _encode(arguments)
    except (ValueError, TypeError, RecursionError):
        return f"[{type(arguments).__name__} that is not JSON]"


def build_digest(canonical: str) -> str:
    """SHA-256, in hexadecimal, of what `build_canonical` gave."""
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _scan(redis: Any, source: Source, first: str, last: str, *, newest_first: bool, chunk: int) -> Iterator[AuditEntry]:
    chunk = min(max(chunk, _FIRST_CHUNK), _LARGEST_CHUNK)
    key = _STREAMS[source]
    while True:
        if newest_first:
            found = redis.xrevrange(key, max=last, min=first, count=chunk)
        else:
            found = redis.xrange(key, min=first, max=last, count=chunk)
        for each in found:
            yield _parse(source, *each)
        if len(found) < chunk:
            return
        bound = f"({found[-1][0].decode()}"
        first, last = (first, bound) if newest_first else (bound, last)
        chunk = _LARGEST_CHUNK


def _parse(source: Source, raw_id: bytes, fields: Mapping[bytes, bytes] | None) -> AuditEntry:
    entry_id = raw_id.decode()
    try:
        return _validate(source, entry_id, (fields or {})[keys.AUDIT_FIELD.encode()])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        damage = f"{'.'.join(map(str, first['loc']))[:40]}: {first['msg']}"
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        # The text of the error may quote the entry.
        damage = f"it is not an audit entry ({type(error).__name__})"
    written_at = min(_milliseconds(raw_id) / 1000, LATEST_S)
    return AuditEntry(id=entry_id, source=source, at=written_at, damage=damage)


def _milliseconds(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _latest_ms(redis: Any) -> int:
    """The latest time that Redis can have given to an entry."""
    seconds, _ = redis.time()
    return (seconds + FURTHEST_AHEAD_S) * 1000


def _validate(source: Source, entry_id: str, text: bytes) -> AuditEntry:
    if len(text) > _LONGEST_BYTES:
        raise ValueError("too long")
    # Not by Python's reader, which takes halves of characters: no page and no terminal does.
    return AuditEntry.model_validate_json(text).model_copy(update={"id": entry_id, "source": source, "damage": None})


def _order(entry: AuditEntry) -> tuple[int, int, int]:
    milliseconds, _, number = entry.id.partition("-")
    return int(milliseconds), int(number), _RANKS[entry.source]


def _parse_cursor(cursor: str) -> tuple[str, Source]:
    place, _, source = cursor.partition(" ")
    milliseconds, _, number = place.partition("-")
    if not (milliseconds.isdecimal() and number.isdecimal()) or source not in ("worker", "agent"):
        raise ValueError(f"{cursor!r:.60} is not an audit cursor; use the `cursor` of a page or of an entry")
    return place, source
