"""The calls that workers run at the moment, in Redis.

Owns the shape of a report, which each worker writes with its metrics every 5 s (`worker.reporting.running_report`), and
reading those of all workers. A report lists the oldest calls only; how many there are in all is a metric.
"""

from collections.abc import Iterable
from functools import partial
from operator import eq, is_, not_
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tarsy_tasks.broker import keys
from tarsy_tasks.priorities import NORMAL
from tarsy_tasks.telemetry.metrics import IN_FLIGHT_TTL_S

__all__ = ["REPORTED_CALLS", "RunningCallReport", "dump_running", "read_running"]

_is_none = partial(is_, None)
REPORTED_CALLS = 20
"""Of each server and worker, the oldest ones."""


class RunningCallReport(BaseModel):
    """One call that runs.

    Attributes:
        task_id: Celery's id of the task.
        tool: As it was requested, or as the server lists it; masked and cut, as all texts here.
        begun_at: When a worker began to work on it, in seconds since the epoch by the clock of Redis.
        attempts: How often it was sent to the MCP server.
        principal: Who sent it, as far as that is verified; empty for an anonymous call.
        priority: By which it waited.
        worker: Node name.
        progress: As its server last said; None if it did not, or nobody listens to the events of the call.
        total: Of which, if that is known.
        message: What the server said with it.
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
    principal: str = Field(default="", exclude_if=not_)
    priority: str = Field(default=NORMAL, exclude_if=partial(eq, NORMAL))
    worker: str
    progress: float | None = Field(default=None, allow_inf_nan=False, exclude_if=_is_none)
    total: float | None = Field(default=None, allow_inf_nan=False, exclude_if=_is_none)
    message: str = Field(default="", exclude_if=not_)

    @property
    def share(self) -> float | None:
        """How much of the total is reached, 0 to 1; None if that is not known."""
        if self.progress is None or not self.total or self.total < 0:
            return None
        return min(max(self.progress / self.total, 0.0), 1.0)


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
