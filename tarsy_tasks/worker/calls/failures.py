"""The result of a call that an error ended."""

import time

from tarsy_tasks.errors import CallError
from tarsy_tasks.models import CallInfo, ToolResult
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.reporting.call_record import CallRecord

__all__ = ["build_failure", "shown_name"]

_NAME_CHARS = 1000


def build_failure(
    context: WorkerContext,
    error: CallError,
    info: CallInfo,
    record: CallRecord,
    masker: Masker,
    repairs: tuple[str, ...] = (),
) -> ToolResult:
    """The result of a call that `error` ended.

    Args:
        record: Its server and tool may be what anybody wrote.
    """
    started = record.picked_up_at
    return ToolResult(
        call_id=shown_name(context, info.call_id, record.server),
        name=shown_name(context, info.name or f"{record.server}.{record.tool}", record.server),
        content=masker.mask(error.text),
        outcome=error.outcome,
        error_code=error.code,
        repairs=repairs,
        attempts=record.attempts,
        duration_s=round(time.monotonic() - started, 6) if started is not None else 0.0,
    )


def shown_name(context: WorkerContext, name: str, server: str) -> str:
    """A name as it may be stored: a model may have made it up."""
    return context.audit.mask_name(name, server=server)[:_NAME_CHARS]
