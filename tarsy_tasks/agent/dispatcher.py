"""From a model's tool call to a message in a queue, and from the stored answer to a `ToolResult`.

Owns how calls are sent, and what their end means to the agent. Both executors are thin layers over it: one blocks, one
awaits. It waits in generators (`waiting`), so that both share its logic.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from tarsy_tasks.agent import results
from tarsy_tasks.agent.audit import audit_of
from tarsy_tasks.agent.idempotency import Claim, claim
from tarsy_tasks.agent.listing import ToolLister
from tarsy_tasks.agent.publishing import Publisher
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal, retry_until
from tarsy_tasks.agent.reply_listener import Meta, ReplyListener
from tarsy_tasks.agent.results import read_result
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import SubmittedCall, encode_arguments
from tarsy_tasks.agent.waiting import Waits, wait_for
from tarsy_tasks.agent.withdrawal import Withdrawal, cancel_running, withdraw, withdraw_later
from tarsy_tasks.broker.deliveries import CallState
from tarsy_tasks.errors import BrokerUnavailable, CallError, ResultTimeout
from tarsy_tasks.models import CallInfo, ToolCall, ToolResult
from tarsy_tasks.outcomes import Outcome

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CallDispatcher"]

_REPLY_MARGIN = 0.1
_REPLY_MARGIN_LIMIT_S = 1.0
_WITHDRAW_S = 1.0
"""How long an answer at the deadline may wait for Redis to say whether the call had begun."""


class CallDispatcher:
    """The calls of one executor. Arguments and errors are those of `ToolExecutor`.

    Attributes:
        lister: Lists the executor's tools.
    """

    def __init__(
        self,
        *,
        servers: Collection[str] | None,
        tool_filter: Mapping[str, Collection[str]] | None,
        timeout_s: float,
        agent_id: str | None,
        run_id: str | None,
        app: "Celery | None",
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
        self._selection = Selection(servers, tool_filter, app)
        self._publisher = Publisher(app)
        self._timeout_s = timeout_s
        self._agent_id = agent_id
        self._run_id = run_id
        self.lister = ToolLister(self._publisher, self._selection, timeout_s)

    def deadline(self) -> float:
        """Monotonic time by which what begins now has to be answered."""
        return time.monotonic() + self._timeout_s

    def prepare(self, calls: Iterable[ToolCall]) -> list[SubmittedCall]:
        """Calls to be sent, with one deadline for all.

        Raises:
            ValueError: The arguments of one hold something that is not JSON.
        """
        deadline = self.deadline()
        return [SubmittedCall(call, encode_arguments(call), deadline, *_split(call.name)) for call in calls]

    def send(self, call: SubmittedCall) -> None:
        """Enqueue a call. A call that cannot be right is answered at once, without a message.

        Raises:
            BrokerUnavailable: Redis could not be reached before the deadline.
        """
        try:
            call.server, call.tool = self._selection.resolve(call.call.name)
            listener = self._publisher.subscribe(call.deadline)
            task_id = listener.new_id()
            claim = call.claim = self._claim(listener, call, task_id)
        except CallError as error:
            call.future.set_result(_answer(call, error))
            self._record(call, error)
            return
        except BrokerUnavailable as error:
            self._record(call, error)
            raise
        call.id = task_id if claim is None else claim.task_id
        call.future = listener.expect(call.id, lambda meta: _read_answer(meta, call), call.deadline)
        if call.is_shared:
            with suppress(*connection_errors()):  # the listener polls
                listener.poll(call.id)
            return
        self._send_message(call, listener)

    def _send_message(self, call: SubmittedCall, listener: ReplyListener) -> None:
        left_s = call.seconds_left()
        call.sent_at = listener.clock.now()
        info = CallInfo(
            call_id=call.call.id,
            name=call.call.name,
            agent_id=self._agent_id,
            run_id=self._run_id,
            # The worker gives up a little earlier, so that its answer, which knows more, still arrives in time.
            deadline=call.sent_at + left_s - min(_REPLY_MARGIN_LIMIT_S, _REPLY_MARGIN * self._timeout_s),
            sent_at=call.sent_at,
        )
        message = (call.server, call.tool, call.arguments, info.model_dump(exclude_none=True))
        try:
            self._publisher.publish(listener, call.id, "tarsy.call_tool", message, call.deadline)
        except BaseException:
            listener.forget(call.id, call.future)
            # Redis may have taken it just as the connection broke; and the key must not belong to a call never sent.
            self.withdraw_later(call, retry=call.claim is not None)
            raise

    def send_all(self, calls: Iterable[SubmittedCall]) -> list[BrokerUnavailable | None]:
        """Enqueue calls one after the other.

        Returns:
            For each call, why it could not be enqueued, or None.
        """
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

    def wait_for_all(
        self, calls: Sequence[SubmittedCall], errors: Sequence[BrokerUnavailable | None]
    ) -> Waits[list[ToolResult]]:
        """Wait for the answers to calls. Those that have none at their deadline are withdrawn.

        Args:
            errors: For each call, why it could not be enqueued, or None.

        Raises:
            BrokerUnavailable: No call at all could be enqueued.
        """
        if errors and errors[0] is not None and all(errors):
            raise errors[0]
        endings: list[Future[ToolResult]] = []
        for call, error in zip(calls, errors, strict=True):
            if error is not None:
                endings.append(self._answer_unsent(call, error))
                continue
            try:
                yield from wait_for(call.future, call.deadline)
                endings.append(call.future)
            except TimeoutError:
                endings.append(self.withdraw_later(call))
        answers: list[ToolResult] = []
        wait_s = _WITHDRAW_S
        for call, ending in zip(calls, endings, strict=True):
            try:
                answers.append((yield from wait_for(ending, time.monotonic() + wait_s)))
            except TimeoutError:
                wait_s = 0.0  # Redis hangs: the others do not wait as well
                answers.append(self._no_answer(call))
        return answers

    def wait_for_one(self, call: SubmittedCall, timeout_s: float | None) -> Waits[ToolResult]:
        """Wait for the answer to a call.

        Raises:
            ResultTimeout: `timeout_s` passed before the call's deadline.
        """
        if timeout_s is not None and timeout_s < call.seconds_left():
            try:
                return (yield from wait_for(call.future, time.monotonic() + timeout_s))
            except TimeoutError:
                raise ResultTimeout(
                    f"no answer to `{call.call.name}` within {timeout_s:g} s; the call goes on"
                ) from None
        [answer] = yield from self.wait_for_all([call], [None])
        return answer

    def withdraw_later(
        self, call: SubmittedCall, *, is_cancelled: bool = False, retry: bool = False
    ) -> "Future[ToolResult]":
        """Withdraw a call if it has not begun, else cancel it.

        Args:
            is_cancelled: The agent cancelled it; else its deadline has passed.
            retry: Try for a minute while Redis is away.

        Returns:
            How it ended. Redis can hang, so bound the wait for it.
        """
        asked = withdraw_later(self._publisher.app, call.id, call.server, is_shared=call.is_shared, retry=retry)
        ending: Future[ToolResult] = Future()
        ending.set_running_or_notify_cancel()

        def conclude(found: "Future[Withdrawal]") -> None:
            try:
                ending.set_result(self._conclude(call, found.result(), is_cancelled=is_cancelled))
            except Exception:
                ending.set_result(self._no_answer(call))

        asked.add_done_callback(conclude)
        return ending

    def _conclude(self, call: SubmittedCall, found: Withdrawal, *, is_cancelled: bool) -> ToolResult:
        if found.state is CallState.ANSWERED:
            # It was stored just now, or while Redis was away from this process.
            self._publisher.listener.poll(call.id)
            if call.future.done():
                return call.future.result()
        elif found.is_shared and found.state is not CallState.WITHDRAWN:
            pass
        elif found.state is CallState.BEGUN:
            cancel_running(self._publisher.app, call.id)
        else:
            # It never began. One that waits longer for the same key may learn so only now.
            if call.claim is not None:
                call.claim.release()
            if is_cancelled:
                error = results.cancelled(call.call, goes_on=False)
            else:
                error = results.not_started(call.call, call.server, self._timeout_s, is_served=found.is_served)
            if not found.has_worker:
                self._record(call, error)
            return self._answer_here(call, error)
        return self._no_answer(call)

    def _no_answer(self, call: SubmittedCall) -> ToolResult:
        return self._answer_here(call, results.no_answer(call.call, self._timeout_s))

    def _answer_unsent(self, call: SubmittedCall, error: BrokerUnavailable) -> "Future[ToolResult]":
        build = results.no_answer if error.may_have_run else results.not_enqueued
        answered: Future[ToolResult] = Future()
        answered.set_result(_answer(call, build(call.call, self._timeout_s), self._timeout_s))
        return answered

    def _answer_here(self, call: SubmittedCall, error: CallError) -> ToolResult:
        self._publisher.listener.forget(call.id, call.future)
        return _answer(call, error, self._timeout_s)

    def cancel(self, call: SubmittedCall) -> None:
        """Cancel a call: in its queue, or in the MCP server if it runs. Its answer says which.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        if not call.id or call.future.done():
            return
        try:
            found = withdraw(self._publisher.app, call.id, call.server, is_shared=call.is_shared)
            if found.state is CallState.BEGUN and not found.is_shared:
                cancel_running(self._publisher.app, call.id)
        except connection_errors() as error:
            raise BrokerUnavailable(f"Redis could not be reached ({error}); the call was not cancelled.") from error
        is_over = found.state in (CallState.NONE, CallState.WITHDRAWN) or (
            found.is_shared and found.state is CallState.BEGUN
        )
        if is_over and self._publisher.listener.forget(call.id, call.future):
            if call.claim is not None and not found.is_shared:
                call.claim.release()
            error = results.cancelled(call.call, goes_on=found.is_shared)
            if not found.has_worker:
                self._record(call, error)
            call.future.set_result(_answer(call, error))

    def unreachable(self, *, may_have_run: bool = False) -> BrokerUnavailable:
        """The error that Redis could not be reached before the deadline."""
        end = "Redis may still take the call; then it is withdrawn" if may_have_run else "Nothing was enqueued"
        return BrokerUnavailable(f"Redis could not be reached within {self._timeout_s:g} s. {end}.", may_have_run)

    def give_up(self, call: SubmittedCall) -> BrokerUnavailable:
        """Record that a call was never sent, because Redis could not be reached before its deadline."""
        error = self.unreachable()
        self._record(call, error)
        return error

    def record_cancelled(self, call: SubmittedCall) -> None:
        """Record that a call was cancelled before it was sent."""
        self._record(call, results.cancelled(call.call, goes_on=False))

    def _record(self, call: SubmittedCall, error: CallError | BrokerUnavailable) -> None:
        """No worker had the call, so the agent records how it ended."""
        if not call.is_recorded:
            call.is_recorded = True
            audit_of(self._publisher.app).record(call, error, agent_id=self._agent_id, run_id=self._run_id)

    def _claim(self, listener: ReplyListener, call: SubmittedCall, task_id: str) -> Claim | None:
        key = call.call.idempotency_key
        if key is None:
            return None
        what = (call.server, call.tool, call.arguments)
        try:
            return retry_until(call.deadline)(
                claim, listener.redis, what, agent_id=self._agent_id, key=key, task_id=task_id
            )
        except connection_errors() as error:
            if is_refusal(error):
                raise BrokerUnavailable(
                    f"Redis does not let this user use idempotency keys of the agent `{self._agent_id}` ({error}). The "
                    "call was not enqueued and the tool did not run. A user may use only those of the `agent_id` that "
                    "is its own name (docs/security.md)."
                ) from error
            raise BrokerUnavailable(f"Redis could not be reached ({error}). The call was not enqueued.") from error


def _answer(call: SubmittedCall, error: CallError, duration_s: float = 0.0) -> ToolResult:
    return ToolResult.from_error(error, call_id=call.call.id, name=call.call.name, duration_s=duration_s)


def _read_answer(meta: Meta, call: SubmittedCall) -> ToolResult:
    result = read_result(meta, call.call)
    if call.claim is not None and result.outcome is Outcome.UNAVAILABLE:
        # It did not run: its key may be used for another try.
        with suppress(*connection_errors()):
            call.claim.release()
    return result


def _split(name: str) -> tuple[str, str]:
    """Server and tool of a name that is not understood, for the audit."""
    server, dot, tool = name.partition(".")
    return (server, tool) if dot else ("", name)
