"""Calls whose MCP server answers with a task: they are parked until it is done.

Owns what is kept of such a call, and what it is when it goes on. Asking the server is `process.task_poller`, and the
answer `task_answer`. How the server says it is `sessions.tasks_extension`.

The task is kept in Redis at once, before the call is parked: a worker that is lost then leaves a call that another one
goes on with. Callers that do not wait for parked calls wait for this one as for any other: until their own deadline.
"""

import time

from redis.exceptions import RedisError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_calls import ParkedRecord
from tarsy_tasks.broker.parked_views import TASK
from tarsy_tasks.broker.server_tasks import keep
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Parked
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.audit import build_canonical, build_digest
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.parking import build_parking, describe_call
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.sessions.tasks_extension import CreatedTask

__all__ = ["digest_of_task", "keep_task", "never_deny_task", "resume_task"]


async def keep_task(context: WorkerContext, call: RunningCall, created: CreatedTask, deadline: float) -> Parked:
    """The ending of a call that was answered with a task.

    Args:
        deadline: Until when its caller waits who does not wait for parked calls; monotonic time.

    Raises:
        CallError: The task cannot be waited for.
    """
    delivery, server = call.delivery, call.connection.server
    if delivery is None:
        raise CallError(
            ErrorCode.TASK_LOST,
            f"{call.record.title} was answered with a task, which cannot be waited for without a message of its own. "
            "The tool may run. Send the call through its queue.",
        )
    keeps: dict[str, object] = {
        "task": created.task_id,
        "sent_at": round(context.clock.now(), 3),
        "attempts": call.record.attempts,
        "approval": call.record.approval,
        "charges": delivery.charges,
        "events": int(call.feed is not None),
    }
    home = keys.call_queue(call.server, keys.agent_of_queue(call.queue) or None)
    if server.transport == "stdio" and call.queue and context.consume_own(home):
        keeps["holder"] = context.instance
    left_s = max(0.0, deadline - time.monotonic())
    parked = Parked(
        TASK,
        server.timeouts.task_s if call.info.park else left_s,
        digest_of_task(call.server, created.task_id),
        0,
        await describe_call(call),
        keeps={name: value for name, value in keeps.items() if value},
        poll_s=created.poll_s,
    )
    parking = build_parking(context, call, parked)
    is_kept = False
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type((RedisError, OSError)), wait=wait_fixed(0.2), stop=stop_after_delay(left_s)
    ):
        with attempt:
            exchange, task = context.in_flight.exchange, created.task_id
            is_kept = await keep(exchange, call.id, call.server, task, parking.record, parking.until)
    if not is_kept:
        raise CallError(
            ErrorCode.INVALID_RESULT,
            f"{call.record.title} ran, but its answer cannot be used: MCP server `{call.server}` answered it with the "
            "task of another call. Do not repeat it unless running it twice is harmless.",
        )
    return parked


def digest_of_task(server: str, task: str) -> str:
    """What names the waiting for a task, without its id."""
    return build_digest(build_canonical([server, task]))


def resume_task(context: WorkerContext, call: RunningCall, parked: ParkedRecord) -> None:
    """A call goes on that was answered with a task: what was known of it is known again."""
    call.attempts = call.record.attempts = max(1, parked.attempts)
    call.record.approval, call.record.answered = parked.approval, parked.answered_by
    call.record.rounds = parked.rounds
    if call.delivery is not None:
        call.delivery.charges = parked.charges
    if call.record.picked_up_at is not None and parked.sent_at:
        call.record.picked_up_at -= max(0.0, context.clock.now() - parked.sent_at)


def never_deny_task(call: RunningCall, error: CallError) -> CallError:
    """The error to answer with: none that says that the tool did not run."""
    if error.outcome not in (Outcome.UNAVAILABLE, Outcome.REJECTED):
        return error
    return CallError(
        ErrorCode.TASK_LOST,
        f"{call.record.title} went on as a task of its MCP server, and its result could not be fetched "
        f"({error.code}). The tool may have run. Check its effects before you call it again.",
    )
