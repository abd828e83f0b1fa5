"""The result of a call that an error ended, and what every result says of its call."""

import time
from typing import TypedDict

from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.methods import say_nothing_of_tools
from tarsy_tasks.models import CallInfo, ToolResult
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.reporting.call_record import CallRecord

__all__ = ["CallFacts", "build_failure", "facts_of"]

_NAME_CHARS = 1000


class CallFacts(TypedDict):
    """The fields of a `ToolResult` that do not depend on what was answered."""

    call_id: str
    name: str
    repairs: tuple[str, ...]
    attempts: int
    duration_s: float
    server: str
    tool: str
    priority: str
    principal: str


def facts_of(context: WorkerContext, info: CallInfo, record: CallRecord, repairs: tuple[str, ...]) -> CallFacts:
    """What the result of a call says of the call itself; `record` may have server and tool as anybody wrote them."""
    started = record.picked_up_at
    return {
        "call_id": _shown_name(context, info.call_id, record.server),
        "name": _shown_name(context, info.name or f"{record.server}.{record.tool}", record.server),
        "repairs": repairs,
        "attempts": record.attempts,
        "duration_s": round(time.monotonic() - started, 6) if started is not None else 0.0,
        "server": record.server if record.is_served else "",
        "tool": record.tool if record.is_listed else "",
        "priority": record.priority,
        "principal": "" if record.principal == ANONYMOUS else _shown_name(context, record.principal, record.server),
    }


def build_failure(
    context: WorkerContext,
    error: CallError,
    info: CallInfo,
    record: CallRecord,
    masker: Masker,
    repairs: tuple[str, ...] = (),
) -> ToolResult:
    """The result of a call that `error` ended."""
    facts = facts_of(context, info, record, repairs)
    text, after_s = say_nothing_of_tools(record.operation, masker.mask(error.text)), error.retry_after_s
    return ToolResult(content=text, outcome=error.outcome, error_code=error.code, retry_after_s=after_s, **facts)


def _shown_name(context: WorkerContext, name: str, server: str) -> str:
    """A name as it may be stored: a model may have made it up."""
    return context.audit.mask_name(name, server=server)[:_NAME_CHARS]
