"""Whether a person has to approve a call before it is sent, and what became of that.

Owns which calls need it (`approval` of their server), the question that people see, and what each decision means. What
was approved is what is sent: a decision is about the digest of server, tool and arguments, as the MCP server gets them,
and of the principal; and it counts for one call. The call waits parked (`parking`); people decide with
`tarsy-tasks inbox`. A decision counts even if its server asks for no approval any more: so what is sent is compared
(`require_approved`) whether or not any server has `approval` now, and only for calls that were approved.
"""

from tarsy_tasks.broker.parked_calls import ParkedRecord
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Ending, Parked, Proceed, Stage
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.approved_definitions import ApprovedDefinitions
from tarsy_tasks.worker.calls.call_digest import digest_of
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.parking import approval_of, describe_call
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.reporting.approval_requests import APPROVAL

__all__ = ["CallApproval", "apply_decision", "require_approved"]

_NOT_RUN = "The tool did not run."


async def apply_decision(call: RunningCall) -> None:
    """Have the decision about a call count that was parked for an approval; for all others, do nothing. It counts also
    if the call would need no approval now: the configuration may have changed since, or the tool was approved.

    Raises:
        CallError: It was denied, nobody decided in time, or something else was approved than would be sent.
    """
    record = approval_of(call.parked)
    if call.task or record is None or not record.decision:
        return
    # It was approved once: what may have run is not sent again, even if the tool is harmless to repeat.
    call.may_replay = False
    call.record.approval = f"{record.decision} by {record.by}" if record.by else record.decision
    if call.may_have_run:
        return  # its begin marker ends it
    if record.decision != "approved":
        raise _refusal(call, record)
    call.approved = record.digest
    await require_approved(call)


async def require_approved(call: RunningCall) -> None:
    """Raises `CallError` if a call was approved that is another one than what would be sent: its message may have other
    arguments, or an interceptor of a user may have changed them since."""
    if call.approved and call.approved != await digest_of(call):
        what = "was approved with other arguments than those that would be sent, or for another agent"
        raise _rejected(call, ErrorCode.APPROVAL_REQUIRED, what, "Call it again, for another approval.")


class CallApproval:
    """Parks a call that a person has to approve, unless they have decided (`apply_decision`)."""

    name = "approval"
    stage: Stage = "call"

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._definitions = ApprovedDefinitions()

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        definition, server = call.definition, call.connection.server
        record = approval_of(call.parked)
        if call.task or definition is None or (record is not None and record.decision):
            return await proceed()
        if not await self._needs_approval(server, definition):
            return await proceed()
        call.may_replay = False
        if call.may_have_run:
            return await proceed()  # where its begin marker ends it
        if not call.info.park or call.delivery is None:
            raise _rejected(call, ErrorCode.APPROVAL_REQUIRED, "has to be approved by a person", _UNPARKED)
        approval, digest = server.approval, await digest_of(call)
        return Parked(APPROVAL, approval.expires_s, digest, approval.approvers, await describe_call(call))

    async def _needs_approval(self, server: ServerConfig, definition: ToolDefinition) -> bool:
        mode = server.approval.mode_of(definition.tool)
        if mode != "destructive":
            return mode == "always"
        hints = definition.annotations
        if hints.get("readOnlyHint") is not True and hints.get("destructiveHint") is not False:
            return True
        # What a server says of its own tools counts once an operator has seen it.
        try:
            await self._definitions.require(definition, self._context.results)
        except CallError:
            return True
        return False


_UNPARKED = (
    "Calling it again will not help: the agent's program does not wait for approvals. Tell the user that it can do so "
    "with `park=True` (or `park` in its messages)."
)


def _rejected(call: RunningCall, code: ErrorCode, what: str, remedy: str) -> CallError:
    return CallError(code, f"`{call.server}.{call.tool}` {what}. {_NOT_RUN} {remedy}")


def _refusal(call: RunningCall, record: ParkedRecord) -> CallError:
    if record.decision == "expired":
        what = "was not approved in time"
        return _rejected(call, ErrorCode.APPROVAL_EXPIRED, what, "Call it again if it is still needed.")
    why = f": {record.why.rstrip('.')}" if record.why else ""
    what = f"was denied by {record.by}{why}"
    return _rejected(call, ErrorCode.APPROVAL_DENIED, what, "Do not call it again with these arguments.")
