"""`PendingCall`: the handle of a call that was submitted, by which a synchronous agent waits for it or cancels it.

`async_executor` has the one with `await`, on the base class that is here.
"""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic, TypeVar

from tarsy_tasks.agent.background import run_in_background
from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.event_stream import EventBuffer
from tarsy_tasks.agent.progress_calls import AsyncProgressCalls, ProgressCalls
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.call_events import CallEvent
from tarsy_tasks.errors import ResultTimeout
from tarsy_tasks.models import ParkedCall, ToolResult
from tarsy_tasks.questions import InputQuestion

__all__ = ["BasePendingCall", "PendingCall"]

P = TypeVar("P", ProgressCalls, AsyncProgressCalls)

_LATE_S = 2.0
"""How long after its deadline a handle gives up waiting. The background loop answers a call within 1 s of its deadline,
even if Redis does not answer; but in a forked child nobody answers the calls of its parent."""


class BasePendingCall(Generic[P]):
    """What both handles are made of."""

    def __init__(
        self,
        dispatcher: CallDispatcher,
        submitted: SubmittedCall,
        events: EventBuffer | None = None,
        progress_calls: P | None = None,
    ) -> None:
        self.id = submitted.id
        self.call = submitted.call
        self._dispatcher = dispatcher
        self._submitted = submitted
        self._events = events
        self._progress_calls = progress_calls

    @property
    def submitted(self) -> SubmittedCall:
        """For executors."""
        return self._submitted

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._submitted.answered.done()

    @property
    def parked(self) -> ParkedCall | None:
        """Why the call waits, if it was parked (docs/approval.md): as last heard, also when it has gone on since."""
        return self._submitted.parked

    def _watch(self) -> "Future[None]":
        """Done when the call is parked next."""
        heard: Future[None] = Future()
        self._submitted.watching.append(heard)
        return heard

    def _either(self, heard: "Future[None]") -> "list[Future[Any]]":
        return [heard, self._submitted.answered]

    def _patience_s(self, until: float | None = None) -> float:
        """How long to wait now: until a monotonic time, or as long as the call may take, whose deadline may move."""
        latest = self._submitted.deadline + _LATE_S
        return seconds_until(latest if until is None else min(until, latest))

    def _require_events(self) -> EventBuffer:
        if self._events is None:
            raise ValueError("this call was submitted without `events=True`, so its events were not asked for")
        return self._events

    def _read_answer(self, timeout_s: float | None) -> ToolResult:
        """What there is after that time."""
        if self.done():
            return self._submitted.answered.result()
        if timeout_s is not None and self._submitted.seconds_left():
            raise ResultTimeout(f"no answer to `{self.call.name}` within {timeout_s:g} s; the call continues")
        return self._dispatcher.no_answer(self._submitted)


class PendingCall(BasePendingCall[ProgressCalls]):
    """A call that was submitted.

    Attributes:
        id: The task id, as Flower shows it; empty for a call that was rejected before it was sent.
        call: The call itself.
    """

    def events(self) -> Iterator[CallEvent]:
        """What happens to the call while it runs (docs/progress.md), as it happens, until it has ended. After the last
        event the answer is there.

        Each event is given once, also when this is called again. For code that reads slowly the newest of each kind are
        kept, and the latest log lines.

        Raises:
            ValueError: The call was submitted without `events` and `on_progress`.
        """
        return self._require_events().iterate(self._patience_s)

    def result(self, timeout_s: float | None = None) -> ToolResult:
        """Wait for the answer.

        Args:
            timeout_s: Seconds to wait; None for as long as the executor's `timeout_s` allows since the call was
                submitted, or longer if progress has moved its deadline.

        Raises:
            ResultTimeout: This `timeout_s` ended before that of the executor; the call continues.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done() and (patience_s := self._patience_s(until)):
            wait([self._submitted.answered], patience_s)
        if self._progress_calls is not None and self.done():
            self._progress_calls.finish()
        return self._read_answer(timeout_s)

    def questions(self, timeout_s: float | None = None) -> tuple[InputQuestion, ...]:
        """Wait until the server of the call asks for input (docs/input.md), or the call has its answer.

        Args:
            timeout_s: Seconds to wait; None for as long as `result` would.

        Returns:
            What it asks, for `ToolExecutor.resume`; empty if the call has its answer, or nothing was asked until then.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not (self._submitted.questions or self.done()):
            heard = self._watch()
            if self._submitted.questions or not (patience_s := self._patience_s(until)):
                break
            wait(self._either(heard), patience_s, FIRST_COMPLETED)
        return self._submitted.take_questions()

    def cancel(self) -> None:
        """Cancel the call, whether it waits in its queue or runs. `result` then says how it ended.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        run_in_background(self._dispatcher.cancel(self._submitted)).result()
