"""Records of a fleet of MCP servers for one hour in Redis, written with the workers' own functions.

For tests of pages that show an hour, and for measuring what large pages cost.
"""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.models import ToolDefinition, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, Step, StepName
from tarsy_tasks.telemetry.counting import LONGEST
from tarsy_tasks.telemetry.health_records import RECORD_TTL_S, HealthRecord
from tarsy_tasks.telemetry.history import MINUTES, build_count, health_numbers
from tarsy_tasks.telemetry.metrics import bucket_of
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.tool_changes import record_listing

__all__ = ["FleetServer", "write_calls", "write_fleet", "write_health"]

WORKERS = ("worker@alpha", "worker@beta")
FIRST_CALL = "00000000-0000-4000-8000-000000000000"
_VERBS = ("list", "get", "create", "update", "delete", "search", "describe", "count", "watch", "label")
_NOUNS = ("pods", "issues", "orders", "users", "alerts")


@dataclass
class FleetServer:
    """One server and its last hour.

    Attributes:
        typical_s: A typical duration of its calls.
        calls: Per minute.
        failing: The share of its calls that fail.
        refusing: The share of its calls that it answers with an error.
        down: The minutes of the hour in which it was down, counted from the beginning.
        workers: Those that serve it.
        reason: Why it is unhealthy now; None if it is healthy.
        code: The error code of that.
        unhealthy_workers: The workers for which it is unhealthy.
        slow: The minutes in which its calls took longer.
        running: Calls in flight now, on the first worker.
        queued: Calls that wait in its queue.
    """

    name: str
    tools: int = 50
    typical_s: float = 0.03
    calls: int = 6
    failing: float = 0.0
    refusing: float = 0.0
    down: Iterable[int] = ()
    transport: str = "stdio"
    protocol: str = "2026-07-28"
    workers: tuple[str, ...] = WORKERS
    reason: str | None = None
    code: ErrorCode | None = None
    unhealthy_workers: tuple[str, ...] = WORKERS
    slow: Iterable[int] = ()
    running: int = 0
    queued: int = 0

    def tool_names(self) -> list[str]:
        names = [f"{verb}_{noun}" for noun in _NOUNS for verb in _VERBS]
        more = (f"{name}_{number}" for number in range(self.tools) for name in names)
        return [*names, *islice(more, max(0, self.tools - len(names)))][: self.tools]


def write_fleet(redis: Any, servers: Iterable[FleetServer], seed: int = 1) -> None:
    """The hour of all servers, their tools, numbers and health, as of now."""
    chance = random.Random(seed)
    servers = list(servers)
    seconds, _ = redis.time()
    first = seconds // 60 - MINUTES + 1
    for server in servers:
        definitions = tuple(_definition(server.name, tool) for tool in server.tool_names())
        record_listing(redis, ToolListing(server=server.name, tools=definitions), worker=server.workers[0])
    metrics = CallMetrics()
    for server in servers:
        for tool in server.tool_names():
            metrics.add(server.name, tool, _totals(server, chance))
        if server.failing:
            failed = ToolResult(
                call_id="", name="", content=f"MCP server `{server.name}` did not answer within 30 s.", attempts=1,
                outcome=Outcome.TIMEOUT, error_code=ErrorCode.CALL_TIMEOUT, duration_s=30.0,
            )  # fmt: skip
            metrics.note_result(server.name, server.tool_names()[0], failed, 0.01, FIRST_CALL)
        if server.refusing:
            refused = ToolResult(
                call_id="", name="", content="There is no such namespace.", attempts=1,
                outcome=Outcome.TOOL_ERROR, error_code=ErrorCode.TOOL_ERROR, duration_s=0.02,
            )  # fmt: skip
            metrics.note_result(server.name, server.tool_names()[-1], refused, 0.01, FIRST_CALL)
    metrics.flush(redis, f"{WORKERS[0]}#1", {})
    # What was just counted was not all in this minute, or in the one that has begun meanwhile.
    redis.delete(*(keys.minute_key(each // 60) for each in (seconds, redis.time()[0])))
    with redis.pipeline(transaction=False) as pipeline:
        for position in range(MINUTES):
            numbers = {server.name: _minute(server, position, chance) for server in servers}
            pipeline.execute_command(*build_count((first + position) * 60, numbers))
        pipeline.execute()
    write_health(redis, servers)


def write_health(redis: Any, servers: Iterable[FleetServer]) -> None:
    """The present health records of all workers, and of checks that came through the queues."""
    seconds, microseconds = redis.time()
    now = seconds + microseconds / 1e6
    servers = list(servers)
    records: dict[str, dict[str, str]] = {}
    with redis.pipeline(transaction=False) as pipeline:
        for server in servers:
            if server.queued:
                pipeline.delete(keys.queue(server.name))
                pipeline.rpush(keys.queue(server.name), *["{}"] * server.queued)
                pipeline.expire(keys.queue(server.name), int(RECORD_TTL_S))
            for worker in server.workers:
                reason = server.reason if worker in server.unhealthy_workers else None
                record = HealthRecord(
                    server=server.name,
                    healthy=reason is None,
                    error=reason,
                    error_code=server.code if reason else None,
                    target=f"npx -y @example/{server.name}-mcp --token ${{TOKEN}}",
                    latency_s=server.typical_s / 3,
                    tool_count=server.tools,
                    checked_at=now - 3,
                    since=now - 2 * 3600,
                    worker=worker,
                    transport=server.transport,
                    protocol=server.protocol,
                    era="2026" if server.protocol >= "2026-07-28" else "handshake",
                    server_info=f"{server.name} 1.4.2",
                    sessions_opened=1 + 2 * bool(server.down),
                    max_concurrency=128,
                )
                records.setdefault(worker, {})[server.name] = record.model_dump_json()
                answer = record.model_copy(update={"queue_wait_s": 0.004}).model_dump_json()
                pipeline.set(keys.health_key(server.name), answer, ex=int(RECORD_TTL_S))
        for worker, found in records.items():
            pipeline.hset(keys.worker_health_key(worker), mapping=found)
            pipeline.expire(keys.worker_health_key(worker), int(RECORD_TTL_S))
            pipeline.zadd(keys.HEALTH_WORKERS, {worker: now})
        pipeline.expire(keys.HEALTH_WORKERS, int(RECORD_TTL_S))
        running = {server.name: {server.tool_names()[0]: server.running} for server in servers if server.running}
        pipeline.set(keys.in_flight_key(f"{WORKERS[0]}#1"), json.dumps(running), ex=int(RECORD_TTL_S))
        pipeline.zadd(keys.MEASURING_WORKERS, {f"{WORKERS[0]}#1": now})
        pipeline.expire(keys.MEASURING_WORKERS, int(RECORD_TTL_S))
        pipeline.execute()


def write_calls(
    redis: Any, servers: Iterable[FleetServer], count: int, seed: int = 1, ago_s: int = 0
) -> list[AuditEntry]:
    """Audit entries of ended calls within the last hour, or an earlier one, oldest first."""
    chance = random.Random(seed)
    servers = list(servers)
    seconds = redis.time()[0] - ago_s
    entries: list[AuditEntry] = []
    with redis.pipeline(transaction=False) as pipeline:
        for number in range(count):
            server = chance.choice(servers)
            tool = chance.choice(server.tool_names())
            at = seconds - 3600 + 3600 * number / count
            took = server.typical_s * chance.lognormvariate(0, 0.6)
            failed = chance.random() < server.failing
            refused = not failed and chance.random() < server.refusing
            recovered = failed and chance.random() < 0.5
            steps = [
                Step(name=StepName.QUEUED, at=at - took - 0.02),
                Step(name=StepName.PICKED_UP, at=at - took - 0.01),
            ]
            steps.append(Step(name=StepName.SENT, at=at - took))
            if recovered:
                steps += [Step(name=StepName.RECOVERED, at=at - took / 2), Step(name=StepName.SENT, at=at - took / 3)]
            steps.append(Step(name=StepName.ANSWERED, at=at))
            code = ErrorCode.CALL_TIMEOUT if failed else ErrorCode.TOOL_ERROR if refused else None
            entry = AuditEntry(
                at=at,
                call_id=f"call_{number}",
                task_id=f"00000000-0000-4000-8000-{number:012}",
                agent_id="sre",
                run_id=f"r{number % 40}",
                server=server.name,
                tool=tool,
                arguments='{"namespace":"default","limit":20}',
                outcome=code.outcome if code else Outcome.OK,
                error_code=code,
                error=f"`{server.name}.{tool}` was not answered within 30 s." if code else None,
                attempts=1 + recovered,
                duration_s=took,
                worker=chance.choice(server.workers),
                bytes=chance.randrange(100, 20_000),
                steps=tuple(steps),
            )
            entries.append(entry)
            pipeline.xadd(keys.AUDIT, {keys.AUDIT_FIELD: entry.encode()}, id=f"{int(at * 1000)}-{number}")
        pipeline.expire(keys.AUDIT, 3600)
        pipeline.execute()
    return entries


def _minute(server: FleetServer, position: int, chance: random.Random) -> dict[str, int]:
    is_down = position in server.down
    now = HealthRecord(server=server.name, healthy=not is_down, checked_at=0, worker="")
    numbers = {name: 4 * each for name, each in health_numbers(now, came_through_queue=True).items()}
    typical_s = server.typical_s * (8 if position in server.slow else 1)
    for _ in range(chance.randint(0, 2 * server.calls)):
        failed = is_down or chance.random() < server.failing
        code = ErrorCode.CALL_TIMEOUT if failed else ErrorCode.TOOL_ERROR if chance.random() < server.refusing else None
        code = ErrorCode.SERVER_UNAVAILABLE if is_down else code
        _add(numbers, f"calls:{code.outcome if code else Outcome.OK}", 1)
        if code:
            _add(numbers, f"code:{code}", 1)
        if not is_down:
            took_s = typical_s * chance.lognormvariate(0, 0.6)
            _add(numbers, f"took:{bucket_of(took_s)}", 1)
            numbers[LONGEST] = max(numbers.get(LONGEST, 0), round(took_s * 1e6))
    return numbers


def _totals(server: FleetServer, chance: random.Random) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    typical_s = server.typical_s * chance.uniform(0.3, 3)
    for _ in range(chance.randint(5, 60)):
        outcome = chance.choices(list(Outcome), (60, 3, 2, 1 + 20 * server.failing, 1, 1, 1))[0]
        took_s = typical_s * chance.lognormvariate(0, 0.7)
        _add(numbers, f"calls:{outcome}", 1)
        _add(numbers, f"took:{bucket_of(took_s)}", 1)
        _add(numbers, "took:us", round(took_s * 1e6))
        numbers[LONGEST] = max(numbers.get(LONGEST, 0), round(took_s * 1e6))
        _add(numbers, f"waited:{bucket_of(took_s / 10)}", 1)
        _add(numbers, "waited:us", round(took_s * 1e5))
    return numbers


def _add(numbers: dict[str, int], name: str, value: int) -> None:
    numbers[name] = numbers.get(name, 0) + value


def _definition(server: str, tool: str) -> ToolDefinition:
    noun = tool.partition("_")[2] or tool
    return ToolDefinition(
        name=f"{server}.{tool}",
        server=server,
        tool=tool,
        description=f"{tool.replace('_', ' ').capitalize()}. Answers with one line for each of the {noun}, "
        "newest first; use `limit` to get fewer of them.",
        input_schema={
            "type": "object",
            "properties": {
                "namespace": {"type": "string", "description": f"Where to look for {noun}."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50, "description": "How many."},
                "format": {"enum": ["table", "json", "yaml"], "description": "How the answer is written."},
            },
            "required": ["namespace"],
            "additionalProperties": False,
        },
        annotations={"readOnlyHint": not tool.startswith(("create", "update", "delete"))},
    )
