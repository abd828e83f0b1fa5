"""The operation "watch a resource": which watches are accepted, and the answer.

Its server is subscribed to, and what changes is published, by `resource_watches`.
"""

from dataclasses import dataclass

from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.errors import CallError
from tarsy_tasks.methods import WATCH_RESOURCE
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import build_failure, facts_of
from tarsy_tasks.worker.calls.request_arguments import RequestArguments, read_request
from tarsy_tasks.worker.calls.resource_read import Uri
from tarsy_tasks.worker.calls.resource_watches import ResourceWatches
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.calls.watched_server import Watch
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["WatchResourceOperation"]

_SUBSCRIBE = "resources.subscribe"


class _WatchArguments(RequestArguments):
    """Attributes:
    uri: Of the resource.
    """

    uri: Uri


@dataclass(frozen=True)
class _Begun:
    """Attributes:
    problem: Why the server, or Redis, does not let it be watched; empty if it is watched.
    error: Why this worker does not watch it.
    """

    problem: str = ""
    error: CallError | None = None

    @property
    def is_error(self) -> bool:
        return bool(self.problem)


class WatchResourceOperation:
    """`resources/subscribe`."""

    name = WATCH_RESOURCE

    def __init__(self, context: WorkerContext, watches: ResourceWatches) -> None:
        self._context = context
        self._watches = watches

    async def prepare(self, call: RunningCall) -> None:
        """Raises `CallError` for arguments that name no resource."""
        read_request(call, _WatchArguments)

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> _Begun:
        """One attempt; raises what the SDK raises."""
        if _SUBSCRIBE not in session.capabilities:
            return _Begun("it does not report changes of its resources")
        if call.info.session is not None:
            return _Begun("the session is an isolated one, which ends with its run. Use an executor without `session`")
        about = call.server, keys.agent_of_queue(call.queue), call.principal, call.arguments["uri"]
        try:
            return _Begun(await self._watches.begin(Watch(call.id, *about), timeout_s))
        except (RedisError, OSError) as error:
            return _Begun(f"Redis does not record the watch ({error})")
        except CallError as error:  # which says nothing of the session that the call has
            return _Begun(error=error)

    async def build_result(self, call: RunningCall, found: _Begun) -> ToolResult:
        """The answer says only that the resource is watched."""
        if found.error is not None:
            return build_failure(self._context, found.error, call.info, call.record, call.connection.masker)
        facts = facts_of(self._context, call.info, call.record, ())
        if not found.is_error:
            return ToolResult(content=f"{call.connection.masker.mask(call.arguments['uri'])} is watched.", **facts)
        text = f"MCP server `{call.server}`: the resource cannot be watched, because {found.problem}."
        return ToolResult.from_error(CallError(ErrorCode.SERVER_ERROR, call.connection.masker.mask(text)), **facts)
