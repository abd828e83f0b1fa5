"""The answer to a call that waited for a task of its MCP server.

Owns what each state of a task means for its call. The result is fetched here, by the call itself, so that it passes
masking, the check of its schema, limits and interceptors as every result does. What was found out before, and why the
call was woken, only says that it is time: a server may change its mind, or may not be reachable any more.
"""

import asyncio
import time
from contextlib import suppress
from typing import NoReturn

from mcp import MCPError
from pydantic import ValidationError

from tarsy_tasks.broker.parked_calls import ParkedRecord
from tarsy_tasks.broker.parked_views import TASK
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Answer, Ending, Parked
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.operation import Operation
from tarsy_tasks.worker.calls.parking import describe_call
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.calls.tool_call import output_notes
from tarsy_tasks.worker.sessions.call_errors import call_error, describe_error, timeout_error
from tarsy_tasks.worker.sessions.recovery import Action, Executed, Recovery, classify_error
from tarsy_tasks.worker.sessions.server_tasks import TaskState, cancel_task, get_task, is_final
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["answer_task"]

_MOST_RETURNS = 3
"""How often a task may turn out to go on that was done."""
_UNREACHABLE_S = 5.0
"""After so long a server that could not be reached is asked again."""
_CANCEL_S = 2.0
_RAN = Recovery(Action.NO_RETRY, Executed.YES)
_LOOK_FIRST = "Check its effects before you call it again."


async def answer_task(context: WorkerContext, call: RunningCall, operation: Operation) -> Ending:
    """How a call ends that goes on after it was answered with a task.

    Raises:
        CallError: It has no result; code and text say why.
    """
    parked = call.parked
    assert parked is not None
    return await _TaskAnswer(context, call, operation, parked).find()


class _TaskAnswer:
    """For one call, once it was woken."""

    def __init__(self, context: WorkerContext, call: RunningCall, operation: Operation, parked: ParkedRecord) -> None:
        self._context = context
        self._call = call
        self._operation = operation
        self._parked = parked
        self._is_over = parked.decision == "expired" or parked.until <= context.clock.now()

    async def find(self) -> Ending:
        call, connection = self._call, self._call.connection
        if self._parked.decision == "cancelled":
            raise self._error(
                ErrorCode.CANCELLED, "was cancelled, and the MCP server was asked to cancel its task. It may have run."
            )
        left_s = max(0.001, call.deadline - time.monotonic())
        timeout_s = min(left_s, connection.server.timeouts.call_timeout_s(call.tool))
        try:
            async with asyncio.timeout(timeout_s):
                session = await connection.connected_for_call()
            state = await session.request(lambda client: get_task(client, self._parked.task, timeout_s), timeout_s)
        except (CallError, TimeoutError):
            return await self._wait(_UNREACHABLE_S)
        except ValidationError as error:
            raise call_error(error, _RAN, call.server, call.tool, timeout_s, "", connection.masker) from error
        except MCPError as error:
            if classify_error(error).executed is not Executed.YES:
                return await self._wait(_UNREACHABLE_S)
            raise self._error(
                ErrorCode.TASK_LOST,
                "went on as a task of its MCP server, which no longer knows that task: "
                f"{describe_error(error, connection.masker)}. It may have run.",
            ) from error
        connection.availability.record_answer()
        return await self._conclude(session, state)

    async def _conclude(self, session: Session, state: TaskState) -> Ending:
        call = self._call
        if state.status == "completed":
            assert state.result is not None
            call.notes = output_notes(await session.find_output_problem(call.tool, state.result))
            call.built = await self._operation.build_result(call, state.result)
            return Answer(call.built)
        if is_final(state.status):
            self._raise_failed(state)
        if state.status == "input_required":
            await self._cancel(session)
            raise self._error(
                ErrorCode.TASK_INPUT_REQUIRED,
                "went on as a task of its MCP server, and that asks for input, which a task cannot get here. The "
                "server was asked to cancel it. It may have done part of its work.",
            )
        if self._is_over:
            await self._cancel(session)
            return self._time_out()
        if self._parked.decision and self._parked.returns + 1 >= _MOST_RETURNS:
            await self._cancel(session)
            raise self._error(
                ErrorCode.INVALID_RESULT,
                f"ran, but its answer cannot be used: MCP server `{call.server}` said {_MOST_RETURNS} times that its "
                "task is done, and then that it goes on.",
            )
        return await self._wait(state.poll_s, returns=self._parked.returns + bool(self._parked.decision))

    def _raise_failed(self, state: TaskState) -> NoReturn:
        masker = self._call.connection.masker
        code, text = state.error
        said = masker.mask_start(text or state.message, 2000).rstrip(".")
        what = "was cancelled by the server" if state.status == "cancelled" else "failed"
        reason = f": {said}" if said else ""
        number = f" (code {code})" if code else ""
        raise CallError(
            ErrorCode.SERVER_ERROR,
            f"{self._call.record.title} went on as a task of its MCP server, and that {what}{reason}{number}. It gave "
            "no result, but may have done part of its work. Change the call, or continue without it.",
        )

    async def _wait(self, poll_s: float, *, returns: int | None = None) -> Ending:
        """It is parked again."""
        if self._is_over:
            return self._time_out()
        parked, call = self._parked, self._call
        left_s = parked.until - self._context.clock.now()
        keeps = {"returns": parked.returns if returns is None else returns}
        return Parked(TASK, max(0.0, left_s), parked.digest, 0, await describe_call(call), keeps, poll_s)

    def _time_out(self) -> NoReturn:
        call, parked = self._call, self._parked
        raise timeout_error(call.server, call.tool, max(0.0, round(parked.until - parked.sent_at, 1)))

    async def _cancel(self, session: Session) -> None:
        with suppress(MCPError, ValidationError):
            await session.request(lambda client: cancel_task(client, self._parked.task), _CANCEL_S)

    def _error(self, code: ErrorCode, what: str) -> CallError:
        return CallError(code, f"{self._call.record.title} {what} {_LOOK_FIRST}")
