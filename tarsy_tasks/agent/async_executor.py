"""`AsyncToolExecutor`: what an asyncio agent holds.

Owns awaiting. Publishing to Redis blocks, so a small thread pool sends; waiting costs no thread and is bound to no
event loop. `executor` is the same without `await`.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.pending import Pending
from tarsy_tasks.agent.submitted import Arguments, SubmittedCall, build_call, build_calls
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.waiting import wait_async, wrap
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.models import ToolCall, ToolResult

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["AsyncPendingCall", "AsyncToolExecutor"]

_SENDERS = 4
"""Sending is work for the interpreter, not waiting: more threads would send no faster."""
_SENDING_S = 0.3
"""How long after its deadline a call that is being sent may take to say whether it was enqueued."""


class AsyncPendingCall(Pending):
    """A call that was submitted. See `Pending` for its attributes."""

    async def result(self, timeout_s: float | None = None) -> ToolResult:
        """As `PendingCall.result`."""
        return await wait_async(self._dispatcher.wait_for_one(self._submitted, timeout_s))

    async def cancel(self) -> None:
        """As `PendingCall.cancel`."""
        await asyncio.get_running_loop().run_in_executor(None, self._dispatcher.cancel, self._submitted)


class AsyncToolExecutor:
    """`ToolExecutor` with `await`; arguments and errors are the same."""

    def __init__(
        self,
        servers: Collection[str] | None = None,
        *,
        tool_filter: Mapping[str, Collection[str]] | None = None,
        timeout_s: float = 60.0,
        agent_id: str | None = None,
        run_id: str | None = None,
        app: "Celery | None" = None,
    ) -> None:
        self._dispatcher = CallDispatcher(
            servers=servers, tool_filter=tool_filter, timeout_s=timeout_s, agent_id=agent_id, run_id=run_id, app=app
        )
        self._senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix="tarsy-send")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sending threads, and forget the tools. Calls that were submitted go on."""
        self._dispatcher.lister.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._senders.shutdown)

    async def list_tools(self) -> ToolList:
        """As `ToolExecutor.list_tools`."""
        lister = self._dispatcher.lister
        deadline = self._dispatcher.deadline()
        sending = self._senders.submit(lister.send, deadline)
        try:
            listings = await wrap(sending, deadline)
        except BaseException as error:
            sending.add_done_callback(lambda sent: lister.drop(sent.result()) if _is_sent(sent) else None)
            if isinstance(error, TimeoutError):
                raise self._dispatcher.unreachable() from None
            raise
        return await wait_async(lister.wait(listings, deadline))

    async def failed_servers(self) -> dict[str, str]:
        """As `ToolExecutor.failed_servers`."""
        return dict(self._dispatcher.lister.last.failed_servers)

    async def prompt_section(self, *, tools: bool = True) -> str:
        """As `ToolExecutor.prompt_section`."""
        return self._dispatcher.lister.last.prompt_section(tools=tools)

    async def submit(self, call: ToolCall | str, arguments: Arguments = None) -> AsyncPendingCall:
        """As `ToolExecutor.submit`."""
        [submitted] = self._dispatcher.prepare([build_call(call, arguments)])
        error = await self._sent(submitted, self._senders.submit(self._dispatcher.send, submitted))
        if error is not None:
            raise error
        return AsyncPendingCall(self._dispatcher, submitted)

    async def execute(self, call: ToolCall | str, arguments: Arguments = None) -> ToolResult:
        """As `ToolExecutor.execute`. When the awaiting task is cancelled, so is the call."""
        [result] = await self._execute([build_call(call, arguments)])
        return result

    async def execute_many(self, calls: Iterable[ToolCall | tuple[str, Arguments]]) -> list[ToolResult]:
        """As `ToolExecutor.execute_many`. When the awaiting task is cancelled, so are the calls."""
        return await self._execute(build_calls(calls))

    async def _execute(self, calls: Iterable[ToolCall]) -> list[ToolResult]:
        submitted = self._dispatcher.prepare(calls)
        sendings = [self._senders.submit(self._dispatcher.send, call) for call in submitted]
        try:
            errors = [await self._sent(call, sending) for call, sending in zip(submitted, sendings, strict=True)]
            return await wait_async(self._dispatcher.wait_for_all(submitted, errors))
        except asyncio.CancelledError:
            for call, sending in zip(submitted, sendings, strict=True):
                self._withdraw_when_sent(call, sending)
            raise

    async def _sent(self, call: SubmittedCall, sending: "Future[None]") -> BrokerUnavailable | None:
        """Wait until a call is sent, at most until its deadline: without Redis, earlier calls keep all threads busy.

        Returns:
            Why it could not be sent, or None.
        """
        try:
            await wrap(sending, call.deadline)
        except BrokerUnavailable as error:
            return error
        except TimeoutError:
            if sending.cancel():
                return self._dispatcher.give_up(call)
        else:
            return None
        try:
            await wrap(sending, call.deadline + _SENDING_S)
        except BrokerUnavailable as error:
            return error
        except TimeoutError:
            self._withdraw_when_sent(call, sending)
            return self._dispatcher.unreachable(may_have_run=True)
        return None

    def _withdraw_when_sent(self, call: SubmittedCall, sending: "Future[None]") -> None:
        """Withdraw a call that nobody waits for any more, also when it is being sent just now."""

        def withdraw(sent: "Future[None]") -> None:
            if _is_sent(sent) and call.id and not call.future.done():
                self._dispatcher.withdraw_later(call, is_cancelled=True)

        if sending.cancel():
            self._dispatcher.record_cancelled(call)
        sending.add_done_callback(withdraw)


def _is_sent(sending: "Future[Any]") -> bool:
    return not sending.cancelled() and sending.exception() is None
