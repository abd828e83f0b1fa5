"""What a worker writes of a call that it parks, and what it reads of it when the call comes back.

Owns the two shapes. Why a call is parked, and what a decision means for it, each reason decides itself
(`call_approval`); the states and keys are `broker.parked_calls`.
"""

import json
import time
from dataclasses import replace
from math import inf
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_calls import ParkedRecord, Parking
from tarsy_tasks.broker.parked_views import TASK
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import ANONYMOUS, Parked
from tarsy_tasks.models import ParkedCall
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.audit import build_canonical
from tarsy_tasks.telemetry.shown_arguments import build_shown
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import is_large
from tarsy_tasks.worker.reporting.approval_requests import APPROVAL

__all__ = [
    "NO_LIMIT_S",
    "REFUSED",
    "approval_of",
    "build_parking",
    "describe_call",
    "find_parked",
    "refuse_parked",
    "shown_agent_id",
]

REFUSED = "refused"
"""The decision about a call that was not parked, because too many calls of its principal are."""

_SHOWN_CHARS = 1000
_NAME_CHARS = 100

NO_LIMIT_S = 24 * 3600.0
"""For callers that name no timeout: the server's own limits are all that bounds the call."""
_TEXTS = {
    "approval": "`{server}.{tool}` waits for a person to approve it. It has not run. Its answer comes when they have "
    "decided; do not call it again meanwhile.",
    INPUT_REQUIRED: "`{server}.{tool}` waits for answers to questions of its MCP server. It has not completed. Its "
    "answer comes when they were answered; do not call it again meanwhile.",
    TASK: "`{server}.{tool}` goes on as a task of its MCP server. Its answer comes when that is done; do not call it "
    "again meanwhile.",
}
"""What models can be told, by reason."""


def build_parking(context: WorkerContext, call: RunningCall, parked: Parked, *, holds_session: bool = False) -> Parking:
    """What is written of a call that is parked now, for the first time or again after its worker was lost."""
    now = context.clock.now()
    before = call.parked
    is_same = before is not None and before.digest == parked.digest
    until = before.until if before is not None and is_same else now + parked.lasts_s
    record: dict[str, Any] = {
        "reason": parked.reason,
        "digest": parked.digest,
        "needs": parked.needs,
        "about": json.dumps({**parked.about, "at": round(now, 3)}, ensure_ascii=False, separators=(",", ":")),
        "allowance_s": _allowance_s(call),
        **parked.keeps,
    }
    if call.principal != ANONYMOUS:
        record["principal"] = call.principal
    if parked.reason != APPROVAL and (approved := approval_of(before)) is not None and approved.decision == "approved":
        record |= {"approved": approved.digest, "approved_by": approved.by}
    state = _state_of(call, parked, now, until, holds_session=holds_session) if call.info.park else ""
    polled = keys.polled_key(call.server) if "task" in parked.keeps else ""
    if polled:
        context.task_parked_at = time.monotonic()
    here, elsewhere = (state, "") if not context.has_results_elsewhere else ("", state)
    return Parking(
        record,
        until,
        here,
        polled,
        parked.poll_s,
        dict(parked.input_round),
        call.owner,
        context.settings.parked_calls,
        elsewhere,
    )


async def describe_call(call: RunningCall) -> dict[str, object]:
    """What people see of a call that is parked."""
    if is_large(call.arguments):
        shown = await call.connection.long_work.run(_show, call, allowed_s=inf)
    else:
        shown = _show(call)
    mask, definition = call.connection.masker.mask, call.definition
    about = {
        "server": call.server,
        "tool": call.tool,
        "title": mask(definition.title)[:_NAME_CHARS] if definition is not None else "",
        "arguments": shown,
        "agent_id": shown_agent_id(call),
        "run_id": mask(call.info.run_id or "")[:_NAME_CHARS],
        "principal": "" if call.principal == ANONYMOUS else call.principal,
    }
    return {name: value for name, value in about.items() if value}


def shown_agent_id(call: RunningCall) -> str:
    """Who its agent claims to be, as it is kept of a call that is parked: masked and cut."""
    return call.connection.masker.mask(call.info.agent_id or "")[:_NAME_CHARS]


def _show(call: RunningCall) -> str:
    shown = build_shown(build_canonical(call.arguments), call.connection.masker.mask)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


async def find_parked(context: WorkerContext, call: RunningCall) -> ParkedRecord | None:
    """What was decided of a call; None if it was not parked. Raises redis-py's `RedisError`."""
    if call.delivery is None:
        return None
    [found] = await context.in_flight.exchange.execute(("HMGET", keys.parked_key(call.id), *ParkedRecord.FIELDS))
    return ParkedRecord.read(found)


def refuse_parked(context: WorkerContext, call: RunningCall, record: ParkedRecord) -> CallError:
    """The error for a call that was not parked."""
    title, most = call.record.title, context.settings.parked_calls
    why = f"{title} needs the approval of a person"
    ran = "The tool did not run."
    if record.reason == INPUT_REQUIRED:
        why, ran = f"MCP server `{call.server}` asks for input to complete {title}", "It has not completed the call."
    whose = "agents whose name is not verified" if call.principal == ANONYMOUS else f"the agent `{call.principal}`"
    return CallError(
        ErrorCode.TOO_MANY_PARKED,
        f"{why}, but {most} calls of {whose} wait already, which is the most that may. {ran} Do not call it again "
        "until some of them were decided or cancelled. An operator can allow more (`TARSY_PARKED_CALLS`).",
    )


def _allowance_s(call: RunningCall) -> float:
    """How long the call may take once it is woken: as long as when it was sent, though that time has passed."""
    info, times = call.info, [NO_LIMIT_S]
    if info.timeout_s is not None:
        times.append(info.timeout_s)
    if info.deadline is not None and info.sent_at is not None and info.deadline > info.sent_at:
        times.append(info.deadline - info.sent_at)
    return round(min(times), 3)


def approval_of(record: ParkedRecord | None) -> ParkedRecord | None:
    """What was decided about the approval of a call, also if it has waited for something else since."""
    if record is None or record.reason == APPROVAL:
        return record
    if not record.approved:
        return None
    return replace(record, reason=APPROVAL, digest=record.approved, decision="approved", by=record.approved_by, why="")


def _state_of(call: RunningCall, parked: Parked, now: float, until: float, *, holds_session: bool) -> str:
    """The state of the task, as Celery's result backend writes it."""
    text = _TEXTS[parked.reason].format(server=call.server, tool=call.tool)
    found = ParkedCall(
        reason=parked.reason,
        server=call.server,
        tool=call.tool,
        text=text,
        since=round(now, 3),
        until=round(until, 3),
        questions=parked.questions,
        digest=parked.digest if parked.questions else "",
        holds_session=holds_session,
    )
    state: dict[str, Any] = {
        "status": keys.PARKED_STATE,
        "result": found.model_dump(mode="json"),
        "traceback": None,
        "children": [],
    }
    return json.dumps({**state, "date_done": None, "task_id": call.id})
