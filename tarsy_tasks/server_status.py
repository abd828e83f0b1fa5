"""How an MCP server is, in one place: its state, health, tools, last error and counters.

Owns the shape, and reading it in one exchange with Redis: from the health records of all workers and the catalogue,
which agents may read. The verdict on its health is in `telemetry.health_records`.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from tarsy_tasks.broker import keys
from tarsy_tasks.catalogue import parse_listing
from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.models import FrozenModel, ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.health_records import HealthRecord, ServerHealth, judge_health, parse_record
from tarsy_tasks.tool_names import resolve_tool_name

__all__ = ["ServerCounters", "ServerState", "ServerStatus", "build_statuses", "status_command"]

# For each server its check, its tools, and its record of each worker.
_READ = """
local failed
local function read(...)
    local found = redis.pcall(...)
    if type(found) ~= 'table' or not found.err then return found end
    if not string.find(found.err, 'WRONGTYPE', 1, true) then failed = found end
    return false
end
local time = redis.call('TIME')
local workers = read('ZRANGE', KEYS[1], 0, -1) or {}
local found = {time[1], time[2], workers}
for i = 2, #KEYS, 2 do
    local records = {}
    for n, worker in ipairs(workers) do records[n] = read('HGET', ARGV[1] .. worker, ARGV[1 + i / 2]) end
    found[#found + 1] = {read('GET', KEYS[i]), read('HGET', KEYS[i + 1], 'listing'), records}
end
return failed or found
"""


class ServerState(StrEnum):
    """The state of the sessions with a server. Of several workers the first that one of them has, in this order."""

    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CONNECTING = "connecting"
    IDLE = "idle"
    """It starts on demand, and nobody needs it now."""
    PER_AGENT = "per_agent"
    """Each agent has a session of its own, with its own credential; only their calls show how it is."""
    ERROR = "error"
    """No session could be opened, or it is suspended."""
    DISCONNECTED = "disconnected"
    """The session was lost, or an operator has closed it."""
    UNKNOWN = "unknown"
    """No worker reports on it."""


class ServerCounters(FrozenModel):
    """What the workers that report on a server have counted, together.

    Attributes:
        in_flight: Calls that ran when they reported.
        recent_calls: Calls of the last five minutes, at most 20 of each worker.
        failed_calls: How many of them had no result, or an error.
        sessions_opened: Shared sessions since each worker started.
        sessions_replaced: How many of them replaced one that was lost.
    """

    workers: int = 0
    in_flight: int = 0
    recent_calls: int = 0
    failed_calls: int = 0
    sessions_opened: int = 0
    sessions_replaced: int = 0


class ServerStatus(FrozenModel):
    """How one MCP server is, as its workers last reported.

    Attributes:
        connected_since: When the oldest session that is open began, in seconds since the epoch by the clock of Redis;
            None if none is open.
        health: The verdict, with each worker's record.
        capabilities: What it offers, in MCP's words, such as `tools`, `tools.listChanged` and `resources.subscribe`;
            also while it is idle. Empty if no worker has been connected to it.
        tools: As last listed, sorted as the server lists them; those that this agent has selected, and may call as far
            as is known. A worker writes a changed list a moment after the state.
        instructions: For models that use it.
        listed_at: When the list last changed, by the same clock; None if there is none.
        last_error: Why a session last failed or could not be opened, for operators; None if that never happened. The
            session may be back.
    """

    server: str
    state: ServerState
    health: ServerHealth
    connected_since: float | None = None
    capabilities: tuple[str, ...] = ()
    tools: tuple[ToolDefinition, ...] = ()
    instructions: str = ""
    listed_at: float | None = None
    last_error: str | None = None
    counters: ServerCounters = Field(default_factory=ServerCounters)

    def find(self, tool: str) -> ToolDefinition:
        """One of its tools, by its name or its shortened name.

        Raises:
            ToolNameError: It has no such tool; the text lists what there is, closest first.
        """
        if self.listed_at is None:
            raise ToolNameError(
                ErrorCode.UNKNOWN_TOOL, f"No worker has listed the tools of MCP server `{self.server}` yet."
            )
        by_name = {each.tool: each for each in self.tools}
        return by_name[resolve_tool_name(f"{self.server}.{tool}", {self.server: by_name})[1]]


def status_command(servers: Sequence[str]) -> tuple[Any, ...]:
    """The Redis command that reads what `build_statuses` takes."""
    names = [name for server in servers for name in (keys.health_key(server), keys.tools_key(server))]
    return ("EVAL_RO", _READ, 1 + len(names), keys.HEALTH_WORKERS, *names, keys.worker_health_key(""), *servers)


def build_statuses(
    servers: Sequence[str], reply: Sequence[Any], selects: Callable[[ToolDefinition], bool] = lambda _: True
) -> dict[str, ServerStatus]:
    """The status of each server, from the reply to `status_command`; `selects` chooses among its tools."""
    seconds, microseconds, workers, *rows = reply
    now = int(seconds) + int(microseconds) / 1e6
    names = [worker.decode("utf-8", "replace") for worker in workers]
    return {name: _build(name, names, row, now, selects) for name, row in zip(servers, rows, strict=True)}


def _build(
    server: str, workers: list[str], row: Sequence[Any], now: float, selects: Callable[[ToolDefinition], bool]
) -> ServerStatus:
    check, listing, texts = row
    skipped: list[str] = []
    found = (
        parse_record(text, server, f"the record of worker {worker}", skipped)
        for worker, text in zip(workers, texts, strict=True)
    )
    reports = [record for record in found if record is not None]
    last_check = parse_record(check, server, "the record of the last check", skipped)
    health = judge_health(server, last_check, reports, now, skipped)
    # The last that was reported comes first.
    fresh = sorted(health.workers.values(), key=lambda each: each.checked_at, reverse=True)
    parsed = parse_listing(listing, server)
    return ServerStatus(
        server=server,
        state=_state_of(fresh),
        health=health,
        connected_since=min((each.connected_since for each in fresh if each.connected_since is not None), default=None),
        capabilities=next((each.capabilities for each in fresh if each.capabilities), ()),
        tools=tuple(tool for tool in parsed[0].tools if tool.is_for_models and selects(tool)) if parsed else (),
        instructions=parsed[0].instructions if parsed else "",
        listed_at=parsed[1] if parsed else None,
        last_error=next((each.last_error for each in fresh if each.last_error), None),
        counters=ServerCounters(
            workers=len(fresh),
            **{
                name: sum(getattr(each, name) for each in fresh)
                for name in ServerCounters.model_fields
                if name != "workers"
            },
        ),
    )


def _state_of(reports: Iterable[HealthRecord]) -> ServerState:
    states = {report.state for report in reports}
    return next((state for state in ServerState if state in states), ServerState.UNKNOWN)
