"""What was decided of a parked call counts, whether or not its server still asks for approval."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tarsy_tasks import ErrorCode
from tarsy_tasks.broker.parked_records import ParkedRecord
from tarsy_tasks.errors import CallError
from tarsy_tasks.worker.calls.call_approval import apply_decision, require_approved
from tarsy_tasks.worker.calls.call_digest import digest_of
from tarsy_tasks.worker.reporting.approval_requests import APPROVAL


def woken(decision: str, **more: Any) -> Any:
    """A call that comes back from being parked, of a tool that may be repeated."""
    call: Any = SimpleNamespace(
        server="desk", tool="add", arguments={"key": "a"}, principal="", task="", approved="", may_replay=True
    )
    call.may_have_run, call.record = False, SimpleNamespace(approval="")
    digest = asyncio.run(digest_of(call))
    call.parked = ParkedRecord(**{"digest": digest, "until": 1.0, "decision": decision, "reason": APPROVAL, **more})
    return call


@pytest.mark.parametrize(
    ("decision", "code"), [("denied", ErrorCode.APPROVAL_DENIED), ("expired", ErrorCode.APPROVAL_EXPIRED)]
)
def test_what_was_not_approved_is_refused(decision: str, code: ErrorCode) -> None:
    call = woken(decision, by="ann")
    with pytest.raises(CallError) as refused:
        asyncio.run(apply_decision(call))
    assert (refused.value.code, call.record.approval) == (code, f"{decision} by ann")


@pytest.mark.parametrize("reason", [APPROVAL, "input_required"])
def test_an_approval_is_for_the_arguments_that_were_seen(reason: str) -> None:
    call = woken("approved")
    more = {} if reason == APPROVAL else {"approved": call.parked.digest, "approved_by": "ann", "digest": "asked"}
    call = woken("answered" if more else "approved", reason=reason, **more)
    call.arguments = {"key": "b"}
    with pytest.raises(CallError, match="approved with other arguments") as refused:
        asyncio.run(apply_decision(call))
    assert refused.value.code is ErrorCode.APPROVAL_REQUIRED


def test_an_approved_call_is_sent_once_and_as_approved() -> None:
    call = woken("approved", by="ann")
    asyncio.run(apply_decision(call))
    assert (call.may_replay, call.record.approval) == (False, "approved by ann")
    asyncio.run(require_approved(call))
    call.arguments = {"key": "b"}
    with pytest.raises(CallError, match="approved with other arguments"):
        asyncio.run(require_approved(call))


@pytest.mark.parametrize("more", [{"decision": ""}, {"task": "t"}, {"reason": "input_required"}])
def test_what_nobody_decided_is_left_as_it_is(more: dict[str, str]) -> None:
    call = woken(**{"decision": "approved", **more})
    call.task = call.parked.task
    asyncio.run(apply_decision(call))
    assert (call.may_replay, call.record.approval, call.approved) == (True, "", "")
