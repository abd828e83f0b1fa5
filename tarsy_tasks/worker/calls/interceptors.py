"""What every call passes, in order, before it is sent to the MCP server."""

from collections.abc import Iterable

from tarsy_tasks.config import Config
from tarsy_tasks.interceptors import Interceptor
from tarsy_tasks.worker.calls.admission import Deadline, OwnQueue, PinnedDefinition
from tarsy_tasks.worker.calls.call_approval import CallApproval
from tarsy_tasks.worker.calls.chain import Interceptors
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.input_answers import InputAnswers
from tarsy_tasks.worker.calls.isolated_calls import IsolatedSession, OpenedSession, SessionEnd
from tarsy_tasks.worker.calls.isolated_sessions import IsolatedSessions
from tarsy_tasks.worker.calls.permission import PermittedArguments, PermittedTool
from tarsy_tasks.worker.calls.redelivery import BeginMarker, Redelivery
from tarsy_tasks.worker.calls.result_cache import ResultCache

__all__ = ["build_answering", "build_interceptors", "has_approvals", "has_cache"]


def has_cache(config: Config) -> bool:
    """Whether answers of any server are kept; without one, the cache is no part of a call."""
    return any(server.cache is not None for server in config.enabled_servers.values())


def has_approvals(config: Config) -> bool:
    """Whether calls of any server can need an approval; if not, approval is no part of a call."""
    return any(server.approval.asks for server in config.enabled_servers.values())


def build_interceptors(
    context: WorkerContext,
    users: Iterable[Interceptor],
    *,
    is_cached: bool,
    has_approvals: bool,
    isolation: IsolatedSessions | None = None,
) -> Interceptors:
    """The package's own and those of the users, each stage in this order.

    Args:
        is_cached: Answers are kept. Those of an isolated session depend on what happened in it: they never are.
        has_approvals: Calls may need one.
        isolation: For calls of isolated sessions; None: for all others, which it costs nothing.
    """
    policy = context.policy
    return Interceptors(
        [
            # message: before tool and arguments are read
            Deadline(context),  # first: whatever follows may wait, and ends at the deadline
            Redelivery(context),  # before what counts or refuses calls: what was answered elsewhere is no call any more
            OwnQueue(),
            *([SessionEnd(isolation, context)] if isolation is not None else ()),  # needs no permission
            *([PermittedTool(policy)] if policy is not None else ()),
            *([IsolatedSession(isolation)] if isolation is not None else ()),  # opens nothing for what is not permitted
            # call: with the tool's definition and its arguments
            PinnedDefinition(context),
            *([PermittedArguments(policy)] if policy is not None and policy.has_argument_rules else ()),
            *([CallApproval(context)] if has_approvals else ()),  # last: calls that are refused need no approval
        ],
        users,
        [
            # call: behind those of the users, so that what is kept passes all that a call passes
            *([ResultCache(context)] if is_cached and isolation is None else ()),
            # attempt: right before the call is sent
            *([OpenedSession(isolation)] if isolation is not None else ()),
            BeginMarker(context),  # in one step with the limits of the policy, which Redis counts
        ],
    )


def build_answering(context: WorkerContext) -> Interceptors:
    """What the answer of an agent to the questions of a server passes: it is no call, and needs no permission but that
    the call is its own."""
    return Interceptors([Deadline(context), Redelivery(context), OwnQueue(), InputAnswers(context)], [], [])
