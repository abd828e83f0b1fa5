"""A watch of one resource: an iterator of its changes, for synchronous agents and for asyncio.

Owns what of the changes is not read yet, and keeping the watch: its lease, and recording it again when Redis has lost
it. All of that runs on the background loop. Subscribing is the workers'.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from tarsy_tasks.agent.background import call_in_background, start_in_background, wait_for
from tarsy_tasks.agent.connection import connection_of
from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.agent.waiting import retry_until
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.watches import LEASE_S
from tarsy_tasks.errors import BrokerUnavailable, CallError
from tarsy_tasks.methods import WATCH_RESOURCE
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.resource_changes import ResourceChange, WatchMessage

__all__ = ["AsyncResourceWatch", "ResourceWatch", "WatchKeeper"]

_RENEW_S = LEASE_S / 3
_LOOK_S = 0.5
_MOST = 100
"""Changes that are not read yet; of more parts of a resource, it only says that the resource may have changed."""
_UNWATCHED = "Nothing is watched."


class WatchKeeper:
    """Keeps one watch; its coroutines run on the background loop."""

    def __init__(self, dispatcher: CallDispatcher, server: str, uri: str) -> None:
        self._dispatcher = dispatcher
        self._server = server
        self._uri = uri
        self._connection = connection_of(dispatcher.find_app())
        self._replies = self._connection.replies
        self._id = ""
        self._stop_hearing: Callable[[], object] = lambda: None
        self._begun = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._changes: dict[tuple[str, bool], ResourceChange] = {}
        self._woken: Future[None] = Future()
        self._error: Exception | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Return once a worker has subscribed."""
        deadline = time.monotonic() + self._dispatcher.timeout_s
        await self._replies.connect(deadline, _UNWATCHED)
        await self._record(deadline)
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                await self._begun.wait()
        except TimeoutError:
            await self._release()
            raise BrokerUnavailable(
                f"No worker with a session with MCP server `{self._server}` subscribed to the resource within "
                f"{self._dispatcher.timeout_s:g} s. {_UNWATCHED}"
            ) from None
        if self._error is not None:
            raise self._error
        self._keeping = start_in_background(self._keep())

    async def _record(self, deadline: float) -> None:
        await retry_until(deadline, self._replies.hear_events)
        self._stop_hearing()
        self._begun.clear()
        call = self._dispatcher.request(self._server, WATCH_RESOURCE, {"uri": self._uri})
        while not call.id and not call.answered.done():
            await asyncio.sleep(0)  # before it is sent, so that nothing is missed
        if call.id:
            self._id = call.id
            self._stop_hearing = self._replies.listen_for_changes(call.id, self._hear)
        await wait_for(call.answered)
        call.answered.result().raise_for_outcome()

    def _hear(self, message: WatchMessage) -> None:
        match message.kind:
            case "changed":
                self._put(ResourceChange(server=self._server, uri=message.uri))
            case "missed":
                self._put_uncertain()
            case "refused":
                text = f"MCP server `{self._server}` does not report changes of this resource: {message.error}"
                self._end(CallError(ErrorCode.SERVER_ERROR, text))
            case _:
                pass
        self._begun.set()

    def _put_uncertain(self) -> None:
        self._put(ResourceChange(server=self._server, uri=self._uri, is_certain=False))

    def _put(self, change: ResourceChange) -> None:
        with self._lock:
            if len(self._changes) >= _MOST:
                self._changes.clear()
                change = ResourceChange(server=self._server, uri=self._uri, is_certain=False)
            self._changes[change.uri, change.is_certain] = change
            woken, self._woken = self._woken, Future()
        woken.set_result(None)

    def _end(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed, self._error = True, error
        self._woken.set_result(None)

    async def _keep(self) -> None:
        """Renew the lease, and record the watch again after a restart of Redis that has lost it."""
        losses, renew_at = self._replies.losses, 0.0
        while not self._is_closed:
            await asyncio.sleep(_LOOK_S)
            was_lost = losses != self._replies.losses
            if not was_lost and time.monotonic() < renew_at:
                continue
            deadline = time.monotonic() + self._dispatcher.timeout_s
            try:
                before = self._replies.losses
                await self._replies.connect(deadline, _UNWATCHED)
                await self._replies.hear_events()
                lease = keys.watch_lease_key(self._connection.agent, self._id)
                [is_renewed] = await self._replies.redis.execute(("SET", lease, "", "XX", "EX", LEASE_S))
                if is_renewed is None:
                    await self._record(deadline)
                    await self._begun.wait()
                    was_lost = True
            except (BrokerUnavailable, *connection_errors()):
                continue
            except Exception as error:
                self._end(error)
                return
            losses, renew_at = before, time.monotonic() + _RENEW_S
            if was_lost:
                self._put_uncertain()

    def take(self) -> tuple[list[ResourceChange], "Future[None] | None"]:
        """What is not read yet, and what is done when there is more; None when the watch has ended."""
        with self._lock:
            changes, self._changes = [*self._changes.values()], {}
            if not changes and self._is_closed:
                if self._error is not None:
                    raise self._error
                return [], None
            return changes, self._woken

    def close(self) -> None:
        """End the watch; from any thread."""
        self._end()
        call_in_background(lambda: start_in_background(self._release()))

    async def _release(self) -> None:
        self._stop_hearing()
        if self._keeping is not None:
            self._keeping.cancel()
        if self._id:
            try:
                await self._replies.redis.execute(("DEL", keys.watch_lease_key(self._connection.agent, self._id)))
            except connection_errors():
                pass  # it lapses


class _Watch:
    def __init__(self, keeper: WatchKeeper) -> None:
        self._keeper = keeper
        self._unread: list[ResourceChange] = []


class ResourceWatch(_Watch):
    """The changes of one resource, as they come; to be closed, or used in a `with` block."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResourceChange:
        while not self._unread:
            self._unread, woken = self._keeper.take()
            if woken is None:
                raise StopIteration
            if not self._unread:
                woken.result()
        return self._unread.pop(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watch, also for a thread that waits for a change."""
        self._keeper.close()


class AsyncResourceWatch(_Watch):
    """`ResourceWatch` for asyncio."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResourceChange:
        while not self._unread:
            self._unread, woken = self._keeper.take()
            if woken is None:
                raise StopAsyncIteration
            if not self._unread:
                await wait_for(woken)
        return self._unread.pop(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `ResourceWatch.close`."""
        self._keeper.close()
