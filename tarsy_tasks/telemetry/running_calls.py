"""The calls that workers run at the moment, in Redis.

Owns the shape of a report, which each worker writes with its metrics every 5 s (`worker.reporting.running_report`), and
reading those of all workers. A report lists the oldest calls only; how many there are in all is a metric.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.metrics import IN_FLIGHT_TTL_S

__all__ = ["REPORTED_CALLS", "RunningCallReport", "dump_running", "read_running"]

REPORTED_CALLS = 20
"""Of each server and worker, the oldest ones."""


class RunningCallReport(BaseModel):
    """One call that runs.

    Attributes:
        task_id: Celery's id of the task.
        tool: As it was requested, or as the server lists it; masked and cut, as all texts here.
        begun_at: When a worker began to work on it, in seconds since the epoch by the clock of Redis.
        attempts: How often it was sent to the MCP server.
        worker: Node name.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = 1
    task_id: str
    server: str
    tool: str
    begun_at: float = Field(allow_inf_nan=False)
    attempts: int = 0
    agent_id: str = ""
    run_id: str = ""
    worker: str


_REPORT = TypeAdapter(list[RunningCallReport])


def dump_running(calls: Iterable[RunningCallReport]) -> bytes:
    """The report of one worker."""
    return _REPORT.dump_json(list(calls))


def read_running(redis: Any, problems: list[str]) -> list[RunningCallReport]:
    """The calls of all workers, oldest first; `problems` gets what cannot be read. Raises `RedisError`."""
    now, _ = redis.time()
    workers: list[bytes] = redis.zrangebyscore(keys.MEASURING_WORKERS, now - IN_FLIGHT_TTL_S, "+inf")
    instances = [worker.decode(errors="replace") for worker in workers]
    texts: list[bytes | None] = redis.mget(map(keys.running_calls_key, instances)) if instances else []
    found: list[RunningCallReport] = []
    for instance, text in zip(instances, texts, strict=True):
        try:
            found += _REPORT.validate_json(text or b"[]")
        except ValidationError:
            problems.append(f"the running calls of worker {instance} cannot be read: damaged, or of another version")
    return sorted(found, key=lambda call: call.begun_at)
