"""Health of the MCP servers, as anyone with access to Redis may read it.

Owns the record's shape and how it is read back. Workers write the records (`tarsy_tasks.worker.health`); a server
without a fresh record is `unknown`.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tarsy_tasks import keys

__all__ = ["CHECK_INTERVAL_S", "HealthRecord", "read_health"]

CHECK_INTERVAL_S = 15.0
RECORD_TTL_S = 3 * CHECK_INTERVAL_S


class HealthRecord(BaseModel):
    """How the last check of a server went.

    Attributes:
        error: Why it is not healthy, with the server's last words; None when it is.
        latency_s: Seconds that the check took in the worker.
        tool_count: How many tools the server lists; None when it did not answer.
        checked_at: Seconds since the epoch, by the worker's clock.
        worker: Name of the worker that checked.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = 1
    server: str
    healthy: bool
    error: str | None = None
    latency_s: float
    tool_count: int | None = None
    checked_at: float
    worker: str


def read_health(redis: Any, servers: Iterable[str]) -> dict[str, HealthRecord | None]:
    """The latest record of each server; None where there is no fresh one, or none that this version can read.

    Args:
        redis: A client of the database that workers write to, such as `app.backend.client`.
    """
    names = list(servers)
    found: list[bytes | None] = redis.mget([keys.health_key(name) for name in names]) if names else []
    return {name: _parse_record(text) for name, text in zip(names, found, strict=True)}


def _parse_record(text: bytes | None) -> HealthRecord | None:
    if text is None:
        return None
    try:
        return HealthRecord.model_validate_json(text)
    except ValidationError:
        return None
