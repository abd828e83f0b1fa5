"""One call over one connection, sent again where that is safe.

Owns the replay rule and the budgets of a call: what may have run is sent again only if it is harmless to repeat, what
was never sent may be sent again in any case, and all of it happens before the call's one deadline. What a failure means
is decided in `recovery`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Answer, Ending, Parked
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.audit import StepName
from tarsy_tasks.worker.calls.call_approval import require_approved
from tarsy_tasks.worker.calls.chain import Step, run_through
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.event_feed import Extension
from tarsy_tasks.worker.calls.input_rounds import ask_for_input, input_error, require_same, send_with_elicitation
from tarsy_tasks.worker.calls.operation import Operation
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.calls.server_tasks import keep_task
from tarsy_tasks.worker.sessions.backoff import FailedAttempt, backoff
from tarsy_tasks.worker.sessions.call_errors import call_error, describe_error, lost_error, timeout_error
from tarsy_tasks.worker.sessions.input_requests import InputNeeded
from tarsy_tasks.worker.sessions.recovery import (
    Action,
    Executed,
    Recovery,
    asks_to_wait,
    classify_error,
    pause_of,
    retry_after_s,
)
from tarsy_tasks.worker.sessions.session import Session
from tarsy_tasks.worker.sessions.tasks_extension import CreatedTask

__all__ = ["Invocation", "end_after", "may_replay", "unsent_error"]

_STEPS_NOTED = 40
_STATE_ONLY_S = 0.25
"""Before a call is sent again for which the server has asked nothing, only given a state. As the SDK does."""
_MARGIN_S = 0.5
"""The request's own timeout should end the call first: its error says more, and cancels the call on the MCP server."""


def may_replay(tool: ToolDefinition, server: ServerConfig) -> bool:
    """Whether a call that may have run can be sent again: the tool says that it is harmless to repeat, or the
    configuration does.
    """
    if server.replay != "hinted":
        return server.replay == "always"
    hints = tool.annotations
    if hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True:
        return True
    return any(fnmatchcase(tool.tool, glob) for glob in server.idempotent_tools)


def end_after(
    call: RunningCall, timeout_s: float, find_deadline: Callable[[], float] | None = None
) -> "asyncio.TimerHandle | _MovingEnd":
    """Have a call end soon after its time is over, whatever it waits for then; unless the timer is cancelled.

    Args:
        find_deadline: Gives its end, monotonic time, if progress may have moved that; None: `call.deadline`.
    """
    if call.feed is not None:
        return _MovingEnd(call, timeout_s, find_deadline or (lambda: call.deadline))
    return asyncio.get_running_loop().call_later(timeout_s + _MARGIN_S, partial(_end, call, timeout_s))


class _MovingEnd:
    """A timer that looks whether the end has moved when it goes off."""

    def __init__(self, call: RunningCall, timeout_s: float, find_deadline: Callable[[], float]) -> None:
        self._call = call
        self._began = time.monotonic()
        self._find_deadline = find_deadline
        self._handle = asyncio.get_running_loop().call_later(timeout_s + _MARGIN_S, self._look)

    def _look(self) -> None:
        deadline = self._find_deadline()
        left_s = deadline + _MARGIN_S - time.monotonic()
        if left_s > 0:
            self._handle = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            _end(self._call, deadline - self._began)

    def cancel(self) -> None:
        self._handle.cancel()


def _end(call: RunningCall, timeout_s: float) -> None:
    if call.attempts and call.may_have_run:
        call.end(timeout_error(call.server, call.tool, timeout_s))
    else:
        call.end(unsent_error(call))


def unsent_error(call: RunningCall) -> CallError:
    """The error for a call that waited too long in this worker."""
    return CallError(
        ErrorCode.DEADLINE_PASSED,
        f"{call.record.title} was still waiting in the worker when its deadline passed, so it was not sent. "
        "The tool did not run. Call again later, or allow more time.",
    )


class _FailedCall(FailedAttempt):
    """The call was sent, and got no result."""

    def __init__(self, reason: Exception, ending: str, recovery: Recovery, timeout_s: float) -> None:
        super().__init__(reason, ending)
        self.recovery = recovery
        self.timeout_s = timeout_s


class Invocation:
    """One call, from the first attempt to its ending.

    Args:
        call: What to send; its arguments fit the tool's schema.
        operation: How to send it.
        steps: The interceptors of each attempt.
        context: For a call that is answered with a task.

    `call.attempts`, `call.may_have_run` and the steps of `call.record` are kept current.
    """

    def __init__(self, context: WorkerContext, call: RunningCall, operation: Operation, steps: Sequence[Step]) -> None:
        self._context = context
        self._call = call
        self._operation = operation
        self._steps = steps
        self._connection = call.connection
        self._names = call.server, call.tool
        limit_s = self._connection.server.timeouts.call_timeout_s(call.tool)
        self._deadline = min(call.deadline, time.monotonic() + limit_s)
        self._timeout_s = self._seconds_left
        self._latest = time.monotonic() + self._connection.server.timeouts.progress_limit_s
        self._lost_attempts = int(call.may_have_run)
        self._forgotten = 0
        self._failed_session: Session | None = None

    @property
    def _seconds_left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    async def run(self) -> Ending:
        """Send the call until there is an ending, or sending it again is not safe, or makes no sense.

        Raises:
            CallError: There is no result; code and text say why, and whether the tool ran.
        """
        # Otherwise the timer of the call's own deadline is enough.
        is_earlier = self._deadline < self._call.deadline
        timer = end_after(self._call, self._timeout_s, lambda: self._deadline) if is_earlier else None
        try:
            try:
                ending = await self._attempt()
            except _FailedCall as failure:
                ending = await self._recover(failure)
        except CallError as error:
            if self._connection.counted is not None and self._is_due_to_server(error):
                self._connection.counted.add(self._call.principal, error.code)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if self._connection.counted is not None and self._call.attempts:
            self._connection.counted.add(self._call.principal, None)
        return ending

    def _is_due_to_server(self, error: CallError) -> bool:
        """Whether the call says something of the server: it is not held back, did not ask to wait, and had the time
        that it may take."""
        connection = self._connection
        if connection.suspension.left_s or connection.is_disconnected_by_operator or asks_to_wait(error.__cause__):
            return False
        has_own_deadline = self._deadline >= self._call.deadline
        return not has_own_deadline or (error.code is not ErrorCode.CALL_TIMEOUT and time.monotonic() < self._deadline)

    async def _recover(self, first: _FailedCall) -> Ending:
        # tenacity takes over after the first failure only: setting it up costs some percent of a call that succeeds.
        failures = [first]

        async def attempt() -> Ending:
            if failures:
                raise failures.pop()
            return await self._attempt()

        retrying = AsyncRetrying(
            retry=retry_if_exception(self._is_worth_another_try),
            wait=backoff(self._connection.server.retry),
            stop=stop_before_delay(self._seconds_left),
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except _FailedCall as failure:
            self._connection.recent_calls.record(failed=True)
            if failure.recovery.executed is Executed.NO and self._lost_attempts:
                raise lost_error(
                    *self._names, describe_error(failure.error, self._connection.masker), again=True
                ) from failure.error
            if (error := input_error(self._call, failure.error)) is not None:
                raise error from failure.error
            errors = self._connection.errors
            ending, sign_in = errors.describe_end(failure.end_reason), errors.find_sign_in(failure.error)
            raise call_error(
                failure.error,
                failure.recovery,
                *self._names,
                failure.timeout_s,
                ending,
                self._connection.masker,
                sign_in,
            ) from failure.error
        except CallError as failure:
            if self._lost_attempts:
                # Not its own text: that says that the tool did not run, which is true of the last attempt only.
                why = f"it is no longer available.{self._connection.errors.describe_end('')}"
                raise lost_error(*self._names, why, again=True) from failure
            raise

    def _is_worth_another_try(self, error: BaseException) -> bool:
        policy = self._connection.server.retry
        if not isinstance(error, _FailedCall) or error.recovery.action is Action.NO_RETRY or policy.attempts == 1:
            return False
        if error.recovery.action is Action.RETRY_NEW_SESSION and error.recovery.executed is Executed.NO:
            # A server that forgets each session as soon as it is used would be given one after the other.
            return self._forgotten < policy.attempts
        if error.recovery.executed is Executed.MAYBE:
            return self._lost_attempts < policy.attempts and self._call.may_replay
        return self._connection.availability.is_expected_back or retry_after_s(error.error) is not None

    async def _attempt(self) -> Ending:
        # Connecting may take long, and the last of the steps writes that the call begins.
        self._session = await self._connect()
        try:
            return await run_through(self._steps, self._call, self._send)
        finally:
            self._connection.release(self._session)

    async def _connect(self) -> Session:
        connection = self._connection
        try:
            return await connection.session_for_call(self._seconds_left)
        except CallError:
            connection.recent_calls.record(failed=True)
            raise

    async def _send(self) -> Ending:
        call, connection, session = self._call, self._connection, self._session
        if not connection.is_usable(session):
            # It was lost during the steps, which may take their time, or by an attempt that one of them repeats.
            connection.release(session)
            session = self._session = await self._connect()
        if call.is_closed or time.monotonic() >= self._deadline:
            raise unsent_error(call)
        if call.approved:
            await require_approved(call)
        if call.sent_round is not None:
            await require_same(call, call.sent_round)
        timeout_s = self._seconds_left
        began = time.monotonic()
        self._note_sending(session, began)
        call.attempts += 1
        call.may_have_run = True
        try:
            found = await self._send_once(session, timeout_s)
        except InputNeeded as needed:
            return await self._ask(needed)
        except Exception as error:
            raise self._failed(error, session, timeout_s, began) from error
        connection.availability.record_answer()
        connection.recent_calls.record(failed=bool(found.is_error))
        if call.sent_round is not None:
            call.fresh_s = 0.0  # what depends on answers is kept for nobody else
        if isinstance(found, CreatedTask):
            return await keep_task(self._context, call, found, self._deadline)
        call.built = await self._operation.build_result(call, found)
        return Answer(call.built)

    def _send_once(self, session: Session, timeout_s: float) -> Awaitable[Any]:
        call = self._call
        sending = self._operation.send(call, session, timeout_s)
        if not call.info.park or call.delivery is None:
            return sending
        return send_with_elicitation(self._context, sending, call, lambda: min(self._deadline, call.deadline))

    async def _ask(self, needed: InputNeeded) -> Ending:
        """The server asks something: the call waits, or is sent again at once."""
        call = self._call
        self._connection.availability.record_answer()
        self._connection.recent_calls.record(failed=False)
        call.may_have_run = self._lost_attempts > 0
        asked = await ask_for_input(call, needed)
        if isinstance(asked, Parked):
            return asked
        call.sent_round = asked
        await asyncio.sleep(_STATE_ONLY_S)
        return await self._send()

    def _note_sending(self, session: Session, now: float) -> None:
        record = self._call.record
        record.attempts += 1
        if self._call.feed is not None:
            extends = self._connection.server.timeouts.progress_extends
            extension = Extension(self._timeout_s, self._deadline, self._latest, self._move_deadline)
            self._call.feed.begin_attempt(extension if extends else None)
        if len(record.steps) > _STEPS_NOTED:
            return
        if self._failed_session not in (None, session):
            record.steps.append((StepName.RECOVERED, now))
        record.steps.append((StepName.SENT, now))

    def _move_deadline(self, deadline: float) -> None:
        """Progress gives the call more time."""
        self._deadline = deadline
        self._call.deadline = max(self._call.deadline, deadline)

    def _failed(self, error: Exception, session: Session, timeout_s: float, began: float) -> _FailedCall:
        self._failed_session = session
        timeout_s = max(timeout_s, self._deadline - began)  # progress may have moved it
        recovery = classify_error(error)
        if (pause_s := pause_of(error)) is not None:
            self._connection.pause(pause_s)
        if recovery.executed is Executed.MAYBE:
            self._lost_attempts += 1
        self._call.may_have_run = self._lost_attempts > 0
        if recovery.action is Action.RETRY_NEW_SESSION:
            self._forgotten += recovery.executed is Executed.NO
            session.mark_lost("")
        elif session.is_stuck:
            session.probe()
        if recovery.action is not Action.NO_RETRY:
            # What was sent had reached somebody: until now.
            since = began if recovery.executed is Executed.NO else time.monotonic()
            self._connection.record_failure(error, session.end_reason, since)
        elif recovery.executed is Executed.YES:
            self._connection.availability.record_answer()
        return _FailedCall(error, session.end_reason, recovery, timeout_s)
