"""What the audit has of one call."""

from typing import Any

from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, read_audit
from tests.processes import wait_until

__all__ = ["only_entry"]


def only_entry(client: Any, task_id: str) -> AuditEntry:
    """The one entry of a task, once the audit has it; fails the test when it has two."""

    def found() -> list[AuditEntry]:
        return read_audit(client, AuditFilter(task_id=task_id)).entries

    wait_until(found, f"the entry of {task_id}")
    [entry] = found()
    return entry
