"""What this worker runs at the moment, for the dashboard.

Owns which calls a report lists. It is built from the leases, which each call has anyway, so it costs a call nothing.
"""

from collections import Counter
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.leases import leased
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.telemetry.metrics import IN_FLIGHT_TTL_S
from tarsy_tasks.telemetry.running_calls import REPORTED_CALLS, RunningCallReport, dump_running
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.reporting.call_record import CallRecord

__all__ = ["build_running_report", "write_running_report"]

_NAME_CHARS = 200


def build_running_report(audit: Audit, worker: str) -> list[RunningCallReport]:
    """The oldest calls of each server; `worker` is the node name."""
    records = [each.record for each in leased.copy().values() if each.runs and isinstance(each.record, CallRecord)]
    begun = [(record.picked_up_at, record) for record in records if record.picked_up_at is not None]
    of_server: Counter[str] = Counter()
    found: list[RunningCallReport] = []
    for at, record in sorted(begun, key=lambda each: each[0]):
        of_server[record.server] += 1
        if of_server[record.server] <= REPORTED_CALLS:
            found.append(_build(audit, record, at, worker))
    return found


def write_running_report(redis: Any, instance: str, audit: Audit) -> None:
    """Replace this worker's report in Redis. Raises `RedisError`."""
    calls = build_running_report(audit, instance.partition("#")[0])
    redis.set(keys.running_calls_key(instance), dump_running(calls), ex=int(IN_FLIGHT_TTL_S))


def _build(audit: Audit, record: CallRecord, at: float, worker: str) -> RunningCallReport:
    def mask(text: Any) -> str:
        return audit.mask_name(text, record.server)[:_NAME_CHARS] if isinstance(text, str) else ""

    return RunningCallReport(
        task_id=mask(record.task_id),
        server=mask(record.server),
        tool=mask(record.tool),
        begun_at=audit.time_of(at),
        attempts=record.attempts,
        agent_id=mask(record.info.get("agent_id")),
        run_id=mask(record.info.get("run_id")),
        principal="" if record.principal == ANONYMOUS else mask(record.principal),
        priority=record.priority,
        worker=worker,
        **_progress_of(audit, record),
    )


def _progress_of(audit: Audit, record: CallRecord) -> dict[str, Any]:
    found = record.feed.shown if record.feed is not None else None
    if found is None:
        return {}
    message = audit.mask(found.message, record.server)[:_NAME_CHARS]
    return {"progress": found.progress, "total": found.total, "message": message}
