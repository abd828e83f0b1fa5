"""From a model's tool call to a message in a queue, and from the stored answer to a `ToolResult`.

Owns how calls are sent, and what their end means to the agent. Both executors are thin layers over it: one blocks, one
awaits.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from tarsy_tasks.agent import results
from tarsy_tasks.agent.audit import audit_of
from tarsy_tasks.agent.idempotency import Claim, claim
from tarsy_tasks.agent.publishing import Publisher
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal, retry_until
from tarsy_tasks.agent.reply_listener import Meta, ReplyListener
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import SubmittedCall, encode_arguments
from tarsy_tasks.agent.waiting import Wait
from tarsy_tasks.agent.withdrawal import Withdrawal, cancel_running, withdraw, withdrawal_threads
from tarsy_tasks.broker.deliveries import CallState
from tarsy_tasks.errors import BrokerUnavailable, CallError, ResultTimeout
from tarsy_tasks.models import CallInfo, ToolCall, ToolResult
from tarsy_tasks.outcomes import Outcome

__all__ = ["CallDispatcher"]

_REPLY_MARGIN = 0.1
_REPLY_MARGIN_LIMIT_S = 1.0
_WITHDRAW_S = 1.0
"""How long an answer at the deadline may wait for Redis to say whether the call had begun."""
_RETRY_WITHDRAWAL_S = 60.0


@dataclass(eq=False)
class CallDispatcher:
    """The calls of one executor. Attributes and errors are those of `ToolExecutor`."""

    publisher: Publisher
    selection: Selection
    timeout_s: float
    agent_id: str | None
    run_id: str | None

    def deadline(self) -> float:
        """Monotonic time by which what begins now has to be answered."""
        return time.monotonic() + self.timeout_s

    def prepare(self, calls: Iterable[ToolCall]) -> list[SubmittedCall]:
        """Calls to be sent, with one deadline for all."""
        deadline = self.deadline()
        return [SubmittedCall(call, encode_arguments(call), deadline) for call in calls]

    def send(self, call: SubmittedCall) -> None:
        """Enqueue a call. A call that cannot be right is answered at once, without a message."""
        try:
            call.server, call.tool = self.selection.resolve(call.call.name)
            listener = self.publisher.subscribe(call.deadline)
            task_id = listener.new_id()
            claim = call.claim = self._claim(listener, call, task_id)
        except CallError as error:
            call.future.set_result(_answer(call, error))
            self.record(call, error)
            return
        except BrokerUnavailable as error:
            self.record(call, error)
            raise
        call.id = task_id if claim is None else claim.task_id
        if call.is_shared:
            call.future = listener.expect(call.id, lambda meta: _read_answer(meta, call), call.deadline)
            with suppress(*connection_errors()):  # the listener polls
                listener.poll(call.id)
            return
        call.sent_at = listener.clock.now()
        info = CallInfo(
            call_id=call.call.id,
            name=call.call.name,
            agent_id=self.agent_id,
            run_id=self.run_id,
            # The worker gives up a little earlier, so that its answer, which knows more, still arrives in time.
            deadline=call.sent_at + call.seconds_left() - min(_REPLY_MARGIN_LIMIT_S, _REPLY_MARGIN * self.timeout_s),
            sent_at=call.sent_at,
        )
        message = (call.server, call.tool, call.arguments, info.model_dump(exclude_none=True))
        try:
            call.future = self.publisher.publish(
                listener, call.id, "tarsy.call_tool", message, lambda meta: _read_answer(meta, call), call.deadline
            )
        except BaseException:
            # Redis may have taken it just as the connection broke; and the key must not belong to a call never sent.
            self.withdraw_later(call, retry_for_s=_RETRY_WITHDRAWAL_S if call.claim is not None else 0.0)
            raise

    def send_all(self, calls: Iterable[SubmittedCall]) -> list[BrokerUnavailable | None]:
        """Enqueue calls one after the other. For each call, why it could not be enqueued, or None."""
        errors: list[BrokerUnavailable | None] = []
        for call in calls:
            try:
                if not call.seconds_left() and any(errors):
                    # An earlier call has waited for Redis until the deadline.
                    raise self.give_up(call)
                self.send(call)
                errors.append(None)
            except BrokerUnavailable as error:
                errors.append(error)
        return errors

    async def wait_for_all(
        self, calls: Sequence[SubmittedCall], errors: Sequence[BrokerUnavailable | None], wait: Wait
    ) -> list[ToolResult]:
        """Wait for the answers to calls. Those that have none at their deadline are withdrawn.

        Args:
            errors: For each call, why it could not be enqueued, or None. If none could be, the first is raised.
        """
        if errors and errors[0] is not None and all(errors):
            raise errors[0]
        answers: list[ToolResult | Future[ToolResult]] = []
        for call, error in zip(calls, errors, strict=True):
            if error is not None:
                build = results.no_answer if error.may_have_run else results.not_enqueued
                answers.append(_answer(call, build(call.call, self.timeout_s), self.timeout_s))
                continue
            try:
                answers.append(await wait(call.future, call.deadline))
            except TimeoutError:
                answers.append(self.withdraw_later(call))
        wait_s = _WITHDRAW_S
        final: list[ToolResult] = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, ToolResult):
                final.append(answer)
                continue
            try:
                final.append(await wait(answer, time.monotonic() + wait_s))
            except TimeoutError:
                wait_s = 0.0  # Redis hangs: the others do not wait as well
                final.append(self._no_answer(call))
        return final

    async def wait_for_one(self, call: SubmittedCall, timeout_s: float | None, wait: Wait) -> ToolResult:
        """Wait for the answer to a call. Raises `ResultTimeout` if `timeout_s` passes before its deadline."""
        if timeout_s is not None and timeout_s < call.seconds_left():
            try:
                return await wait(call.future, time.monotonic() + timeout_s)
            except TimeoutError:
                raise ResultTimeout(
                    f"no answer to `{call.call.name}` within {timeout_s:g} s; the call goes on"
                ) from None
        [answer] = await self.wait_for_all([call], [None], wait)
        return answer

    def withdraw_later(
        self, call: SubmittedCall, *, is_cancelled: bool = False, retry_for_s: float = 0.0
    ) -> "Future[ToolResult]":
        """Withdraw a call in another thread if it has not begun, else cancel it.

        Args:
            is_cancelled: The agent cancelled it; else its deadline has passed.
            retry_for_s: How long to try again while Redis is away.
        """
        app = self.publisher.app

        def withdraw_now() -> ToolResult:
            retrying = retry_until(time.monotonic() + retry_for_s)
            try:
                found = retrying(withdraw, app, call.id, call.server, is_shared=call.is_shared)
                return self._conclude(call, found, is_cancelled)
            except Exception:
                return self._no_answer(call)

        return withdrawal_threads(app).submit(withdraw_now)

    def _conclude(self, call: SubmittedCall, found: Withdrawal, is_cancelled: bool) -> ToolResult:
        if found.state is CallState.ANSWERED:
            # It was stored just now, or while Redis was away from this process.
            self.publisher.listener.poll(call.id)
            if call.future.done():
                return call.future.result()
        elif found.state is CallState.WITHDRAWN or not (found.is_shared or found.state is CallState.BEGUN):
            # It never began. One that waits longer for the same key may learn so only now.
            if is_cancelled:
                error = results.cancelled(call.call, goes_on=False)
            else:
                error = results.not_started(call.call, call.server, self.timeout_s, is_served=found.is_served)
            self.publisher.listener.forget(call.id, call.future)
            return self._answer_unbegun(call, found, error, self.timeout_s)
        elif not found.is_shared:
            cancel_running(self.publisher.app, call.id)
        return self._no_answer(call)

    def _no_answer(self, call: SubmittedCall) -> ToolResult:
        self.publisher.listener.forget(call.id, call.future)
        return _answer(call, results.no_answer(call.call, self.timeout_s), self.timeout_s)

    def _answer_unbegun(
        self, call: SubmittedCall, found: Withdrawal, error: CallError, duration_s: float = 0.0
    ) -> ToolResult:
        if call.claim is not None:
            call.claim.release()
        if not found.has_worker:
            self.record(call, error)
        return _answer(call, error, duration_s)

    def cancel(self, call: SubmittedCall) -> None:
        """Cancel a call: in its queue, or in the MCP server if it runs. Its answer says which."""
        if not call.id or call.future.done():
            return
        try:
            found = withdraw(self.publisher.app, call.id, call.server, is_shared=call.is_shared)
            runs = found.state is CallState.BEGUN and not found.is_shared
            if runs:
                cancel_running(self.publisher.app, call.id)
        except connection_errors() as error:
            raise BrokerUnavailable(f"Redis could not be reached ({error}); the call was not cancelled.") from error
        if not runs and found.state is not CallState.ANSWERED and self.publisher.listener.forget(call.id, call.future):
            error = results.cancelled(call.call, goes_on=found.is_shared)
            answer = _answer(call, error) if found.is_shared else self._answer_unbegun(call, found, error)
            call.future.set_result(answer)

    def unreachable(self, *, may_have_run: bool = False) -> BrokerUnavailable:
        """The error that Redis could not be reached before the deadline."""
        end = "Redis may still take the call; then it is withdrawn" if may_have_run else "Nothing was enqueued"
        return BrokerUnavailable(f"Redis could not be reached within {self.timeout_s:g} s. {end}.", may_have_run)

    def give_up(self, call: SubmittedCall) -> BrokerUnavailable:
        """Record that a call was never sent, because Redis could not be reached before its deadline."""
        error = self.unreachable()
        self.record(call, error)
        return error

    def record(self, call: SubmittedCall, error: CallError | BrokerUnavailable) -> None:
        """Record how a call ended that no worker had."""
        if not call.is_recorded:
            call.is_recorded = True
            if not call.tool:  # the name was not understood
                *server, call.tool = call.call.name.split(".", 1)
                call.server = "".join(server)
            audit_of(self.publisher.app).record(call, error, agent_id=self.agent_id, run_id=self.run_id)

    def _claim(self, listener: ReplyListener, call: SubmittedCall, task_id: str) -> Claim | None:
        key = call.call.idempotency_key
        if key is None:
            return None
        what = (call.server, call.tool, call.arguments)
        try:
            return retry_until(call.deadline)(
                claim, listener.redis, what, agent_id=self.agent_id, key=key, task_id=task_id
            )
        except connection_errors() as error:
            why = f"Redis could not be reached ({error}). The call was not enqueued."
            if is_refusal(error):
                why = (
                    f"Redis does not let this user use idempotency keys of the agent `{self.agent_id}` ({error}). The "
                    "call was not enqueued and the tool did not run. A user may use only those of the `agent_id` that "
                    "is its own name (docs/security.md)."
                )
            raise BrokerUnavailable(why) from error


def _answer(call: SubmittedCall, error: CallError, duration_s: float = 0.0) -> ToolResult:
    return ToolResult.from_error(error, call_id=call.call.id, name=call.call.name, duration_s=duration_s)


def _read_answer(meta: Meta, call: SubmittedCall) -> ToolResult:
    result = results.read_result(meta, call.call)
    if call.claim is not None and result.outcome is Outcome.UNAVAILABLE:
        # It did not run: its key may be used for another try.
        with suppress(*connection_errors()):
            call.claim.release()
    return result
