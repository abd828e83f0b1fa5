"""`AsyncToolExecutor`: what an asyncio agent holds.

Owns awaiting. Publishing to Redis blocks, so a small thread pool sends; waiting costs no thread and is bound to no
event loop. `executor` is the same without `await`.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Self

from tarsy_tasks.agent import results
from tarsy_tasks.agent.executor import BaseExecutor, BasePendingCall
from tarsy_tasks.agent.submitted import Arguments, SubmittedCall, build_call, build_calls
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.waiting import wait_in_loop
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.models import ToolCall, ToolResult

__all__ = ["AsyncPendingCall", "AsyncToolExecutor"]

_SENDERS = 4
"""Sending is work for the interpreter, not waiting: more threads would send no faster."""
_SENDING_S = 0.3
"""How long after its deadline a call that is being sent may take to say whether it was enqueued."""


class AsyncPendingCall(BasePendingCall):
    """A call that was submitted. See `BasePendingCall` for its attributes."""

    async def result(self, timeout_s: float | None = None) -> ToolResult:
        """As `PendingCall.result`."""
        return await self._dispatcher.wait_for_one(self._submitted, timeout_s, wait_in_loop)

    async def cancel(self) -> None:
        """As `PendingCall.cancel`."""
        await asyncio.get_running_loop().run_in_executor(None, self._dispatcher.cancel, self._submitted)


class AsyncToolExecutor(BaseExecutor):
    """`ToolExecutor` with `await`; arguments and errors are the same."""

    @cached_property
    def _senders(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_SENDERS, thread_name_prefix="tarsy-send")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sending threads, and forget the tools. Calls that were submitted go on."""
        self._lister.last = None
        await asyncio.get_running_loop().run_in_executor(None, self._senders.shutdown)

    async def list_tools(self) -> ToolList:
        """As `ToolExecutor.list_tools`."""
        deadline = self._dispatcher.deadline()
        sending = self._senders.submit(self._lister.send, deadline)
        try:
            requests = await wait_in_loop(sending, deadline)
        except BaseException as error:
            sending.add_done_callback(lambda sent: self._lister.drop(sent.result()) if _is_sent(sent) else None)
            if isinstance(error, TimeoutError):
                raise self._dispatcher.unreachable() from None
            raise
        return await self._lister.wait(requests, deadline, wait_in_loop)

    async def failed_servers(self) -> dict[str, str]:
        """As `ToolExecutor.failed_servers`."""
        return dict(self._last_list().failed_servers)

    async def prompt_section(self, *, tools: bool = True) -> str:
        """As `ToolExecutor.prompt_section`."""
        return self._last_list().prompt_section(tools=tools)

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
            return await self._dispatcher.wait_for_all(submitted, errors, wait_in_loop)
        except asyncio.CancelledError:
            for call, sending in zip(submitted, sendings, strict=True):
                self._withdraw_when_sent(call, sending)
            raise

    async def _sent(self, call: SubmittedCall, sending: "Future[None]") -> BrokerUnavailable | None:
        """Wait until a call is sent, at most until its deadline: without Redis, earlier calls keep all threads busy.

        Returns:
            Why it could not be sent, or None.
        """
        for deadline in (call.deadline, call.deadline + _SENDING_S):
            try:
                return await wait_in_loop(sending, deadline)
            except BrokerUnavailable as error:
                return error
            except TimeoutError:
                if sending.cancel():
                    return self._dispatcher.give_up(call)
        self._withdraw_when_sent(call, sending)
        return self._dispatcher.unreachable(may_have_run=True)

    def _withdraw_when_sent(self, call: SubmittedCall, sending: "Future[None]") -> None:
        """Withdraw a call that nobody waits for any more, also when it is being sent just now."""

        def withdraw(sent: "Future[None]") -> None:
            if _is_sent(sent) and call.id and not call.future.done():
                self._dispatcher.withdraw_later(call, is_cancelled=True)

        if sending.cancel():
            self._dispatcher.record(call, results.cancelled(call.call, goes_on=False))
        sending.add_done_callback(withdraw)


def _is_sent(sending: "Future[Any]") -> bool:
    return not sending.cancelled() and sending.exception() is None
