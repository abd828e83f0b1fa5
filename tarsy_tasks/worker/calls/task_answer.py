"""The answer to a call that waited for a task of its MCP server.

Owns what each state of a task means for its call. The result is fetched here, by the call itself, so that it passes
masking, the check of its schema, limits and interceptors as every result does. What was found out before, and why the
call was woken, only says that it is time: a server may change its mind, or may not be reachable any more.
"""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any, NoReturn

from mcp import MCPError
from pydantic import ValidationError

from tarsy_tasks.broker.input_rounds import InputRound
from tarsy_tasks.broker.parked_records import ParkedRecord
from tarsy_tasks.broker.parked_views import TASK
from tarsy_tasks.errors import CallError, NoSessionError
from tarsy_tasks.input_answers import dump_asked
from tarsy_tasks.interceptors import Answer, Ending, Parked, Requeued
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.audit import build_canonical, build_digest
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.input_rounds import find_round, send_with_elicitation
from tarsy_tasks.worker.calls.operation import Operation
from tarsy_tasks.worker.calls.parking import REFUSED, describe_call
from tarsy_tasks.worker.calls.questions import MOST_ROUNDS, read_questions
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.calls.server_tasks import digest_of_task
from tarsy_tasks.worker.calls.tool_call import output_notes
from tarsy_tasks.worker.sessions.call_errors import call_error, describe_error, timeout_error
from tarsy_tasks.worker.sessions.recovery import Action, Executed, Recovery, classify_error
from tarsy_tasks.worker.sessions.session import Session
from tarsy_tasks.worker.sessions.tasks_extension import TaskState, cancel_task, get_task, is_final, update_task
from tarsy_tasks.worker.transport.elicitation_handlers import ElicitParams

__all__ = ["answer_task"]

_MOST_RETURNS = 3
"""How often a task may turn out to go on that was done."""
_UNREACHABLE_S = 5.0
"""After so long a server that could not be reached is asked again."""
_CANCEL_S = 2.0
_AFTER_ANSWER_S = 0.5
_ASKED_AGAIN_S = 10.0
"""So rarely a server is asked about a task while a person is asked for its input."""
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
        self._until = parked.task_until or parked.until
        self._is_over = (
            self._until <= context.clock.now()
            or (parked.decision == "expired" and not parked.task_until)
            or parked.decision == REFUSED
        )

    async def find(self) -> Ending:
        call, connection = self._call, self._call.connection
        if self._parked.decision == "cancelled":
            raise self._error(
                ErrorCode.CANCELLED, "was cancelled, and the MCP server was asked to cancel its task. It may have run."
            )
        left_s = max(0.001, call.deadline - time.monotonic())
        timeout_s = min(left_s, connection.server.timeouts.call_timeout_s(call.tool))
        ends_at = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                session = await connection.connected_for_call()
            if self._parked.reason == INPUT_REQUIRED and self._parked.decision == "answered":
                return await self._pass_on(session, timeout_s)
            sent = session.request(lambda client: get_task(client, self._parked.task, timeout_s), timeout_s)
            state = await (
                send_with_elicitation(self._context, sent, call, lambda: ends_at) if call.info.park else sent
            )
        except (NoSessionError, TimeoutError):
            return await self._wait(_UNREACHABLE_S)
        except ValidationError as error:
            raise call_error(error, _RAN, call.server, call.tool, timeout_s, "", connection.masker) from error
        except MCPError as error:
            if classify_error(error).executed is not Executed.YES:
                if self._parked.decision == "answered":
                    return Requeued("the server cannot be reached", _UNREACHABLE_S)
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
        open_keys = state.asked.keys() - set(self._answered)
        if state.status == "input_required" and (state.asks_else or open_keys) and not self._is_over:
            return await self._ask_caller(session, {key: state.asked[key] for key in sorted(open_keys)}, state)
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
        is_early = self._parked.decision == "done" and state.status != "input_required"
        return await self._wait(state.poll_s, returns=self._parked.returns + is_early)

    @property
    def _answered(self) -> list[str]:
        return json.loads(self._parked.answered or "[]")

    async def _ask_caller(self, session: Session, asked: dict[str, ElicitParams], state: TaskState) -> Ending:
        """The task asks for input: the call waits for that, as one whose server asks before it answers."""
        call, parked = self._call, self._parked
        number = parked.rounds + (parked.reason != INPUT_REQUIRED)
        if parked.reason == INPUT_REQUIRED and parked.decision == "expired":
            await self._give_up(session, "and got no answer in time")
        if state.asks_else or not call.info.park or number > MOST_ROUNDS:
            why = "which its caller does not give: an executor does with `park=True` or `on_input`"
            if state.asks_else or number > MOST_ROUNDS:
                why = "more often, or in another way, than a person can be asked"
            await self._give_up(session, why)
        try:
            found = await read_questions(asked, call)
        except CallError:
            await self._cancel(session)
            raise
        call.record.rounds = number
        kept = InputRound(number, dump_asked(found.asked), "")
        keeps = {**parked.task_fields(), "rounds": number, "task_until": self._until}
        left_s = self._until - self._context.clock.now()
        return Parked(
            INPUT_REQUIRED,
            max(0.0, min(call.connection.server.elicitation.expires_s, left_s)),
            build_digest(build_canonical([parked.task, number, kept.asked])),
            1,
            {**await describe_call(call), "questions": found.shown()},
            keeps=keeps,
            poll_s=_ASKED_AGAIN_S,
            questions=found.questions,
            input_round=kept.fields(),
        )

    async def _pass_on(self, session: Session, timeout_s: float) -> Ending:
        """Give the task what it asked for; then the call waits for it as before."""
        call, parked = self._call, self._parked
        sent = await find_round(self._context, call, parked)
        answers = dict(sent.answers or {}) if sent is not None else {}
        giving = session.request(lambda client: update_task(client, parked.task, answers, timeout_s), timeout_s)
        ends_at = time.monotonic() + timeout_s
        await send_with_elicitation(self._context, giving, call, lambda: ends_at)
        answered = json.dumps(sorted({*self._answered, *answers}))
        return await self._wait(_AFTER_ANSWER_S, answered=answered, answered_by=call.record.answered)

    async def _give_up(self, session: Session, why: str) -> NoReturn:
        await self._cancel(session)
        raise self._error(
            ErrorCode.TASK_INPUT_REQUIRED,
            f"went on as a task of its MCP server, and that asks for input, {why}. The server was asked to cancel it. "
            "It may have done part of its work.",
        )

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

    async def _wait(self, poll_s: float, **changed: Any) -> Ending:
        """It is parked again."""
        if self._is_over:
            return self._time_out()
        parked, call = self._parked, self._call
        left_s = self._until - self._context.clock.now()
        digest = digest_of_task(call.server, parked.task)
        keeps = {**parked.task_fields(), **changed}
        about = await describe_call(call)
        return Parked(TASK, max(0.0, left_s), digest, 0, about, keeps=keeps, poll_s=poll_s)

    def _time_out(self) -> NoReturn:
        call, parked = self._call, self._parked
        if parked.decision == REFUSED:
            raise self._error(
                ErrorCode.TASK_LOST,
                "went on as a task of its MCP server, but as many calls of its agent wait already as may "
                "(`TARSY_PARKED_CALLS`), so nobody waits for the task. It may have run.",
            )
        raise timeout_error(call.server, call.tool, max(0.0, round(self._until - parked.sent_at, 1)))

    async def _cancel(self, session: Session) -> None:
        with suppress(MCPError, ValidationError):
            await session.request(lambda client: cancel_task(client, self._parked.task), _CANCEL_S)

    def _error(self, code: ErrorCode, what: str) -> CallError:
        return CallError(code, f"{self._call.record.title} {what} {_LOOK_FIRST}")
