"""What every call passes, in order, before it is sent to the MCP server."""

from collections.abc import Iterable

from tarsy_tasks.interceptors import Interceptor
from tarsy_tasks.worker.calls.admission import Deadline, OwnQueue, PinnedDefinition
from tarsy_tasks.worker.calls.chain import Interceptors
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.guard import BeginMarker, Redelivery
from tarsy_tasks.worker.calls.permission import PermittedArguments, PermittedTool
from tarsy_tasks.worker.calls.resource_cache import ResourceCache

__all__ = ["build_interceptors"]


def build_interceptors(context: WorkerContext, users: Iterable[Interceptor]) -> Interceptors:
    """The package's own and those of the users, each stage in this order."""
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
        ],
        users,
        [
            # call, after those of the users: what they refuse is not answered, and what they change is what counts
            ResourceCache(context),
            # attempt: right before the call is sent
            BeginMarker(context),
        ],
    )
