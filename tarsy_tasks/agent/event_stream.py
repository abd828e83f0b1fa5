"""The events of one call, from the batches of its worker to the agent's code that reads them.

Owns what of them is new, their order, and how many are kept for code that does not read: the newest of each kind, and
some log lines. It does no I/O. Batches arrive on the background loop; any thread and any event loop may read.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress

from tarsy_tasks.agent.background import wait_for
from tarsy_tasks.call_events import CallEvent, CallLog, CallRestarted, DeadlineMoved, EventBatch

__all__ = ["CallEvents", "EventBuffer"]

_KEPT_LINES = 200
_LEAST_MOVE_S = 1.0
"""A deadline that moved by less is reported with the next one."""


class EventBuffer:
    """Events that are not read yet: of log lines the latest, of each other kind the newest one."""

    def __init__(self, on_change: Callable[[], object] = lambda: None) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._events: list[CallEvent] = []
        self._changed: Future[None] = Future()
        self._has_ended = False

    def put(self, events: Iterable[CallEvent]) -> None:
        with self._lock:
            for event in events:
                if not isinstance(event, CallLog):
                    self._events = [each for each in self._events if type(each) is not type(event)]
                self._events.append(event)
            self._drop_lines()
            changed, self._changed = self._changed, Future()
        changed.set_result(None)
        self._on_change()

    def _drop_lines(self) -> None:
        lines = [each for each in self._events if isinstance(each, CallLog)]
        if (surplus := len(lines) - _KEPT_LINES) > 0:
            dropped, first = lines[:surplus], lines[surplus]
            lost = first.lost + sum(1 + each.lost for each in dropped)
            left = [each for each in self._events if not any(each is one for one in dropped)]
            self._events = [first.model_copy(update={"lost": lost}) if each is first else each for each in left]

    def end(self) -> None:
        """The call has ended: what is there can still be read."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._changed.set_result(None)
        self._on_change()

    def take(self) -> tuple[list[CallEvent], "Future[None] | None"]:
        """What is there, and what is done when there is more; None when there will be no more."""
        with self._lock:
            events, self._events = self._events, []
            return events, None if self._has_ended else self._changed

    def iterate(self, patience_s: Callable[[], float]) -> Generator[CallEvent]:
        """The events as they come, until the call has ended, or the time is over for which to wait."""
        while True:
            events, changed = self.take()
            yield from events
            if changed is None:
                return
            if not events:
                wait([changed], patience_s())
                if not changed.done() and not patience_s():
                    return

    async def iterate_async(self, patience_s: Callable[[], float]) -> AsyncGenerator[CallEvent]:
        """The same on any event loop."""
        while True:
            events, changed = self.take()
            for event in events:
                yield event
            if changed is None:
                return
            if not events:
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience_s()):
                        await wait_for(changed)
                if not changed.done() and not patience_s():
                    return


class CallEvents:
    """What an agent hears of one call while it runs.

    Args:
        buffers: For each of its readers.

    Attributes:
        began: When the call was submitted; monotonic time.
        stop: Ends hearing; set when that begins.
    """

    def __init__(self, *buffers: EventBuffer) -> None:
        self.began = time.monotonic()
        self.stop: Callable[[], object] = lambda: None
        self._buffers = buffers
        self._newest = (0.0, 0)
        self._attempt = 1
        self._shown_at = -1.0
        self._timeout_s = 0.0

    def read(self, batch: EventBatch) -> bool:
        """Take over a batch, in which the time of a moved deadline is not looked at. Returns whether it was new."""
        if (batch.since, batch.number) <= self._newest:
            return False
        is_other = batch.since > self._newest[0] and (batch.delivery > 1 or self._newest[0] > 0)
        events: list[CallEvent] = []
        if is_other or batch.attempt > self._attempt:
            events.append(CallRestarted(attempt=batch.attempt, is_other_worker=is_other, at=batch.at))
        self._newest, self._attempt = (batch.since, batch.number), batch.attempt
        events += batch.logs
        if batch.progress is not None and batch.progress.at != self._shown_at:
            self._shown_at = batch.progress.at
            events.append(batch.progress)
        self._put(events)
        return True

    def move_deadline(self, timeout_s: float, at: float) -> None:
        """The call may take so long in all, from when it was submitted."""
        if timeout_s >= self._timeout_s + _LEAST_MOVE_S or not self._timeout_s:
            self._timeout_s = timeout_s
            self._put([DeadlineMoved(timeout_s=round(timeout_s, 3), at=at)])

    def _put(self, events: list[CallEvent]) -> None:
        if events:
            for buffer in self._buffers:
                buffer.put(events)

    def end(self) -> None:
        """The call has ended."""
        self.stop()
        for buffer in self._buffers:
            buffer.end()
