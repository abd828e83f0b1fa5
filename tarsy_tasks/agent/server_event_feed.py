"""The events of servers, from the workers that publish them to the agent's function that takes them.

Owns the subscription, which an executor opens with its first function and which is opened again when it was lost, and
where functions run: for synchronous agents in the thread that they share, for asyncio agents on their event loop.
Redis keeps no events: what happens while the connection is lost is not heard.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tarsy_tasks.agent.background import call_in_background, start_in_background
from tarsy_tasks.agent.callback_thread import call_in_thread
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange, Subscription
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.server_events import ServerEvent
from tarsy_tasks.telemetry.outage_log import OutageLog

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Deliver", "OnEvent", "ServerEventFeed", "deliver_in_loop", "deliver_in_thread"]

logger = logging.getLogger(__name__)

OnEvent = Callable[[ServerEvent], "Awaitable[object] | object"]
"""In an asyncio agent it may be a coroutine function."""
Deliver = Callable[[ServerEvent], None]
"""Takes an event on the background loop, and must not wait."""
_RECONNECT_S = 0.25
_LONGEST_RECONNECT_S = 5.0
_ALIVE_S = 15.0
"""How often the connection is used, for its loss to be noticed."""
_WAITING = 1000
_FAILED = "`on_event` failed for %s of MCP server %s"


class ServerEventFeed:
    """The events of the servers of one executor. Its coroutines run on the background loop.

    Args:
        find_app: As for `CallDispatcher`.
        timeout_s: How long to wait for the first subscription.
    """

    def __init__(self, find_app: "Callable[[], Celery]", selection: Selection, timeout_s: float) -> None:
        self._find_app = find_app
        self._selection = selection
        self._timeout_s = timeout_s
        self._receivers: list[Deliver] = []
        self._following: asyncio.Task[None] | None = None
        self._redis: AsyncRedisExchange | None = None
        self._lost = asyncio.Event()
        self._subscribing = asyncio.Lock()
        self._outage = OutageLog(logger, "events of MCP servers cannot be heard")

    async def add(self, deliver: Deliver) -> Callable[[], None]:
        """Deliver every event from now on, until the returned function is called, from any thread.

        Raises:
            BrokerUnavailable: Redis could not be reached in time, or refuses that to this user.
        """
        async with self._subscribing:
            if self._following is None:
                await self._subscribe()
            self._receivers.append(deliver)
        return lambda: call_in_background(partial(self._remove, deliver))

    def close(self) -> None:
        """Deliver nothing any more; from any thread."""
        if self._following is not None:
            call_in_background(self._close)

    def _remove(self, deliver: Deliver) -> None:
        with suppress(ValueError):
            self._receivers.remove(deliver)
        if not self._receivers:
            self._close()

    def _close(self) -> None:
        self._receivers.clear()
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    async def _subscribe(self) -> None:
        app: Any = self._find_app()
        subscription = Subscription(("SUBSCRIBE", keys.SERVER_EVENTS), self._hear, self._note_loss)
        redis = AsyncRedisExchange(lambda: app.backend.client.connection_pool, subscription)
        try:
            async with asyncio.timeout(self._timeout_s):
                await redis.open()
        except TimeoutError:
            raise BrokerUnavailable(
                f"Redis did not answer within {self._timeout_s:g} s. No events are heard."
            ) from None
        except connection_errors() as error:
            remedy = " An operator has to renew its ACL rules (`tarsy-tasks acl`)." if is_refusal(error) else ""
            raise BrokerUnavailable(f"Redis did not accept the subscription ({error}).{remedy}") from error
        self._lost.clear()
        self._redis = redis
        self._following = start_in_background(self._follow(redis))

    def _note_loss(self, _: Exception) -> None:
        self._lost.set()

    async def _follow(self, redis: AsyncRedisExchange) -> None:
        """Keep the subscription."""
        pause_s = _RECONNECT_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ALIVE_S):
                    await self._lost.wait()
            try:
                self._lost.clear()
                await redis.execute(("PING",))
                self._outage.succeeded()
                pause_s = _RECONNECT_S
            except connection_errors() as error:
                self._outage.failed(error)
                self._lost.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_RECONNECT_S)

    def _hear(self, message: bytes) -> None:
        try:
            event = ServerEvent.model_validate_json(message)
        except ValidationError as error:
            logger.debug("an event of a server cannot be read: %s", error)
            return
        if event.server not in self._selection.servers and not (
            self._selection.refresh() and event.server in self._selection.servers
        ):
            return
        for deliver in self._receivers:
            deliver(event)


def deliver_in_thread(function: OnEvent) -> Deliver:
    """Call a function in the thread that those of synchronous agents share."""
    waiting = _Waiting()

    def call(event: ServerEvent) -> None:
        waiting.count -= 1
        try:
            function(event)
        except Exception:
            logger.exception(_FAILED, event.kind, event.server)

    def deliver(event: ServerEvent) -> None:
        if waiting.has_room(event):
            call_in_thread(partial(call, event))

    return deliver


def deliver_in_loop(function: OnEvent, loop: asyncio.AbstractEventLoop) -> Deliver:
    """Call a function on an event loop, one event after the other."""
    waiting, turn, tasks = _Waiting(), asyncio.Lock(), set[asyncio.Task[None]]()

    async def call(event: ServerEvent) -> None:
        async with turn:
            waiting.count -= 1
            try:
                found = function(event)
                if inspect.isawaitable(found):
                    await found
            except Exception:
                logger.exception(_FAILED, event.kind, event.server)

    def begin(event: ServerEvent) -> None:
        tasks.add(task := loop.create_task(call(event)))
        task.add_done_callback(tasks.discard)

    def deliver(event: ServerEvent) -> None:
        if waiting.has_room(event):
            with suppress(RuntimeError):  # the loop was closed, and nobody waits any more
                loop.call_soon_threadsafe(begin, event)

    return deliver


class _Waiting:
    """How many events a slow function has not taken yet."""

    def __init__(self) -> None:
        self.count = 0

    def has_room(self, event: ServerEvent) -> bool:
        """Count one more, if there are not too many."""
        if self.count >= _WAITING:
            logger.warning("`on_event` is too slow: %s of MCP server %s is left out", event.kind, event.server)
            return False
        self.count += 1
        return True
