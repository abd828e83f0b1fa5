"""From a model's tool call to a message in a queue, and from the stored answer to a `ToolResult`.

Owns how calls are sent, and what their end means to the agent. Its coroutines run on the background loop, for both
executors: one blocks until they end, one awaits them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from tarsy_tasks.agent import results
from tarsy_tasks.agent.audit import audit_of
from tarsy_tasks.agent.background import call_in_background, start_in_background
from tarsy_tasks.agent.connection import AgentConnection, connection_of
from tarsy_tasks.agent.event_stream import CallEvents
from tarsy_tasks.agent.idempotency import Claim, claim
from tarsy_tasks.agent.parked_calls import is_parked, note_parked
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal
from tarsy_tasks.agent.reply_listener import Meta
from tarsy_tasks.agent.search_calls import SearchCalls
from tarsy_tasks.agent.search_tools import is_search_call
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import SubmittedCall, encode_arguments
from tarsy_tasks.agent.waiting import retry_until
from tarsy_tasks.agent.withdrawal import Withdrawal, withdraw
from tarsy_tasks.broker.async_exchange import NotSentError
from tarsy_tasks.broker.deliveries import CallState
from tarsy_tasks.broker.task_names import CALL_TOOL, REQUEST
from tarsy_tasks.call_events import EventBatch
from tarsy_tasks.errors import BrokerUnavailable, CallError
from tarsy_tasks.methods import Method
from tarsy_tasks.models import CallInfo, ToolCall, ToolResult
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.priorities import NORMAL, Priority

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CallDispatcher"]

_REPLY_MARGIN = 0.1
_REPLY_MARGIN_LIMIT_S = 1.0
_WITHDRAW_S = 1.0
"""How long an answer at the deadline may wait for Redis to say whether the call had begun."""
_RETRY_WITHDRAWAL_S = 60.0
_NOT_ENQUEUED = "The call was not enqueued and the tool did not run."
_NOT_CANCELLED = "The call was not cancelled: it may be running, or may still begin."


@dataclass(eq=False)
class CallDispatcher:
    """The calls of one executor. Attributes and errors are those of `ToolExecutor`.

    Attributes:
        find_app: Gives the Celery application; called on first use, for it may have to be built.
        search_calls: Reads the calls of `search_tools` and `call_tool`.
    """

    find_app: "Callable[[], Celery]"
    selection: Selection
    timeout_s: float
    agent_id: str | None
    run_id: str | None
    search_calls: SearchCalls
    priority: Priority = NORMAL
    park: bool = False

    def __post_init__(self) -> None:
        self._info = CallInfo(agent_id=self.agent_id, run_id=self.run_id, park=self.park).model_dump(exclude_none=True)
        self._margin_s = min(_REPLY_MARGIN_LIMIT_S, _REPLY_MARGIN * self.timeout_s)

    def start(
        self, calls: Iterable[ToolCall], *, is_submitted: bool = False, events: CallEvents | None = None
    ) -> list[SubmittedCall]:
        """Begin to send calls, with one deadline for all; from any thread.

        Args:
            is_submitted: Somebody waits until they are sent.
            events: Hears what happens to them while they run; for one call only.

        Raises:
            ValueError: One of the calls cannot be sent as JSON. Nothing is sent.
        """
        deadline = time.monotonic() + self.timeout_s
        submitted = [
            SubmittedCall(call, encode_arguments(call), deadline, call.priority or self.priority) for call in calls
        ]
        for call in submitted:
            if is_submitted:
                call.sent = Future()
            call.events, call.parks = events, self.park
        call_in_background(partial(self._send_all, submitted))
        return submitted

    def request(self, server: str, method: Method, arguments: dict[str, Any]) -> SubmittedCall:
        """Begin to ask a server for something else than a tool; from any thread."""
        call = ToolCall(name=f"{server}.{method}", arguments=arguments)
        deadline = time.monotonic() + self.timeout_s
        submitted = SubmittedCall(call, encode_arguments(call), deadline, self.priority, server, method, REQUEST)
        call_in_background(partial(self._send_all, [submitted]))
        return submitted

    def attach(self, task_id: str, name: str) -> SubmittedCall:
        """Begin to wait for a call that another executor has sent; from any thread.

        Raises:
            CallError: The name is not one of this executor's tools.
        """
        server, tool = self.selection.resolve(name)
        call = SubmittedCall(ToolCall(name=name), None, time.monotonic() + self.timeout_s, self.priority, server, tool)
        call.id, call.sent = task_id, Future()
        call.is_attached = call.is_recorded = call.parks = True
        call.hear = partial(self._hear, call)
        call_in_background(partial(self._attach_soon, call))
        return call

    def _attach_soon(self, call: SubmittedCall) -> None:
        call.sending = start_in_background(self._attach(call), call.context)

    async def _attach(self, call: SubmittedCall) -> None:
        replies = self._connection.replies
        try:
            if call.hear is not None:
                replies.expect(call.id, call.hear)
            await replies.connect(call.deadline, "The call goes on.", may_have_run=True)
            with suppress(*connection_errors()):  # the listener polls
                await replies.poll(call.id)
        except Exception as error:
            self._forget(call)
            call.fail(error)
        else:
            call.confirm()
            self._start_timer(call)
        finally:
            call.sending = None

    def abandon(self, calls: Iterable[SubmittedCall]) -> None:
        """Cancel calls for which nobody waits any more; from any thread."""
        for call in calls:
            call_in_background(partial(self._abandon, call))

    def no_answer(self, call: SubmittedCall) -> ToolResult:
        """The answer to a call of which nothing is known; from any thread."""
        timeout_s = self.timeout_s if call.events is None else call.deadline - call.events.began
        return results.answer_with(results.no_answer(call.call, timeout_s), call, timeout_s)

    def read_answers(self, calls: Sequence[SubmittedCall]) -> list[ToolResult]:
        """The answers to calls that have ended. If Redis could not be reached for some of them, their answers say so;
        if for all, it raises."""
        errors = [call.answered.exception() for call in calls]
        if errors and errors[0] is not None and all(isinstance(error, BrokerUnavailable) for error in errors):
            raise errors[0]
        return [self._read_ending(call, error) for call, error in zip(calls, errors, strict=True)]

    def _read_ending(self, call: SubmittedCall, error: BaseException | None) -> ToolResult:
        if not isinstance(error, BrokerUnavailable):
            return call.answered.result()
        build = results.no_answer if error.may_have_run else results.not_enqueued
        return results.answer_with(build(call.call, self.timeout_s), call, self.timeout_s)

    def _send_all(self, calls: Iterable[SubmittedCall]) -> None:
        for call in calls:
            try:
                if call.task == CALL_TOOL:
                    call.server, call.tool = self.selection.resolve(call.call.name)
                else:
                    self.selection.require_server(call.server)
                self._send_soon(call)
            except CallError as error:
                if call.task == CALL_TOOL and is_search_call(call.call.name):
                    call.sending = start_in_background(self._read_search_call(call), call.context)
                else:
                    self._reject(call, error)
            except Exception as error:
                self._forget(call)
                call.fail(error)

    async def _read_search_call(self, call: SubmittedCall) -> None:
        """Answer a search, or send the call that `call_tool` asks for."""
        try:
            read = await self.search_calls.read(call.call)
            if not isinstance(read, ToolResult):
                call.call, call.arguments = read, encode_arguments(read)
        except CallError as error:
            self._reject(call, error)
        except Exception as error:
            call.fail(error)
        else:
            call.sending = None
            if isinstance(read, ToolResult):
                call.end(read)
            else:
                self._send_all([call])

    def _send_soon(self, call: SubmittedCall) -> None:
        """Without a task of its own, if nothing has to be waited for."""
        connection = connection_of(app := self._app)
        is_ready = call.events is None or connection.replies.hears_events
        if is_ready and call.call.idempotency_key is None and connection.replies.is_connected:
            self._address(connection, call, connection.replies.new_id())
            self._start_timer(call)
            message = (call.id, call.task, call.message, call.deadline, call.priority)
            if connection.publish_soon(app, _Confirmation(self, call), *message):
                return
            call.stop_timer()
        call.sending = start_in_background(self._send(call), call.context)

    async def _send(self, call: SubmittedCall, *, may_have_run: bool = False) -> None:
        connection = self._connection
        try:
            await connection.replies.connect(call.deadline, _NOT_ENQUEUED)
            async with asyncio.timeout(call.seconds_left()):
                if call.events is not None:
                    await retry_until(call.deadline, connection.replies.hear_events)
                if call.call.idempotency_key is not None and call.claim is None:
                    call.claim = await self._claim(connection.replies.redis, call, connection.replies.new_id())
                if not call.id:
                    self._address(connection, call, call.claim.task_id if call.claim else connection.replies.new_id())
                if call.is_shared:
                    with suppress(*connection_errors()):  # the listener polls
                        await connection.replies.poll(call.id)
                else:
                    message = (call.id, call.task, call.message, call.deadline, _NOT_ENQUEUED)
                    await connection.publish(self._app, *message, priority=call.priority, may_have_run=may_have_run)
        except CallError as error:
            self._reject(call, error)
        except TimeoutError:
            self._end_unsent(call, self._unreachable(may_have_run=bool(call.id)))
        except BrokerUnavailable as error:
            in_doubt = may_have_run and not error.may_have_run
            self._end_unsent(call, self._unreachable(may_have_run=True) if in_doubt else error)
        except Exception as error:
            self._forget(call)
            call.fail(error)
        else:
            call.confirm()
            self._start_timer(call)
        finally:
            call.sending = None

    def _address(self, connection: AgentConnection, call: SubmittedCall, task_id: str) -> None:
        """Write the message of a call, and expect its answer."""
        clock = connection.replies.clock
        call.id, call.sent_at = task_id, clock.now()
        info = {
            **self._info,
            "call_id": call.call.id,
            "name": call.call.name,
            # The worker gives up a little earlier, so that its answer, which knows more, still arrives in time.
            "deadline": clock.at(call.deadline) - self._margin_s,
            "sent_at": call.sent_at,
        }
        if call.events is not None and not call.is_shared and not connection.replies.refuses_events:
            info["events"] = True
            call.events.stop = connection.replies.listen(call.id, partial(self._hear_events, call))
        call.message = (call.server, call.tool, call.arguments, info)
        call.hear = partial(self._hear, call)
        connection.replies.expect(call.id, call.hear)

    def _hear(self, call: SubmittedCall, meta: Meta) -> None:
        if is_parked(meta):
            more_s = self.timeout_s + self._margin_s
            deadline = note_parked(call, meta, self._connection.replies.clock, time.monotonic(), more_s)
            if deadline is not None:
                self._move_deadline(call, deadline)
            return
        try:
            answer = results.read_result(meta, call)
        except Exception as error:
            call.fail(error)
            return
        if call.claim is not None and answer.outcome is Outcome.UNAVAILABLE:
            # It did not run: its key may be used for another try.
            start_in_background(_release(call.claim))
        call.end(answer)

    def _hear_events(self, call: SubmittedCall, batch: EventBatch) -> None:
        if call.events is None or call.has_ended or not call.events.read(batch) or batch.deadline is None:
            return
        deadline = time.monotonic() + batch.deadline - self._connection.replies.clock.now() + self._margin_s
        if deadline > call.deadline:
            self._move_deadline(call, deadline)
            call.events.move_deadline(deadline - call.events.began, batch.at)

    def _move_deadline(self, call: SubmittedCall, deadline: float) -> None:
        call.deadline = deadline
        if call.timer is not None:
            call.stop_timer()
            self._start_timer(call)

    def _reject(self, call: SubmittedCall, error: CallError) -> None:
        answer = results.answer_with(error, call)
        self.record(call, error)
        call.end(answer)

    def retry(self, call: SubmittedCall, error: Exception) -> None:
        """Redis has not confirmed that it has a call; on the loop."""
        call.stop_timer()
        if not call.has_ended:
            may_have_run = not isinstance(error, (ResponseError, NotSentError))
            call.sending = start_in_background(self._send(call, may_have_run=may_have_run), call.context)

    def _end_unsent(self, call: SubmittedCall, error: BrokerUnavailable) -> None:
        if not call.id:
            self.record(call, error)
        else:
            # Redis may have accepted it just before the connection broke; and the key must not belong to a call that
            # was never sent.
            self._forget(call)
            retry_for_s = _RETRY_WITHDRAWAL_S if call.claim is not None else 0.0
            start_in_background(self._withdraw(call, retry_for_s=retry_for_s))
        call.fail(error)

    def _start_timer(self, call: SubmittedCall) -> None:
        if not call.has_ended:
            call.timer = asyncio.get_running_loop().call_at(call.deadline, self._end_at_deadline, call)

    def _end_at_deadline(self, call: SubmittedCall) -> None:
        if call.is_enqueued:
            start_in_background(self._end_unanswered(call))
        else:
            self._end_unsent(call, self._unreachable(may_have_run=True))

    async def _end_unanswered(self, call: SubmittedCall) -> None:
        if (call.events is not None or call.parks) and await self._has_more_time(call):
            call.stop_timer()
            self._start_timer(call)
            return
        if call.is_attached:
            call.end(self._no_answer(call))
            return
        withdrawing = start_in_background(self._withdraw(call))
        await asyncio.wait((withdrawing,), timeout=_WITHDRAW_S)
        call.end(withdrawing.result() if withdrawing.done() else self._no_answer(call))

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

    def _abandon(self, call: SubmittedCall) -> None:
        if call.has_ended:
            return
        call.stop_timer()
        if call.sending is not None:
            call.sending.cancel()
        if call.id:
            start_in_background(self._withdraw(call, is_cancelled=True))
        else:
            self.record(call, results.cancelled(call.call, goes_on=False))

    async def cancel(self, call: SubmittedCall) -> None:
        """Cancel a call that was sent: in its queue, or on the MCP server if it runs. Its answer says which."""
        if call.has_ended:
            return
        try:
            found = await self._ask_what_became_of(call, _WITHDRAW_S)
        except connection_errors() as error:
            text = f"Redis could not be reached ({error}). {_NOT_CANCELLED}"
            raise BrokerUnavailable(text, may_have_run=True) from error
        runs = found.state is CallState.BEGUN and not found.is_shared
        if not runs and found.state is not CallState.ANSWERED and self._forget(call):
            error = results.cancelled(call.call, goes_on=found.is_shared)
            call.end(results.answer_with(error, call) if found.is_shared else await self._unbegun(call, found, error))

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
            return self._no_answer(call)

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
            self._forget(call)
            return await self._unbegun(call, found, error, self.timeout_s)
        return self._no_answer(call)

    def _no_answer(self, call: SubmittedCall) -> ToolResult:
        self._forget(call)
        return self.no_answer(call)

    async def _unbegun(
        self, call: SubmittedCall, found: Withdrawal, error: CallError, duration_s: float = 0.0
    ) -> ToolResult:
        if call.claim is not None:
            await call.claim.release()
        if not found.has_worker:
            self.record(call, error)
        return results.answer_with(error, call, duration_s)

    def _forget(self, call: SubmittedCall) -> bool:
        return call.hear is not None and self._connection.replies.forget(call.id, call.hear)

    def _unreachable(self, *, may_have_run: bool) -> BrokerUnavailable:
        """The error that Redis could not be reached before the deadline."""
        end = "Redis may still accept the call; if so, the call is withdrawn." if may_have_run else _NOT_ENQUEUED
        return BrokerUnavailable(f"Redis could not be reached within {self.timeout_s:g} s. {end}", may_have_run)

    def record(self, call: SubmittedCall, error: CallError | BrokerUnavailable) -> None:
        """Record how a call ended that no worker had."""
        if not call.is_recorded:
            call.is_recorded = True
            if not call.tool:  # the name was not understood
                *server, call.tool = call.call.name.split(".", 1)
                call.server = "".join(server)
            audit_of(self._app).record(call, error, agent_id=self.agent_id, run_id=self.run_id)

    @property
    def _app(self) -> "Celery":
        return self.find_app()

    @property
    def _connection(self) -> AgentConnection:
        return connection_of(self._app)

    async def _claim(self, redis: Any, call: SubmittedCall, task_id: str) -> Claim:
        what, key = (call.server, call.tool, call.arguments), call.call.idempotency_key or ""
        attempt = partial(claim, redis, what, agent_id=self.agent_id, key=key, task_id=task_id)
        try:
            return await retry_until(call.deadline, attempt)
        except connection_errors() as error:
            why = f"Redis could not be reached ({error}). {_NOT_ENQUEUED}"
            if is_refusal(error):
                why = (
                    f"Redis does not allow this user to use idempotency keys of the agent `{self.agent_id}` ({error}). "
                    f"{_NOT_ENQUEUED} Set `agent_id` to the name of the Redis user."
                )
            raise BrokerUnavailable(why) from error


async def _release(claim: Claim) -> None:
    with suppress(*connection_errors()):
        await claim.release()


@dataclass(eq=False, slots=True)
class _Confirmation:
    """Receives the reply of Redis to a call that was sent."""

    dispatcher: CallDispatcher
    call: SubmittedCall

    def done(self) -> bool:
        return self.call.has_ended

    def set_result(self, _: list[Any], /) -> None:
        self.call.confirm()

    def set_exception(self, error: Exception, /) -> None:
        self.dispatcher.retry(self.call, error)
