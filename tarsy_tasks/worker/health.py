"""Checks of the MCP servers, and the record that each leaves in Redis.

Owns how a check is made and written down. Beat says when (`tarsy_tasks.beat`), `tarsy_tasks.health` reads.
"""

import time
from typing import Any

from tarsy_tasks import keys
from tarsy_tasks.errors import CallError
from tarsy_tasks.health import RECORD_TTL_S, HealthRecord
from tarsy_tasks.worker.connection import ServerConnection
from tarsy_tasks.worker.job import Job
from tarsy_tasks.worker.masking import Masker

__all__ = ["check_server", "record_health"]

_LIST_S = 5.0


def check_server(job: Job, connection: ServerConnection, *, worker: str, masker: Masker) -> HealthRecord:
    """Ask a server for its tools past every cache; a session that does not answer is opened anew once."""
    timeouts = connection.server.timeouts
    started = time.monotonic()
    error: str | None = None
    tool_count: int | None = None
    try:
        list_s = timeouts.list_s if "list_s" in timeouts.model_fields_set else _LIST_S
        tools = job.run(connection.check(list_s), timeouts.connect_s + list_s + timeouts.recreate_s)
        tool_count = len(tools)
    except CallError as failure:
        error = masker.mask(failure.text)
    except TimeoutError:
        error = f"MCP server `{connection.server.name}` did not list its tools in time."
    return HealthRecord(
        server=connection.server.name,
        healthy=error is None,
        error=error,
        latency_s=round(time.monotonic() - started, 6),
        tool_count=tool_count,
        checked_at=time.time(),
        worker=worker,
    )


def record_health(redis: Any, record: HealthRecord) -> None:
    """Write the record; it expires when three checks in a row have not renewed it."""
    redis.set(keys.health_key(record.server), record.model_dump_json(), ex=int(RECORD_TTL_S))
