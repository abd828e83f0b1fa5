"""What happens to servers besides calls that end: alerts, dead letters, calls that run, lines on stderr, new tools.

Written as the workers write it, for tests of the pages.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_views import PEOPLE, TASK
from tarsy_tasks.catalogue import approve_tools, read_catalogue
from tarsy_tasks.models import LargeResult, ToolDefinition, ToolListing
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.policy import LimitRule, Limits
from tarsy_tasks.telemetry.audit import AuditEntry, Step, StepName
from tarsy_tasks.telemetry.health_records import RECORD_TTL_S
from tarsy_tasks.telemetry.limit_report import build_report
from tarsy_tasks.telemetry.running_calls import RunningCallReport, dump_running
from tarsy_tasks.telemetry.server_log import LogLine, write_server_log
from tarsy_tasks.worker.reporting.alerts import Alert
from tarsy_tasks.worker.reporting.tool_changes import record_listing
from tests.dashboard.records import WORKERS

__all__ = [
    "QUESTION",
    "change_tools",
    "write_alerts",
    "write_cut",
    "write_dead_letter",
    "write_limits",
    "write_lines",
    "write_parked",
    "write_redelivered",
    "write_running",
]

_TTL_S = 3600

QUESTION = {
    "name": "confirm",
    "message": "Which <b>namespace</b>? " * 20,
    "warning": "It asks for a password.",
    "requested_schema": {"properties": {"namespace": {"type": "string", "description": "a_long_word_" * 20}}},
}


def write_alerts(redis: Any, server: str, statuses: Sequence[str], error: str = "it exited with code 1") -> None:
    """One alert a minute, the last one now."""
    now = redis.time()[0]
    for number, status in enumerate(statuses):
        at = now - 60 * (len(statuses) - 1 - number)
        alert = Alert.model_validate(
            {
                "id": f"{server}-{number}", "server": server, "status": status, "at": at, "lasted_s": 60,
                "error": error if status == "unhealthy" else None, "worker": WORKERS[0],
            }
        )  # fmt: skip
        redis.xadd(keys.ALERTS, {"alert": alert.model_dump_json()})
    redis.expire(keys.ALERTS, _TTL_S)


def write_dead_letter(redis: Any, task_id: str, entry: AuditEntry | None) -> None:
    """A dead letter whose message Flower cannot read, and what the audit says of it."""
    now = redis.time()[0]
    redis.zadd(keys.DEAD_LETTERS, {task_id: now})
    redis.expire(keys.DEAD_LETTERS, _TTL_S)
    redis.set(keys.dead_letter_key(task_id), "a message with a password", ex=_TTL_S)
    if entry is not None:
        update = {"at": now, "task_id": task_id, "error_code": ErrorCode.SET_ASIDE, "outcome": Outcome.UNKNOWN}
        redis.xadd(keys.AUDIT, {keys.AUDIT_FIELD: entry.model_copy(update=update).encode()})
        redis.expire(keys.AUDIT, _TTL_S)


def write_cut(redis: Any, task_id: str, entry: AuditEntry, *, is_kept: bool) -> None:
    """A call whose result was too long for its model, and was kept whole or not."""
    sizes = {"content_chars": 812_345, "structured_chars": 70_000, "kept_bytes": 20_480 if is_kept else 0}
    large = LargeResult(handle=task_id if is_kept else "", **sizes)
    update = {"at": redis.time()[0], "task_id": task_id, "large": large}
    redis.xadd(keys.AUDIT, {keys.AUDIT_FIELD: entry.model_copy(update=update).encode()})


def write_redelivered(redis: Any, task_id: str, entry: AuditEntry, worker: str = WORKERS[0]) -> None:
    """A call that two workers sent before they were lost, and a third one answered."""
    now = redis.time()[0]
    steps = (
        Step(name=StepName.QUEUED, at=now - 50),
        Step(name=StepName.SENT, at=now - 49, worker=worker),
        Step(name=StepName.SENT, at=now - 28, worker=WORKERS[0]),
        Step(name=StepName.PICKED_UP, at=now - 2),
        Step(name=StepName.SENT, at=now - 1.5),
        Step(name=StepName.ANSWERED, at=now),
    )
    update = {
        "at": now, "task_id": task_id, "steps": steps, "worker": WORKERS[1], "attempts": 1,
        "principal": "ops", "priority": "interactive",
    }  # fmt: skip
    redis.xadd(keys.AUDIT, {keys.AUDIT_FIELD: entry.model_copy(update=update).encode()})
    redis.expire(keys.AUDIT, _TTL_S)


def write_running(redis: Any, calls: Sequence[tuple[str, str, str]], worker: str = WORKERS[0]) -> None:
    """What a worker runs: task id, server and tool of each call."""
    now = redis.time()[0]
    reports = [
        RunningCallReport(
            task_id=task_id, server=server, tool=tool, begun_at=now - 12, attempts=1, agent_id="sre", run_id="r7",
            principal="ops", priority="batch", worker=worker, progress=3, total=4, message="three of four",
        )
        for task_id, server, tool in calls
    ]  # fmt: skip
    redis.set(keys.running_calls_key(f"{worker}#1"), dump_running(reports), ex=int(RECORD_TTL_S))
    redis.set(keys.in_flight_key(f"{worker}#1"), json.dumps({"desk": {"wait": len(calls)}}), ex=int(RECORD_TTL_S))
    redis.zadd(keys.MEASURING_WORKERS, {f"{worker}#1": now})
    redis.expire(keys.MEASURING_WORKERS, int(RECORD_TTL_S))


def write_limits(redis: Any, server: str, agent: str) -> None:
    """The limits of a policy: a rate, and a quota of which an agent has used a part today."""
    quota = LimitRule(tools=[f"{server}.*"], each=["agent"], bytes_per_day=50_000_000)
    limits = Limits([LimitRule(rate="10/s"), quota])
    redis.set(keys.LIMIT_REPORT, build_report(limits, "1", [server]), ex=_TTL_S)
    used = keys.limit_key(f"{limits.all[1].id}:bytes:{redis.time()[0] // 86400}")
    redis.zadd(used, {agent: 1_234_567})
    redis.expire(used, _TTL_S)


def write_lines(redis: Any, server: str, texts: Sequence[str]) -> None:
    """Lines that a server wrote to stderr."""
    now = redis.time()[0]
    lines = [LogLine(at=now + number, worker=WORKERS[0], text=text) for number, text in enumerate(texts)]
    with redis.pipeline(transaction=False) as pipeline:
        write_server_log(pipeline, server, lines)
        pipeline.execute()


def _altered(tool: ToolDefinition, changes: dict[str, str]) -> ToolDefinition:
    """A copy that does not remember its fingerprint."""
    return ToolDefinition.model_validate(tool.model_dump() | changes)


def change_tools(redis: Any, server: str) -> str:
    """One tool changes, one is added and one removed; the digest of the new list."""
    listed = read_catalogue(redis, [server])[server]
    approve_tools(redis, listed)
    first, second, *rest = listed.listing.tools
    changed = _altered(first, {"description": "Deletes everything. <b>password: hunter2-hunter2</b>"})
    added = _altered(second, {"tool": "fetch_all", "name": f"{server}.fetch_all"})
    record_listing(redis, ToolListing(server=server, tools=(changed, added, *rest)), worker=WORKERS[0])
    return read_catalogue(redis, [server])[server].digest


def write_parked(redis: Any, task_id: str, reason: str = "approval", message: str = "", **about: Any) -> None:
    """A call that waits for an approval, or for a task of its server."""
    until = time.time() + _TTL_S
    shown = {"server": "desk", "tool": "order", "arguments": '{"item":"<b>pen</b>"}', "at": time.time(), **about}
    record = {"reason": reason, "digest": "d" * 64, "needs": 1, "until": until, "about": json.dumps(shown)}
    record["message"] = message
    redis.hset(keys.parked_key(task_id), mapping=record)
    redis.expire(keys.parked_key(task_id), _TTL_S)
    for places in (keys.PARKED, keys.inbox_key(TASK if reason == TASK else PEOPLE)):
        redis.zadd(places, {f"mcp.desk\n{task_id}": until})
        redis.expire(places, _TTL_S)
    redis.hset(keys.UNACKED, task_id, "a message with a password")
