"""The latest lines that an MCP server wrote outside of the protocol, in Redis.

Owns the shape of a line, and reading them. Workers write what is in their logs, masked as there
(`worker.reporting.server_lines`); Redis keeps the latest of all workers together, for a day.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tarsy_tasks.broker import keys

__all__ = ["KEPT_LINES", "LONGEST_LINE", "LogLine", "read_server_log", "write_server_log"]

KEPT_LINES = 100
LONGEST_LINE = 500
_FIELD = "line"
_TTL_S = 24 * 3600


class LogLine(BaseModel):
    """One line.

    Attributes:
        at: When the worker read it, in seconds since the epoch by the clock of Redis.
        level: Of the log record: `INFO` for stderr, `WARNING` for what should not be where it was.
        text: As in the worker's log, masked and cut.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: float = Field(allow_inf_nan=False)
    worker: str
    level: str = "INFO"
    text: str


def write_server_log(pipeline: Any, server: str, lines: Iterable[LogLine]) -> None:
    """Add the commands that append lines to those of a server."""
    key = keys.server_log_key(server)
    for line in lines:
        pipeline.xadd(key, {_FIELD: line.model_dump_json()}, maxlen=KEPT_LINES, approximate=False)
    pipeline.expire(key, _TTL_S)


def read_server_log(redis: Any, server: str) -> list[LogLine]:
    """The latest lines, oldest first; those that cannot be read are left out. Raises `RedisError`."""
    found: list[LogLine] = []
    entries: list[tuple[bytes, Mapping[bytes, bytes]]] = redis.xrevrange(keys.server_log_key(server), count=KEPT_LINES)
    for _, fields in entries:
        with suppress(ValidationError):
            found.append(LogLine.model_validate_json(fields.get(_FIELD.encode(), b"")))
    found.reverse()
    return sorted(found, key=lambda line: line.at)
