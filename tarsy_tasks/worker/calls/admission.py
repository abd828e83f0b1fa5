"""The interceptors that decide whether a call may start: its deadline, its queue, the definition of its tool.

Owns what each of them refuses, and the timer of the deadline. Whether a call that was delivered before may be sent is
in `redelivery`.
"""

import time
from contextlib import suppress
from typing import TypeGuard

from redis.exceptions import RedisError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_calls import ParkedRecord
from tarsy_tasks.broker.results_elsewhere import forget_state
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Ending, Proceed, Stage
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.worker.calls.approved_definitions import ApprovedDefinitions
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.input_rounds import find_round
from tarsy_tasks.worker.calls.invocation import end_after
from tarsy_tasks.worker.calls.parking import NO_LIMIT_S, REFUSED, find_parked, refuse_parked
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.calls.server_tasks import resume_task

__all__ = ["Deadline", "OwnQueue", "PinnedDefinition", "require_queue"]


class Deadline:
    """A call is not started after its deadline, and ends at it, at most 0.5 s later (`end_after`)."""

    name = "deadline"
    stage: Stage = "message"

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        left_s = call.info.timeout_s or NO_LIMIT_S
        if call.info.deadline is not None:
            if not self._context.clock.is_fresh:  # tenacity costs more than all the rest
                await self._sync_clock()
            left_s = min(left_s, call.info.deadline - self._context.clock.now())
            if call.feed is not None and call.delivery_count > 1:
                moved = await call.feed.find_deadline()
                left_s = left_s if moved is None else max(left_s, moved - time.monotonic())
        if call.info.park or call.may_have_run:
            left_s = await self._after_parking(call, left_s)
        if left_s <= 0:
            raise CallError(
                ErrorCode.DEADLINE_PASSED,
                f"The call was still in its queue {-left_s:.3g} s after its deadline, so it was not started. "
                "The tool did not run. The workers may be overloaded: call it again later, or allow more time.",
            )
        call.deadline = time.monotonic() + left_s
        timer = end_after(call, left_s)
        try:
            return await proceed()
        finally:
            timer.cancel()

    async def _after_parking(self, call: RunningCall, left_s: float) -> float:
        """How long a call may take that may have been parked: then its time counts from when it was woken; or with a
        task of its server, for which its caller waits so long, from when that had to be done."""
        if not self._context.clock.is_fresh:
            await self._sync_clock()
        async for attempt in _retrying():
            with attempt:
                call.parked = await find_parked(self._context, call)
                if call.parked is not None and call.parked.decision == REFUSED and not call.parked.task:
                    raise refuse_parked(self._context, call, call.parked)
                if _was_asked(call.parked):
                    call.sent_round = await find_round(self._context, call, call.parked)
        parked = call.parked
        if parked is not None and self._context.has_results_elsewhere:
            with suppress(RedisError, OSError):  # its answer takes that place
                await forget_state.run_async(self._context.results, tag=call.id, digest="")
        if parked is not None and parked.task:
            resume_task(self._context, call, parked)
            until = max(parked.until, parked.task_until, parked.resumed_at or 0.0)
            return until + parked.allowance_s - self._context.clock.now()
        if parked is None or parked.resumed_at is None:
            return left_s
        return parked.resumed_at + parked.allowance_s - self._context.clock.now()

    async def _sync_clock(self) -> None:
        async for attempt in _retrying():
            with attempt:
                await self._context.clock.sync_async(self._context.results.execute)


def _was_asked(parked: ParkedRecord | None) -> TypeGuard[ParkedRecord]:
    """Whether the call waited in Redis for what is sent with it now. What a session waited for was lost with that, and
    the server asks again."""
    return parked is not None and parked.reason == INPUT_REQUIRED and not (parked.task or parked.held)


def _retrying() -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(RedisError), wait=wait_fixed(0.2), stop=stop_after_delay(10), reraise=True
    )


class OwnQueue:
    """Who may write into a queue is decided in Redis: its messages count only for the server that it belongs to."""

    name = "own_queue"
    stage: Stage = "message"

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        require_queue(call.queue, keys.queue(call.server))
        return await proceed()


def require_queue(found: str, queue: str) -> None:
    """Check the queue that a message came from.

    Args:
        found: That queue; empty if there was none. Queues of other names are the operator's own.
        queue: Where the message belongs, or into the one that its agent has instead.

    Raises:
        CallError: It was in the queue of another server, or among checks although it is not one.
    """
    if found in ("", queue) or keys.shared_queue(found) == queue or keys.server_of_queue(found) is None:
        return
    raise CallError(
        ErrorCode.WRONG_QUEUE,
        f"The message belongs in the queue `{queue}` but was in `{found}`. The tool did not run. "
        "The program that sent it has to be fixed.",
    )


class PinnedDefinition:
    """Where the server has `pin: block`, only tools are called whose definition is approved."""

    name = "pinned_definition"
    stage: Stage = "call"

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._approved = ApprovedDefinitions()

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        if not call.task and call.definition is not None and call.connection.server.pin == "block":
            await self._approved.require(call.definition, self._context.results)
        return await proceed()
