"""The body of a call: interceptors, operation, ending; one coroutine on the session loop.

Owns the order of the stages, what ends a call from outside (limits, revoke, shutdown, its deadline), and that it ends
once. It stores nothing: the ending goes to its caller.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from math import inf

from celery.exceptions import SoftTimeLimitExceeded
from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.large_results import KEPT_CHARS, LargeWrite
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Answer, Ending, Parked, Requeued
from tarsy_tasks.methods import ANSWER_INPUT
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.metrics import NO_TOOL
from tarsy_tasks.worker.calls.call_approval import apply_decision
from tarsy_tasks.worker.calls.chain import Interceptors, run_through
from tarsy_tasks.worker.calls.content import TEXT_LIMIT, mask_result
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import build_failure, facts_of
from tarsy_tasks.worker.calls.invocation import Invocation
from tarsy_tasks.worker.calls.large_results import cut_result
from tarsy_tasks.worker.calls.operation import Operation
from tarsy_tasks.worker.calls.parking import build_parking
from tarsy_tasks.worker.calls.redelivery import never_deny_run
from tarsy_tasks.worker.calls.running_call import RunningCall, ignore_end
from tarsy_tasks.worker.calls.server_tasks import never_deny_task
from tarsy_tasks.worker.calls.task_answer import answer_task

__all__ = ["CallExecution", "CallRunner", "WorkerStopping"]

_TURN_S = 2.0

ReportEnding = Callable[[Ending | BaseException], Awaitable[None] | None]
"""Takes an ending. What it returns, if anything, is awaited in the task of the call: another one would cost more."""


class WorkerStopping(Exception):
    """The worker stops, and its grace is over. What may be done again elsewhere goes back to its queue."""


class CallRunner:
    """Starts calls.

    Args:
        interceptors: What calls pass.
        isolated: What the calls of isolated sessions pass instead.
        operations: What calls can ask for.
        answering: What answers to the questions of servers pass instead.
    """

    def __init__(
        self,
        context: WorkerContext,
        interceptors: Interceptors,
        isolated: Interceptors,
        operations: Iterable[Operation],
        answering: Interceptors,
    ) -> None:
        self.context = context
        self._answering = answering
        self._operations = {each.name: each for each in operations}
        self.replace_interceptors(interceptors, isolated)

    def replace_interceptors(self, interceptors: Interceptors, isolated: Interceptors) -> None:
        """Have all calls that come from now on pass these. Both hold the policy, so neither is replaced alone."""
        self._interceptors, self._isolated = interceptors, isolated

    def build(self, call: RunningCall, report_ending: ReportEnding) -> "CallExecution":
        """One call, not started yet."""
        operation, interceptors = self._operations[call.operation], self._interceptors
        if call.operation == ANSWER_INPUT:
            interceptors = self._answering
        elif call.info.session is not None:
            interceptors = self._isolated
        return CallExecution(self.context, interceptors, operation, call, report_ending)


class CallExecution:
    """One call, from its message to its ending.

    Args:
        report_ending: Called once, on the loop, with the ending, or with an exception that is not a call's.

    All methods run on the session loop.
    """

    def __init__(
        self,
        context: WorkerContext,
        interceptors: Interceptors,
        operation: Operation,
        call: RunningCall,
        report_ending: ReportEnding,
    ) -> None:
        self._context = context
        self._interceptors = interceptors
        self._operation = operation
        self._call = call
        self._report_to = report_ending
        self._task: asyncio.Task[None] | None = None
        self._requeuing: asyncio.Task[None] | None = None
        self._storing: asyncio.Future[None] | None = None
        """Both are kept: the event loop itself refers to its tasks only weakly."""
        self._is_over = False
        call.end = self.end

    def start(self) -> None:
        if not self._is_over:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._call.server)

    def end(self, error: Exception) -> None:
        """End the call now. The MCP server is asked to cancel it; nothing waits for its reaction.

        Args:
            error: Why: `WorkerStopping`, `SoftTimeLimitExceeded`, a `CallError`, or what is raised as it is.
        """
        if self._is_over:
            return
        call = self._call
        call.is_closed = True
        if call.feed is not None:
            call.feed.close(keeps_state=isinstance(error, WorkerStopping))
        if isinstance(error, WorkerStopping):
            self._stop()
        elif isinstance(error, SoftTimeLimitExceeded):
            self._report_ending(self._failure(self._time_limit(error)))
        elif isinstance(error, CallError):
            self._report_ending(self._failure(error))
        else:
            self._report_ending(error)
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        call = self._call
        label = call.tool if call.record.is_listed else NO_TOOL
        try:
            with self._context.metrics.running(call.server, label):
                ending = await run_through(self._interceptors.message, call, self._prepared)
            if isinstance(ending, Requeued):
                # At its deadline it comes back, to be answered.
                if call.delivery is not None:
                    call.delivery.wait_s = min(ending.after_s, call.deadline - time.monotonic())
                await self._unbegin()  # or another worker would wait for this one's answer
            if isinstance(ending, Parked) and call.delivery is not None:
                call.delivery.parking = build_parking(self._context, call, ending)
                # Woken, it is sent again.
                call.delivery.unbegins = ending.reason == INPUT_REQUIRED
            if isinstance(ending, Answer) and (ending.result is not call.built or call.is_large):
                ending = await self._finished(ending.result)
            if call.feed is not None:
                await call.feed.finish(keeps_state=isinstance(ending, Parked | Requeued))
            if not self._is_over:
                self._close()
                if (storing := self._report_to(ending)) is not None:
                    await storing
        except CallError as error:
            if call.feed is not None:
                await call.feed.finish()
            self._report_ending(self._failure(error))
        except asyncio.CancelledError:
            # By `end`, which has reported an ending; or because the loop stops, and nothing can be awaited any more.
            if not (call.record.has_begun and call.may_have_run):
                if call.delivery is not None:
                    call.delivery.unbegins = True
                self._report_ending(Requeued("the worker stops"))
            self.end(WorkerStopping())
            raise
        except Exception as error:
            self._report_ending(error)

    async def _prepared(self) -> Ending:
        call = self._call
        if (agents := self._call.connection.agents) is not None:
            async with agents.lend(self._call.principal) as self._call.connection:
                return await self._prepared()
        if (asked := self._context.elicitation) is not None and call.info.park and call.delivery is not None:
            async with asked.lend(call.connection, self._context.connections.get(call.server), call.queue) as lent:
                if lent is None:
                    return Requeued("its server may ask one caller at a time, and many wait for that", _TURN_S)
                call.connection = lent
                return await self._go_on()
        return await self._go_on()

    async def _go_on(self) -> Ending:
        await self._operation.prepare(self._call)
        if self._call.parked is not None:
            await apply_decision(self._call)
        return await run_through(self._interceptors.call, self._call, self._invoke)

    def _invoke(self) -> Awaitable[Ending]:
        if self._call.task:
            return answer_task(self._context, self._call, self._operation)
        return Invocation(self._context, self._call, self._operation, self._interceptors.attempt).run()

    def _report_ending(self, ending: Ending | BaseException) -> None:
        if self._is_over:
            return
        self._close()
        if (storing := self._report_to(ending)) is not None:
            self._storing = asyncio.ensure_future(storing)

    def _close(self) -> None:
        self._is_over = True
        self._call.end = ignore_end  # or all of the call would wait for the garbage collector

    async def _finished(self, made: ToolResult) -> Answer:
        """The answer as it leaves the worker, if an interceptor of a user made it, or it may be large: masked in the
        first case, and cut. That is done in a thread."""
        call, context = self._call, self._context
        facts = facts_of(context, call.info, call.record, call.repairs)
        limit = KEPT_CHARS if call.is_cut_if_large else TEXT_LIMIT
        mask = partial(mask_result, made, call.connection.masker, limit=limit, **facts)
        is_masked, long_work = made is call.built, call.connection.long_work
        delivery, quota_bytes = call.delivery, context.settings.large_result_bytes
        if delivery is None or not call.is_cut_if_large:
            return Answer(await long_work.run(mask, allowed_s=inf))
        owner = keys.result_owner(keys.agent_of_queue(call.queue), call.info.agent_id)
        most_chars = call.connection.server.result_limit_of(call.tool)

        def finish() -> tuple[ToolResult, LargeWrite | None]:
            return cut_result(made if is_masked else mask(), most_chars, owner, call.id, quota_bytes)

        result, delivery.large = await long_work.run(finish, allowed_s=inf)
        return Answer(result)

    def _failure(self, error: CallError) -> Answer:
        call = self._call
        masker = call.connection.masker
        if call.task:
            error = never_deny_task(call, error)
        else:
            error = never_deny_run(error, call.record, may_have_run=call.may_have_run)
        return Answer(build_failure(self._context, error, call.info, call.record, masker, call.repairs))

    def _stop(self) -> None:
        call = self._call
        if not (call.record.has_begun and call.may_have_run):
            self._close()
            self._requeuing = asyncio.get_running_loop().create_task(self._requeue())
        elif call.may_replay:
            self._report_ending(Requeued("the worker stops"))
        else:
            self._report_ending(self._failure(_stopped(call)))

    async def _requeue(self) -> None:
        """Give back a call that was not sent."""
        try:
            await self._unbegin()
        finally:  # even when the loop stops before Redis answers: a thread waits for this
            self._report_to(Requeued("the worker stops"))

    async def _unbegin(self) -> None:
        """Remove the begin marker: here, because it may still be on its way on this connection; and in the step that
        gives the call back, because this may fail."""
        call = self._call
        if call.delivery is not None and call.owner:
            call.delivery.unbegins = True
            with suppress(RedisError, OSError):
                await self._context.in_flight.unbegin(call.delivery.tag, call.owner)

    def _time_limit(self, error: SoftTimeLimitExceeded) -> CallError:
        call, limit = self._call, f"Celery's soft time limit of {error.args[0]:g} s"
        if call.record.has_begun and call.may_have_run:
            return CallError(
                ErrorCode.TIME_LIMIT,
                f"`{call.server}.{call.tool}` was cancelled at {limit}. It may have run. "
                "Check its effects before you call it again.",
            )
        return CallError(
            ErrorCode.SERVER_UNAVAILABLE,
            f"`{call.server}.{call.tool}` was not sent within {limit}; its MCP server may not be connected. "
            "The tool did not run. Try again later.",
        )


def _stopped(call: RunningCall) -> CallError:
    name = f"`{call.server}.{call.tool}`"
    if call.is_asked:
        text = (
            f"The worker was stopped while {name} waited for the answer to a question of its MCP server, which nobody "
            "can answer any more. The server was asked to cancel the call, and may have done part of it. Check its "
            "effects before you call it again; the server then asks again."
        )
    else:
        text = (
            f"The worker was stopped while {name} ran, and the MCP server was asked to cancel it. It may have run. "
            "Check its effects before you call it again."
        )
    return CallError(ErrorCode.WORKER_STOPPED, text)
