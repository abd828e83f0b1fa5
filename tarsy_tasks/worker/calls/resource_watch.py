"""The operation "watch a resource": it records the watch in Redis, where the worker finds it that subscribes to it.

Owns which watches are accepted. Subscribing, and what is published, is `process.resource_watches`'.
"""

import json
from dataclasses import dataclass

from redis.exceptions import RedisError

from tarsy_tasks.broker import keys, watches
from tarsy_tasks.errors import CallError
from tarsy_tasks.methods import WATCH_RESOURCE
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.request_arguments import RequestArguments, read_request
from tarsy_tasks.worker.calls.resource_read import Uri
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["WatchResourceOperation"]

_SUBSCRIBE = "resources.subscribe"


class _WatchArguments(RequestArguments):
    """Attributes:
    uri: Of the resource.
    """

    uri: Uri


@dataclass(frozen=True)
class _Recorded:
    problem: str = ""

    @property
    def is_error(self) -> bool:
        return bool(self.problem)


class WatchResourceOperation:
    """`resources/subscribe`."""

    name = WATCH_RESOURCE

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    async def prepare(self, call: RunningCall) -> None:
        """Raises `CallError` for arguments that name no resource."""
        read_request(call, _WatchArguments)

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> _Recorded:  # noqa: ARG002
        """Record it; nothing is sent to the server yet."""
        if _SUBSCRIBE not in session.capabilities:
            return _Recorded("it reports no changes of its resources")
        if call.connection.server.start == "on_demand":
            return _Recorded("it is stopped when it is idle (`start: on_demand`), and hears of no changes then")
        agent = keys.agent_of_queue(call.queue)
        try:
            is_added = await watches.add.run_async(
                self._context.results,
                watches=keys.watches_key(call.server),
                lease=keys.watch_lease_key(agent, call.id),
                watch_id=call.id,
                agent=agent,
                text=json.dumps({"uri": call.arguments["uri"], "agent": agent}),
            )
        except (RedisError, OSError) as error:
            return _Recorded(f"Redis did not record the watch ({error})")
        return _Recorded("" if is_added else "too many of its resources are watched already")

    async def build_result(self, call: RunningCall, found: _Recorded) -> ToolResult:
        """The answer; it tells nothing but that the watch is recorded."""
        facts = facts_of(self._context, call.info, call.record, ())
        if found.problem:
            text = f"MCP server `{call.server}`: the resource cannot be watched, because {found.problem}."
            return ToolResult.from_error(CallError(ErrorCode.SERVER_ERROR, text), **facts)
        return ToolResult(content="watched", **facts)
