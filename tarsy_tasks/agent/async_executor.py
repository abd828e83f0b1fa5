"""`AsyncToolExecutor`: what an asyncio agent holds.

Owns awaiting. What a call is and how it travels stands in `calls`; `executor` is the same, blocking. Sending goes
through a small thread pool, for publishing to Redis blocks; waiting costs no thread and is bound to no event loop.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tarsy_tasks.agent.dispatcher import WITHDRAW_S, CallDispatcher, SubmittedCall
from tarsy_tasks.agent.tool_list import Catalogue
from tarsy_tasks.errors import BrokerUnavailable, ResultTimeout, TarsyTasksError
from tarsy_tasks.models import ToolCall, ToolDefinition, ToolListing, ToolResult

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["AsyncPendingCall", "AsyncToolExecutor"]

T = TypeVar("T")
_SENDERS = 4
"""Sending is work for the interpreter, not waiting: more threads would send no faster."""


class AsyncPendingCall:
    """A call that was submitted.

    Attributes:
        id: The task id, as Flower shows it; empty for a call that was rejected before it was sent.
        call: The call itself.
    """

    def __init__(self, calls: CallDispatcher, sent: SubmittedCall) -> None:
        self.id = sent.id
        self.call = sent.call
        self._calls = calls
        self._sent = sent

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._sent.future.done()

    async def result(self, timeout: float | None = None) -> ToolResult:  # noqa: ASYNC109 - the contract of PendingCall
        """Wait for the answer.

        Args:
            timeout: Seconds to wait; None for as long as the executor's `timeout_s` allows since the call was
                submitted.

        Raises:
            ResultTimeout: `timeout` ran out before the call's own deadline did; the call goes on.
        """
        left_s = self._sent.seconds_left()
        try:
            return await _wait(self._sent.future, left_s if timeout is None else min(timeout, left_s))
        except TimeoutError:
            if timeout is not None and self._sent.seconds_left():
                raise ResultTimeout(f"no answer to `{self.call.name}` within {timeout:g} s; the call goes on") from None
        try:
            return await _wait(self._calls.withdraw_later(self._sent), WITHDRAW_S)
        except TimeoutError:
            return self._calls.no_answer(self._sent)

    async def cancel(self) -> None:
        """Cancel the call, wherever it is. `result` then tells how it ended.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._calls.cancel, self._sent)


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
        self._calls = CallDispatcher(
            servers=servers, tool_filter=tool_filter, timeout_s=timeout_s, agent_id=agent_id, run_id=run_id, app=app
        )
        self._catalogue = Catalogue()
        self._senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix="tarsy-send")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sending threads. Calls that were submitted go on."""
        self._catalogue = Catalogue()
        await asyncio.get_running_loop().run_in_executor(None, self._senders.shutdown)

    async def list_tools(self) -> list[ToolDefinition]:
        """As `ToolExecutor.list_tools`."""
        deadline = self._calls.deadline()
        listings = await self._send(
            lambda calls: [calls.send_listing(server, deadline) for server in calls.servers], deadline
        )
        waits = [_wait(listing.future, self._calls.timeout_s) for listing in listings]
        found = await asyncio.gather(*waits, return_exceptions=True)
        answers: list[tuple[str, ToolListing | Exception]] = []
        for listing, answer in zip(listings, found, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, TarsyTasksError | TimeoutError):
                raise answer
            answers.append((listing.server, answer))
            if isinstance(answer, TimeoutError):
                self._calls.drop_listing(listing)
        self._catalogue.update(self._calls, answers)
        return self._catalogue.tools

    async def failed_servers(self) -> dict[str, str]:
        """As `ToolExecutor.failed_servers`."""
        return dict((await self._listed()).failed)

    async def prompt_section(self) -> str:
        """As `ToolExecutor.prompt_section`."""
        return (await self._listed()).prompt_section()

    async def submit(self, call: ToolCall) -> AsyncPendingCall:
        """As `ToolExecutor.submit`."""
        deadline = self._calls.deadline()
        return AsyncPendingCall(self._calls, await self._send(lambda calls: calls.send(call, deadline), deadline, call))

    async def execute(self, call: ToolCall) -> ToolResult:
        """As `ToolExecutor.execute`. When the awaiting task is cancelled, so is the call."""
        deadline = self._calls.deadline()
        sending = self._start_sending(lambda calls: calls.send(call, deadline))
        try:
            pending = AsyncPendingCall(self._calls, await self._sent(sending, deadline, call))
            return await pending.result()
        except asyncio.CancelledError:
            # Nobody waits for this, neither for a send that is under way nor for the cancel.
            sending.add_done_callback(self._cancel_when_sent)
            raise

    async def execute_many(self, calls: Iterable[ToolCall]) -> list[ToolResult]:
        """As `ToolExecutor.execute_many`."""
        return list(await asyncio.gather(*(self.execute(call) for call in calls)))

    async def _listed(self) -> Catalogue:
        if not self._catalogue.listed:
            await self.list_tools()
        return self._catalogue

    async def _send(self, send: Callable[[CallDispatcher], T], deadline: float, call: ToolCall | None = None) -> T:
        return await self._sent(self._start_sending(send), deadline, call)

    def _start_sending(self, send: Callable[[CallDispatcher], T]) -> "Future[T]":
        return self._senders.submit(send, self._calls)

    async def _sent(self, sending: "Future[T]", deadline: float, call: ToolCall | None = None) -> T:
        """Wait for a send, at most until the deadline: with Redis gone, those before it hold all the senders."""
        try:
            return await _wait(sending, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            error = BrokerUnavailable(
                f"Redis could not be reached within {self._calls.timeout_s:g} s. The call was not enqueued in time."
            )
            if sending.cancel() and call is not None:
                self._calls.tell_unsent(call, error)
            raise error from None

    def _cancel_when_sent(self, sending: "Future[SubmittedCall]") -> None:
        if not sending.cancelled() and sending.exception() is None:
            self._calls.withdraw_later(sending.result(), is_cancelled=True)


async def _wait(future: "Future[T]", timeout_s: float) -> T:
    """Await a future of the reader thread; it cannot be cancelled, so a timeout leaves it whole."""
    async with asyncio.timeout(timeout_s):
        return await asyncio.shield(asyncio.wrap_future(future))
