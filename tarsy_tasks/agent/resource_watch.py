"""A watch of one resource: an iterator of its changes, for synchronous agents and for asyncio.

Owns what of the changes is not read yet, and beginning the watch. That it goes on is `watch_keeper`'s part, and
subscribing is the workers'. Changes arrive on the background loop; any thread and any event loop may read, one at a
time.
"""

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Self

from tarsy_tasks.agent.background import call_in_background, wait_for
from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.redis_errors import is_refusal
from tarsy_tasks.agent.watch_keeper import keeper_of
from tarsy_tasks.errors import BrokerUnavailable, OutcomeError
from tarsy_tasks.methods import WATCH_RESOURCE
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.resources import ResourceChange, WatchMessage

__all__ = ["AsyncResourceWatch", "ResourceWatch", "Watched"]

_MOST_UNREAD = 100
"""Of more changes that are not read yet, there is one left: the resource may have changed."""
_MAY_END_OTHERWISE = (Outcome.UNAVAILABLE, Outcome.UNKNOWN, Outcome.TIMEOUT, Outcome.CANCELLED)
"""When it is asked again."""
_PATIENCE_S = 300.0
"""For how long it is asked again, once workers have given it up or Redis has lost it."""


class Watched:
    """One watch, from its beginning to its end. Its coroutines run on the background loop.

    Args:
        patience_s: For how long it may be answered that it cannot be begun again now.

    Attributes:
        id: That of the task that began it; another one when it had to be begun again.
    """

    def __init__(self, dispatcher: CallDispatcher, server: str, uri: str, *, patience_s: float = _PATIENCE_S) -> None:
        self.id = ""
        self._patience_s = patience_s
        self._refused_since: float | None = None
        self._dispatcher = dispatcher
        self._server = server
        self._uri = uri
        self._uncertain = ResourceChange(server=server, uri=uri, is_certain=False)
        self._keeper = keeper_of(dispatcher.find_app())
        self._lock = threading.Lock()
        self._changes: dict[tuple[str, bool], ResourceChange] = {}
        self._waiting: Future[None] | None = None
        self._error: Exception | None = None
        self._has_ended = False
        self._process = os.getpid()

    async def begin(self) -> None:
        """Return once a worker has subscribed, and what changes from now on is heard.

        Raises:
            OutcomeError: The server does not report changes of it, or no worker could ask it.
            BrokerUnavailable: Redis could not be reached in time, or does not allow it.
        """
        await self._keeper.open(self._dispatcher.timeout_s)
        await self._ask()

    async def _ask(self) -> None:
        losses = self._keeper.losses
        call = self._dispatcher.request(self._server, WATCH_RESOURCE, {"uri": self._uri})
        try:
            await wait_for(call.answered)
        except asyncio.CancelledError:
            self._dispatcher.abandon([call])
            raise
        call.answered.result().raise_for_outcome()
        self.id = call.id
        if self._has_ended:  # meanwhile
            await self._keeper.release(call.id)
        else:
            self._keeper.add(self, losses)

    async def begin_again(self) -> bool:
        """The same after Redis has lost it, or workers have ended it: the answer says whether it can go on. Returns
        whether that is settled; if not, it is to be asked again later."""
        try:
            await self._ask()
        except Exception as error:
            if self._may_change(error):
                return False
            self.end(error)
            return True
        self._refused_since = None
        self.note_uncertain()
        return True

    def _may_change(self, error: Exception) -> bool:
        """Whether to ask again later: while Redis cannot be reached, but not for ever if it gets errors."""
        if isinstance(error, OutcomeError):
            if _is_final(error.result):
                return False
        elif not isinstance(error, (BrokerUnavailable, OSError)):
            return False
        elif not is_refusal(error.__cause__ or error):
            return True
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        return now - self._refused_since < self._patience_s

    def hear(self, message: WatchMessage) -> None:
        """A worker has published something."""
        for uri in message.changed:
            self._put(ResourceChange(server=self._server, uri=uri))
        if message.is_uncertain:
            self.note_uncertain()
        if message.ended:
            self._keeper.begin_again(self)

    def note_uncertain(self) -> None:
        """Nobody heard for a while what the server reports."""
        self._put(self._uncertain)

    def _put(self, change: ResourceChange) -> None:
        with self._lock:
            if self._has_ended:
                return
            if len(self._changes) >= _MOST_UNREAD:
                self._changes.clear()
                change = self._uncertain
            self._changes[change.uri, change.is_certain] = change
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)

    def end(self, error: Exception | None = None) -> None:
        """No more changes; who reads gets the error after those that are there. From any thread; in a forked child it
        has no effect on the watch of its parent."""
        if not self.is_of_this_process:
            return
        with self._lock:
            if self._has_ended:
                return
            self._has_ended, self._error = True, error
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)
        call_in_background(lambda: self._keeper.remove(self))

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was begun here. A forked child has neither the thread nor the connection that keep it, and must
        not touch its lock, which another thread of its parent may have had."""
        return self._process == os.getpid()

    def take(self, waiting: "Future[None]") -> list[ResourceChange] | None:
        """What is there; None when there will be no more.

        Args:
            waiting: Done, if nothing is there, once there is something. It takes the place of the one before, whose
                reader has given up.

        Raises:
            Exception: The one that has ended it, once nothing is left to read.
            RuntimeError: In a forked child.
        """
        if not self.is_of_this_process:
            raise RuntimeError(
                "this watch belongs to the process that began it, and this is a forked child: begin another one here"
            )
        with self._lock:
            changes, self._changes = [*self._changes.values()], {}
            if changes or not self._has_ended:
                self._waiting = None if changes else waiting
                return changes
            if self._error is not None:
                raise self._error
            return None


class _Watch:
    """What both kinds have: it ends when it is closed, and when nobody has it any more."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._unread: list[ResourceChange] = []
        self._reading = threading.Lock()
        # The garbage collector calls it at any time in any thread, also in one that has the watch's lock.
        self._finalizer = weakref.finalize(self, _end_soon, watched)

    @contextmanager
    def _turn(self) -> Generator[None]:
        """The changes are read by one after the other, or each would get only some of them."""
        if not self._reading.acquire(blocking=False):
            raise RuntimeError(
                "another thread or task is waiting for a change of this watch: read it in one place, or begin a watch "
                "for each reader"
            )
        try:
            yield
        finally:
            self._reading.release()

    def close(self) -> None:
        """End the watch, also for those who wait for a change. From any thread."""
        self._finalizer.detach()
        self._watched.end()


class ResourceWatch(_Watch):
    """The changes of one resource, as they come: an iterator, to be closed, or used in a `with` block."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResourceChange:
        with self._turn():
            while not self._unread:
                changes = self._watched.take(changed := Future[None]())
                if changes is None:
                    raise StopIteration
                if not changes:
                    changed.result()
                self._unread = changes
            return self._unread.pop(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncResourceWatch(_Watch):
    """The same for `async for`, and `async with`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResourceChange:
        with self._turn():
            while not self._unread:
                changes = self._watched.take(changed := Future[None]())
                if changes is None:
                    raise StopAsyncIteration
                if not changes:
                    await wait_for(changed)
                self._unread = changes
            return self._unread.pop(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _end_soon(watched: Watched) -> None:
    if watched.is_of_this_process:
        call_in_background(watched.end)


def _is_final(result: ToolResult) -> bool:
    """Whether the same would be answered again, until an operator changes something."""
    if result.retry_after_s is not None:
        return False
    return result.outcome not in _MAY_END_OTHERWISE or result.error_code is ErrorCode.SERVER_REMOVED
