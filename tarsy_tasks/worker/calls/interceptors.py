"""What every call passes, in order, before it is sent to the MCP server."""

from collections.abc import Iterable

from tarsy_tasks.interceptors import Interceptor
from tarsy_tasks.worker.calls.admission import Deadline, OwnQueue, PinnedDefinition
from tarsy_tasks.worker.calls.call_approval import ApprovedArguments, CallApproval
from tarsy_tasks.worker.calls.chain import Interceptors
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.guard import BeginMarker, Redelivery
from tarsy_tasks.worker.calls.permission import PermittedArguments, PermittedTool

__all__ = ["build_interceptors"]


def build_interceptors(
    context: WorkerContext, users: Iterable[Interceptor], *, has_approvals: bool = False
) -> Interceptors:
    """The package's own and those of the users, each stage in this order.

    Args:
        has_approvals: Some calls have to be approved by a person.
    """
    policy = context.policy
    return Interceptors(
        [
            # message: before tool and arguments are read
            Deadline(context),  # first: whatever follows may wait, and ends at the deadline
            Redelivery(context),  # before what counts or refuses calls: what was answered elsewhere is no call any more
            OwnQueue(),
            *([PermittedTool(policy)] if policy is not None else ()),
            # call: with the tool's definition and its arguments
            PinnedDefinition(context),
            *([PermittedArguments(policy)] if policy is not None and policy.has_argument_rules else ()),
            *([CallApproval(context)] if has_approvals else ()),  # after what refuses calls: nobody is asked in vain
        ],
        users,
        [
            # attempt: right before the call is sent
            *([ApprovedArguments()] if has_approvals else ()),
            BeginMarker(context),
        ],
    )
