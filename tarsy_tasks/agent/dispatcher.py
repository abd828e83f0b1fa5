"""From a model's tool call to a message in a queue, and from the stored answer to a `ToolResult`.

Owns how calls are sent, and what becomes of a stored answer; how a call ends without one is in `unanswered`. Its
coroutines run on the background loop, for both executors: one blocks until they end, one awaits them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from tarsy_tasks.agent import results
from tarsy_tasks.agent.background import call_in_background, start_in_background
from tarsy_tasks.agent.connection import AgentConnection, connection_of
from tarsy_tasks.agent.event_stream import CallEvents
from tarsy_tasks.agent.idempotency import Claim, claim, release_if_possible
from tarsy_tasks.agent.input_calls import InputCalls, OnInput
from tarsy_tasks.agent.isolated_run import IsolatedRun
from tarsy_tasks.agent.large_results import ResultReader
from tarsy_tasks.agent.native_calls import NativeCalls
from tarsy_tasks.agent.parked_calls import ParkedCalls
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal
from tarsy_tasks.agent.reply_listener import Meta
from tarsy_tasks.agent.results import NOT_ENQUEUED
from tarsy_tasks.agent.search_calls import SearchCalls
from tarsy_tasks.agent.search_tools import is_search_call
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import FunctionOrder, SubmittedCall, encode_arguments
from tarsy_tasks.agent.summaries import Summaries
from tarsy_tasks.agent.unanswered import UnansweredCalls
from tarsy_tasks.agent.waiting import retry_until
from tarsy_tasks.broker.async_exchange import NotSentError
from tarsy_tasks.broker.task_names import CALL_TOOL, REQUEST
from tarsy_tasks.call_events import EventBatch
from tarsy_tasks.errors import BrokerUnavailable, CallError
from tarsy_tasks.methods import CLOSE_SESSION, GET_PROMPT, READ_RESOURCE, Method
from tarsy_tasks.models import CallInfo, ToolCall, ToolResult
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.priorities import NORMAL, Priority

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CallDispatcher"]

_REPLY_MARGIN = 0.1
_REPLY_MARGIN_LIMIT_S = 1.0


@dataclass(eq=False)
class CallDispatcher:
    """The calls of one executor. Attributes and errors are those of `ToolExecutor`.

    Attributes:
        find_app: Gives the Celery application; called on first use, for it may have to be built.
        search_calls: Reads the calls of `search_tools` and `call_tool`.
        on_input: Answers what servers ask in its calls; None: the agent has no such function.
        isolated: The sessions of its run; None: it uses those that all share.
        summaries: Makes long results short; None for an executor without a summarizer.
        native: The functions of the agent that are tools.
        is_async: Coroutine functions run on the event loop from which the agent calls.
    """

    find_app: "Callable[[], Celery]"
    selection: Selection
    timeout_s: float
    agent_id: str | None
    run_id: str | None
    search_calls: SearchCalls
    priority: Priority = NORMAL
    park: bool = False
    isolated: IsolatedRun | None = None
    on_input: OnInput | None = None
    summaries: Summaries | None = field(default=None, init=False)
    is_async: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        info = CallInfo(agent_id=self.agent_id, run_id=self.run_id, reads_results=True, park=self.park)
        self._info = info.model_dump(exclude_none=True)
        self.native = NativeCalls(self.find_app, self.agent_id, self.run_id)
        self.reader = ResultReader(self.find_app, self.agent_id, self.timeout_s)
        self._unanswered = UnansweredCalls(self.find_app, self.selection, self.timeout_s, self.agent_id, self.run_id)
        self._margin_s = min(_REPLY_MARGIN_LIMIT_S, _REPLY_MARGIN * self.timeout_s)
        self.inputs = InputCalls(self.request, self.on_input)
        more_s = self.timeout_s + self._margin_s
        self._parked = ParkedCalls(lambda: self._connection, self._unanswered, self.inputs, more_s)

    def start(
        self,
        calls: Iterable[ToolCall],
        *,
        is_submitted: bool = False,
        events: CallEvents | None = None,
        context: object = None,
    ) -> list[SubmittedCall]:
        """Begin to send calls, with one deadline for all; from any thread.

        Args:
            is_submitted: Somebody waits until they are sent.
            events: Hears what happens to them while they run; for one call only.
            context: For the summarizer.

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
            if self.summaries is not None or self.native or self.on_input is not None:
                call.order = FunctionOrder(context, asyncio.get_running_loop() if self.is_async else None)
        call_in_background(partial(self._send_all, submitted))
        return submitted

    def request(self, server: str, method: Method, arguments: dict[str, Any]) -> SubmittedCall:
        """Begin to ask a server for something else than a tool; from any thread."""
        call = ToolCall(name=f"{server}.{method}", arguments=arguments)
        deadline = time.monotonic() + self.timeout_s
        submitted = SubmittedCall(call, encode_arguments(call), deadline, self.priority, server, method, REQUEST)
        submitted.sent = Future() if method == CLOSE_SESSION else None
        submitted.parks = self.park and method in (READ_RESOURCE, GET_PROMPT)
        if submitted.parks and self.on_input is not None:
            submitted.order = FunctionOrder(None, asyncio.get_running_loop() if self.is_async else None)
        call_in_background(partial(self._send_all, [submitted]))
        return submitted

    async def close_sessions(self) -> None:
        """Have the isolated sessions of this executor closed, if it has any; see `IsolatedRun.close`."""
        if self.isolated is not None:
            await self.isolated.close(lambda server: self.request(server, CLOSE_SESSION, {}))

    def attach(self, task_id: str, name: str) -> SubmittedCall:
        """Begin to wait for a call that another executor has sent; from any thread.

        Raises:
            CallError: The name is not one of this executor's tools.
        """
        server, tool = self.selection.resolve(name)
        deadline = time.monotonic() + self.timeout_s
        call = SubmittedCall(ToolCall(name=name), None, deadline, self.priority, server, tool)
        self._parked.attach(call, task_id, partial(self._hear, call))
        return call

    def abandon(self, calls: Iterable[SubmittedCall]) -> None:
        """Cancel calls for which nobody waits any more; from any thread."""
        for call in calls:
            call_in_background(partial(self._unanswered.abandon, call))

    async def cancel(self, call: SubmittedCall) -> None:
        """Cancel a call that was sent: in its queue, or on the MCP server if it runs. Its answer says which."""
        await self._unanswered.cancel(call)

    def no_answer(self, call: SubmittedCall) -> ToolResult:
        """The answer to a call of which nothing is known; from any thread."""
        return self._unanswered.no_answer(call)

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
                    if call.server in self.selection.native:
                        self._run_native(call)
                        continue
                    if self.selection.is_own(call.server):
                        call.sending = start_in_background(self.reader.answer(call), call.context)
                        continue
                else:
                    self.selection.require_server(call.server)
                self._send_soon(call)
            except CallError as error:
                if call.task == CALL_TOOL and is_search_call(call.call.name):
                    call.sending = start_in_background(self._read_search_call(call), call.context)
                else:
                    self._unanswered.reject(call, error)
            except Exception as error:
                self._unanswered.forget(call)
                call.fail(error)

    def _run_native(self, call: SubmittedCall) -> None:
        call.confirm()
        call.is_local = True
        call.sending = task = start_in_background(self.native.run(call), call.context)
        task.add_done_callback(partial(self._end_native, call))

    def _end_native(self, call: SubmittedCall, task: "asyncio.Task[ToolResult]") -> None:
        call.sending = None
        if task.cancelled():  # before it began
            call.end(results.answer_with(results.cancelled(call.call, goes_on=False), call))
        elif (error := task.exception()) is not None:
            call.fail(error)
        else:
            self.conclude(call, task.result())

    async def _read_search_call(self, call: SubmittedCall) -> None:
        """Answer a search, or send the call that `call_tool` asks for."""
        try:
            read = await self.search_calls.read(call.call)
            if not isinstance(read, ToolResult):
                call.call, call.arguments = read, encode_arguments(read)
        except CallError as error:
            self._unanswered.reject(call, error)
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
            self._unanswered.start_timer(call)
            message = (call.id, call.task, call.message, call.deadline, call.priority, call.session)
            if connection.publish_soon(app, _Confirmation(self, call), *message):
                return
            call.stop_timer()
        call.sending = start_in_background(self._send(call), call.context)

    async def _send(self, call: SubmittedCall, *, may_have_run: bool = False) -> None:
        connection = self._connection
        try:
            await connection.replies.connect(call.deadline, NOT_ENQUEUED)
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
                    message = (call.id, call.task, call.message, call.deadline, NOT_ENQUEUED)
                    await connection.publish(
                        self._app,
                        *message,
                        priority=call.priority,
                        session=call.session,
                        may_have_run=may_have_run,
                    )
        except CallError as error:
            self._unanswered.reject(call, error)
        except TimeoutError:
            self._unanswered.end_unsent(call, self._unanswered.unreachable(may_have_run=bool(call.id)))
        except BrokerUnavailable as error:
            in_doubt = may_have_run and not error.may_have_run
            self._unanswered.end_unsent(call, self._unanswered.unreachable(may_have_run=True) if in_doubt else error)
        except Exception as error:
            self._unanswered.forget(call)
            call.fail(error)
        else:
            call.confirm()
            self._unanswered.start_timer(call)
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
        if call.call.no_cache:
            info["no_cache"] = True
        if call.events is not None and not call.is_shared and not connection.replies.refuses_events:
            info["events"] = True
            call.events.stop = connection.replies.listen(call.id, partial(self._hear_events, call))
        if self.isolated is not None:
            call.session, info["session"] = self.isolated.note(call, connection.principals)
        call.message = (call.server, call.tool, call.arguments, info)
        call.hear = partial(self._hear, call)
        connection.replies.expect(call.id, call.hear)

    def _hear(self, call: SubmittedCall, meta: Meta) -> None:
        if self._parked.hear(call, meta):
            return
        try:
            answer = results.read_result(meta, call)
        except Exception as error:
            call.fail(error)
            return
        if call.claim is not None and answer.outcome is Outcome.UNAVAILABLE:
            # It did not run: its key may be used for another try.
            start_in_background(release_if_possible(call.claim))
        self.reader.has_cut = self.reader.has_cut or answer.large is not None
        self.conclude(call, answer)

    def conclude(self, call: SubmittedCall, answer: ToolResult) -> None:
        """End a call with its answer, which may have to be summarized; on the loop."""
        if self.summaries is None or call.has_ended or not self.summaries.may_shorten(call, answer):
            call.end(answer)
            return
        # From now on only the summary ends it, in its own time.
        call.stop_timer()
        call.hear, call.is_local = None, True
        call.deadline = max(call.deadline, time.monotonic() + self.summaries.timeout_s)
        call.sending = task = start_in_background(self.summaries.shorten(call, answer), call.context)
        task.add_done_callback(partial(_end_summarized, call, answer))

    def _hear_events(self, call: SubmittedCall, batch: EventBatch) -> None:
        if call.events is None or call.has_ended or not call.events.read(batch) or batch.deadline is None:
            return
        deadline = time.monotonic() + batch.deadline - self._connection.replies.clock.now() + self._margin_s
        if deadline > call.deadline:
            self._unanswered.move_deadline(call, deadline)
            call.events.move_deadline(deadline - call.events.began, batch.at)

    def retry(self, call: SubmittedCall, error: Exception) -> None:
        """Redis has not confirmed that it has a call; on the loop."""
        call.stop_timer()
        if not call.has_ended:
            may_have_run = not isinstance(error, (ResponseError, NotSentError))
            call.sending = start_in_background(self._send(call, may_have_run=may_have_run), call.context)

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
            why = f"Redis could not be reached ({error}). {NOT_ENQUEUED}"
            if is_refusal(error):
                why = (
                    f"Redis does not allow this user to use idempotency keys of the agent `{self.agent_id}` ({error}). "
                    f"{NOT_ENQUEUED} Set `agent_id` to the name of the Redis user."
                )
            raise BrokerUnavailable(why) from error


def _end_summarized(call: SubmittedCall, answer: ToolResult, task: "asyncio.Task[ToolResult]") -> None:
    call.sending = None
    call.end(answer if task.cancelled() else task.result())


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
