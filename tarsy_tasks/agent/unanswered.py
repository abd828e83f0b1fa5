"""How a call ends that no worker answers: it is cancelled, its deadline passes, or it cannot be sent.

Owns the timer that ends a call at its deadline, and the audit of calls that no worker had. What Redis is asked then is
in `withdrawal`, the texts are in `results`.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tarsy_tasks.agent import results
from tarsy_tasks.agent.audit import audit_of
from tarsy_tasks.agent.background import start_in_background
from tarsy_tasks.agent.connection import AgentConnection, connection_of
from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.agent.withdrawal import Withdrawal, withdraw
from tarsy_tasks.broker.delivery import CallState
from tarsy_tasks.errors import BrokerUnavailable, CallError
from tarsy_tasks.models import ToolResult

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["UnansweredCalls"]

_WITHDRAW_S = 1.0
"""How long an answer at the deadline may wait for Redis to say whether the call had begun."""
_RETRY_WITHDRAWAL_S = 60.0
_NOT_CANCELLED = "The call was not cancelled: it may be running, or may still begin."


@dataclass(eq=False)
class UnansweredCalls:
    """The unanswered calls of one executor. Attributes are those of `CallDispatcher`; all methods run on the background
    loop."""

    find_app: "Callable[[], Celery]"
    selection: Selection
    timeout_s: float
    agent_id: str | None
    run_id: str | None

    def start_timer(self, call: SubmittedCall) -> None:
        """End a call at its deadline, if it has no answer by then."""
        if not call.has_ended:
            call.timer = asyncio.get_running_loop().call_at(call.deadline, self._end_at_deadline, call)

    def move_deadline(self, call: SubmittedCall, deadline: float) -> None:
        """A call has time until then; monotonic time."""
        call.deadline = deadline
        if call.timer is not None:
            call.stop_timer()
            self.start_timer(call)

    def reject(self, call: SubmittedCall, error: CallError) -> None:
        """End a call that is not sent, for what it asks."""
        answer = results.answer_with(error, call)
        self._record(call, error)
        call.end(answer)

    def end_unsent(self, call: SubmittedCall, error: BrokerUnavailable) -> None:
        """End a call of which Redis has not confirmed that it has it."""
        if not call.id:
            self._record(call, error)
        else:
            # Redis may have accepted it just before the connection broke; and the key must not belong to a call that
            # was never sent.
            self.forget(call)
            retry_for_s = _RETRY_WITHDRAWAL_S if call.claim is not None else 0.0
            start_in_background(self._withdraw(call, retry_for_s=retry_for_s))
        call.fail(error)

    def unreachable(self, *, may_have_run: bool) -> BrokerUnavailable:
        """The error that Redis could not be reached before the deadline."""
        end = "Redis may still accept the call; if so, the call is withdrawn." if may_have_run else results.NOT_ENQUEUED
        return BrokerUnavailable(f"Redis could not be reached within {self.timeout_s:g} s. {end}", may_have_run)

    def abandon(self, call: SubmittedCall) -> None:
        """Cancel a call for which nobody waits any more."""
        if call.has_ended:
            return
        call.stop_timer()
        if call.sending is not None:
            call.sending.cancel()
        if call.is_local:
            return
        if call.id:
            start_in_background(self._withdraw(call, is_cancelled=True))
        elif not self.selection.is_own(call.server):
            self._record(call, results.cancelled(call.call, goes_on=False))

    async def cancel(self, call: SubmittedCall) -> None:
        """As `CallDispatcher.cancel`."""
        if call.has_ended:
            return
        if call.is_local:
            if call.sending is not None:
                call.sending.cancel()
            return
        try:
            found = await self._ask_what_became_of(call, _WITHDRAW_S)
        except connection_errors() as error:
            text = f"Redis could not be reached ({error}). {_NOT_CANCELLED}"
            raise BrokerUnavailable(text, may_have_run=True) from error
        runs = found.state is CallState.BEGUN and not found.is_shared
        if not runs and found.state is not CallState.ANSWERED and self.forget(call):
            error = results.cancelled(call.call, goes_on=found.is_shared)
            call.end(results.answer_with(error, call) if found.is_shared else await self._unbegun(call, found, error))

    def no_answer(self, call: SubmittedCall) -> ToolResult:
        """The answer to a call of which nothing is known; from any thread."""
        timeout_s = self.timeout_s if call.events is None else call.deadline - call.events.began
        return results.answer_with(results.no_answer(call.call, timeout_s), call, timeout_s)

    def forget(self, call: SubmittedCall) -> bool:
        """Expect no answer any more. Whether one was expected."""
        return call.hear is not None and self._connection.replies.forget(call.id, call.hear)

    def _end_at_deadline(self, call: SubmittedCall) -> None:
        if call.is_enqueued:
            start_in_background(self._end_unanswered(call))
        else:
            self.end_unsent(call, self.unreachable(may_have_run=True))

    async def _end_unanswered(self, call: SubmittedCall) -> None:
        if (call.events is not None or call.parks) and await self._has_more_time(call):
            call.stop_timer()
            self.start_timer(call)
            return
        if call.is_attached:
            call.end(self._give_up(call))
            return
        withdrawing = start_in_background(self._withdraw(call))
        await asyncio.wait((withdrawing,), timeout=_WITHDRAW_S)
        call.end(withdrawing.result() if withdrawing.done() else self._give_up(call))

    async def _has_more_time(self, call: SubmittedCall) -> bool:
        """Whether the deadline of a call was moved, and what said so was lost; or it has its answer."""
        replies = self._connection.replies
        with suppress(TimeoutError, *connection_errors()):
            async with asyncio.timeout(_WITHDRAW_S):
                if call.events is not None:
                    await replies.poll_events(call.id)
                if call.parks:
                    await replies.poll(call.id)
        return call.has_ended or call.seconds_left() > 0

    async def _withdraw(
        self, call: SubmittedCall, *, is_cancelled: bool = False, retry_for_s: float = 0.0
    ) -> ToolResult:
        """Withdraw a call if it has not begun, else cancel it.

        Args:
            is_cancelled: The agent cancelled it; else its deadline has passed.
            retry_for_s: How long to try again while Redis is unavailable.
        """
        try:
            found = await self._ask_what_became_of(call, max(retry_for_s, _WITHDRAW_S))
            return await self._conclude(call, found, is_cancelled)
        except Exception:
            return self._give_up(call)

    async def _ask_what_became_of(self, call: SubmittedCall, timeout_s: float) -> Withdrawal:
        connection = self._connection
        await connection.replies.connect(time.monotonic() + timeout_s, _NOT_CANCELLED, may_have_run=True)
        return await withdraw(connection, call.id, call.server, call.deadline, is_shared=call.is_shared)

    async def _conclude(self, call: SubmittedCall, found: Withdrawal, is_cancelled: bool) -> ToolResult:
        if found.state is CallState.ANSWERED:
            # It was stored just now, or while this process could not reach Redis.
            await self._connection.replies.poll(call.id)
            if call.answered.done() and not call.answered.exception():
                return call.answered.result()
        elif found.state is CallState.WITHDRAWN or not (found.is_shared or found.state is CallState.BEGUN):
            # It never began. One that waits longer for the same key may learn so only now.
            if is_cancelled:
                error = results.cancelled(call.call, goes_on=False)
            else:
                error = results.not_started(call.call, call.server, self.timeout_s, is_served=found.is_served)
            self.forget(call)
            return await self._unbegun(call, found, error, self.timeout_s)
        return self._give_up(call)

    def _give_up(self, call: SubmittedCall) -> ToolResult:
        self.forget(call)
        return self.no_answer(call)

    async def _unbegun(
        self, call: SubmittedCall, found: Withdrawal, error: CallError, duration_s: float = 0.0
    ) -> ToolResult:
        if call.claim is not None:
            await call.claim.release()
        if not found.has_worker:
            self._record(call, error)
        return results.answer_with(error, call, duration_s)

    def _record(self, call: SubmittedCall, error: CallError | BrokerUnavailable) -> None:
        """Record how a call ended that no worker had."""
        if not call.is_recorded:
            call.is_recorded = True
            if not call.tool:  # the name was not understood
                *server, call.tool = call.call.name.split(".", 1)
                call.server = "".join(server)
            audit_of(self.find_app()).record(call, error, agent_id=self.agent_id, run_id=self.run_id)

    @property
    def _connection(self) -> AgentConnection:
        return connection_of(self.find_app())
