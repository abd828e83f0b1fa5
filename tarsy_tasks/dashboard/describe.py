"""What the pages show, as JSON.

Owns its shapes, which docs/dashboard.md documents. Times are in seconds since the epoch, durations in seconds.
"""

from collections.abc import Iterable
from typing import Any

from tarsy_tasks.broker.parked_views import TASK, ParkedCallView
from tarsy_tasks.dashboard.alerts import ShownAlert
from tarsy_tasks.dashboard.dead_letters import DeadLetterList
from tarsy_tasks.dashboard.reader import CallDetails, ServerDetails
from tarsy_tasks.dashboard.snapshot import ServerSnapshot, Snapshot
from tarsy_tasks.dashboard.tools import ToolView
from tarsy_tasks.telemetry.audit import AuditEntry
from tarsy_tasks.telemetry.metrics import Distribution, LastError

__all__ = [
    "describe_alerts",
    "describe_call",
    "describe_calls",
    "describe_dead_letters",
    "describe_parked",
    "describe_server",
    "describe_servers",
]


def describe_servers(snapshot: Snapshot) -> dict[str, Any]:
    """All servers."""
    servers = [_describe(server) for server in snapshot.servers.values()]
    return {"at": snapshot.at, "problems": list(snapshot.problems), "servers": servers}


def describe_server(snapshot: Snapshot, server: ServerSnapshot, details: ServerDetails) -> dict[str, Any]:
    """One server with its tools, workers and latest calls."""
    workers = [
        {**record.model_dump(mode="json", exclude={"v", "server"}), "in_flight": server.in_flight.get(record.worker, 0)}
        for record in server.records
    ]
    return {
        "at": snapshot.at,
        **_describe(server),
        "problems": [*snapshot.problems, *server.problems, *details.problems],
        "tools": [_describe_tool(tool) for tool in details.tools],
        "workers": workers,
        "calls": describe_calls(details.calls.entries if details.calls else ()),
        "running": [call.model_dump(mode="json", exclude={"v"}) for call in details.running or ()],
        "alerts": describe_alerts(details.alerts),
        "lines": [line.model_dump(mode="json") for line in details.lines],
        "listing": server.listed.digest if server.listed else None,
    }


def describe_alerts(alerts: Iterable[ShownAlert]) -> list[dict[str, Any]]:
    """Failures of servers."""
    return [{**each.alert.model_dump(mode="json", exclude={"v"}), "ended_at": each.ended_at} for each in alerts]


def describe_dead_letters(found: DeadLetterList) -> list[dict[str, Any]]:
    """Dead letters with what the audit says of them."""
    return [
        {
            "id": each.id,
            "moved_at": each.moved_at,
            "expires_at": each.expires_at,
            "entry": each.entry.model_dump(mode="json", exclude={"v"}) if each.entry else None,
        }
        for each in found.letters
    ]


def describe_parked(view: ParkedCallView) -> dict[str, Any]:
    """A call that waits for people, or for a task of its server."""
    return {
        "id": view.id,
        "reason": view.reason,
        **view.about,
        "expires_at": view.until,
        **({"message": view.message} if view.reason == TASK else {"approvers": view.needs}),
        "approved_by": list(view.approvals),
    }


def describe_calls(entries: Iterable[AuditEntry]) -> list[dict[str, Any]]:
    """Audit entries."""
    return [entry.model_dump(mode="json", exclude={"v"}) for entry in entries]


def describe_call(call: CallDetails) -> dict[str, Any]:
    """One call with its result."""
    return {
        "task_id": call.task_id,
        "entry": call.entry.model_dump(mode="json", exclude={"v"}) if call.entry else None,
        "result": call.result.model_dump(mode="json") if call.result else None,
        "failure": call.failure or None,
        "running": call.running.model_dump(mode="json", exclude={"v"}) if call.running else None,
    }


def _describe(server: ServerSnapshot) -> dict[str, Any]:
    diff = server.listed.diff if server.listed else None
    return {
        "server": server.name,
        "status": server.status,
        "reason": server.health.reason,
        "since": server.health.since,
        "problems": list(server.problems),
        "workers": [record.worker for record in server.records],
        "transports": server.transports,
        "protocols": server.protocols,
        "eras": server.eras,
        "tools": server.tool_count,
        "changed_tools": {
            "added": sorted(diff.added) if diff else [],
            "removed": sorted(diff.removed) if diff else [],
            "changed": sorted(diff.changed) if diff else [],
        },
        "in_flight": server.running,
        "max_concurrency": server.limit,
        "queued": server.queued,
        "waiting": server.waiting._asdict(),
        "calls": server.call_count,
        "failures": server.failure_count,
        "tool_errors": server.tool_error_count,
        "codes": server.codes,
        "targets": server.targets,
        "uptime": server.uptime,
        **_quantiles(server.duration),
        "last_failure": _describe_error(server.last_failure),
        "last_tool_error": _describe_error(server.last_tool_error),
        "minutes": [
            {
                "at": minute.at,
                "status": minute.status,
                "calls": minute.call_count,
                "failures": minute.failure_count,
                "tool_errors": minute.tool_error_count,
                "p50_s": minute.p50_s,
                "p95_s": minute.p95_s,
            }
            for minute in server.minutes
        ],
    }


def _describe_tool(tool: ToolView) -> dict[str, Any]:
    return {
        "tool": tool.name,
        "change": tool.change or None,
        "description": tool.description,
        "hints": tool.hints,
        "schema": tool.schema,
        "diff": list(tool.diff),
        "calls": tool.metrics.calls,
        "codes": tool.metrics.codes,
        "in_flight": tool.metrics.in_flight,
        "retries": tool.metrics.retries,
        **_quantiles(tool.metrics.duration),
        "recent_average_s": tool.metrics.moving_average_s,
        "recent_failures": tool.metrics.failure_rate,
        "recent_tool_errors": tool.metrics.tool_error_rate,
        "last_error": _describe_error(tool.metrics.last_error),
    }


def _quantiles(distribution: Distribution) -> dict[str, Any]:
    return {
        "p50_s": distribution.quantile_s(0.5),
        "p95_s": distribution.quantile_s(0.95),
        "slowest_s": distribution.slowest_s,
    }


def _describe_error(error: LastError | None) -> dict[str, Any] | None:
    return error.model_dump(mode="json") if error else None
