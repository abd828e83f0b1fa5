"""What the calls of isolated sessions pass besides what every call passes.

Owns the interceptors that bring a call to the session of its run, and the answer to an executor that closes it. Which
sessions there are is `isolated_sessions`. Calls of the shared sessions pass none of this.
"""

from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Answer, Ending, Proceed, Requeued, Stage
from tarsy_tasks.methods import CLOSE_SESSION
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.isolated_sessions import HeldSession, IsolatedSessions, session_of
from tarsy_tasks.worker.calls.running_call import RunningCall

__all__ = ["IsolatedSession", "OpenedSession", "SessionEnd"]

_STATE = "isolated_session"
_LOST = "isolated_session.lost"
"""The error of a call whose session was lost before the present one was opened."""


class IsolatedSession:
    """Runs a call over the session of its run, in the worker that holds it."""

    name = "isolated_session"
    stage: Stage = "message"

    def __init__(self, sessions: IsolatedSessions) -> None:
        self._sessions = sessions

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        held = await self._sessions.find(call)
        if isinstance(held, Requeued):
            return held
        call.connection, call.state[_STATE] = held.connection, held
        held.begin(session_of(call).executor)
        try:
            return await proceed()
        except CallError as error:
            is_told = error.code is ErrorCode.SESSION_LOST and error is not call.state.get(_LOST)
            held.is_told = held.is_told or is_told
            raise
        finally:
            held.end()


class OpenedSession:
    """Before a call is sent for the first time, Redis learns that its session has a state; if it should have one
    already, that is gone, and the call ends with an error that says so."""

    name = "opened_session"
    stage: Stage = "attempt"

    def __init__(self, sessions: IsolatedSessions) -> None:
        self._sessions = sessions

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        held: HeldSession = call.state[_STATE]
        if not held.is_marked and (requeued := await self._sessions.mark_open(held)) is not None:
            return requeued
        if (lost := self._sessions.join(held, call)) is not None:
            call.state[_LOST] = lost
            raise lost
        return await proceed()


class SessionEnd:
    """Answers an executor that closes its session."""

    name = "session_end"
    stage: Stage = "message"

    def __init__(self, sessions: IsolatedSessions, context: WorkerContext) -> None:
        self._sessions = sessions
        self._context = context

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        if call.operation != CLOSE_SESSION:
            return await proceed()
        ending = await self._sessions.leave(call)
        facts = facts_of(self._context, call.info, call.record, ())
        return ending or Answer(ToolResult(content="The session was closed.", **facts))
