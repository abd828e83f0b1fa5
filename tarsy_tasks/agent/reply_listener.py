"""One subscription per process, through which all answers arrive.

Owns the task ids, the waits for them, and the connection that hears the answers. All ids of a process have the same
prefix, and their answers are announced in one channel of that name: so no wait needs a subscription, a connection or a
thread, and no process sees the answers of others. Pub/sub can lose a message, so pending answers are also read from
Redis after each reconnect and every few seconds. All of it runs on the background loop.
"""

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError
from redis.exceptions import NoPermissionError

from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange, Subscription
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.call_events import EventBatch
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.resources import WatchMessage
from tarsy_tasks.telemetry.outage_log import OutageLog

__all__ = ["Hear", "Meta", "ReplyListener"]

logger = logging.getLogger(__name__)
Meta = Mapping[str, Any]
"""What Celery stores for a task: `status`, `result` and more."""

_stored = TypeAdapter(dict[str, Any])
_DAMAGED = "DAMAGED"
_READY_STATES = frozenset({"SUCCESS", "FAILURE", "REVOKED", _DAMAGED})
_POLL_S = 5.0
_RECONNECT_S = 0.25
_UNREACHABLE = (
    "Redis cannot be reached. Calls wait for it until their deadlines; check TARSY_REDIS_URL and whether Redis is "
    "running (`tarsy-tasks up` prints the line for its own)"
)
_FOREIGN_POLL_S = 0.25
"""Answers to calls of other processes (the same idempotency key) are not announced to this one."""


Hear = Callable[[Meta], None]
"""Takes the answer to a task, and before that the state of a parked call, as often as it is read. It is called on the
background loop, and must not raise."""
HearEvents = Callable[[EventBatch], object]
"""The same for what happens to a call while it runs."""
HearChanges = Callable[[WatchMessage], object]
"""The same for what happens to a watched resource."""
_EVENTS = b'{"events":'
"""How batches of events begin; answers, which Celery writes, do not."""
_WATCH = b'{"watch":'
"""The same of what is published of watched resources."""


class ReplyListener:
    """Receives the stored results of Celery tasks.

    Args:
        find_pool: As for `AsyncRedisExchange`: of the result backend.
        agent: The bound agent that it belongs to; empty for others.

    Attributes:
        clock: The clock of Redis, set before the first answer is expected.
        redis: The connection, for other commands too.
        hears_events: Events of calls arrive, too.
        refuses_events: Redis does not allow this user to hear them.
        losses: How often the connection was lost.
    """

    def __init__(self, find_pool: Callable[[], Any], agent: str = "") -> None:
        self.clock = RedisClock()
        # The beginning of a UUID is the same for this process, the rest differs by call.
        self._id_prefix = str(uuid.uuid4())[: keys.TASK_ID_PREFIX_LENGTH]
        channel = keys.reply_channel(self._id_prefix, agent)
        subscription = Subscription(("SUBSCRIBE", channel), self._hear, self._reconnect)
        self.redis = AsyncRedisExchange(find_pool, subscription)
        self.hears_events = self.refuses_events = False
        self._agent = agent
        self._event_hearers: dict[str, HearEvents] = {}
        self._change_hearers: dict[str, HearChanges] = {}
        self.losses = 0
        self._pending: dict[str, list[Hear]] = {}
        self._has_foreign = False
        self._callers = 0
        self._connecting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._outage = OutageLog(logger, _UNREACHABLE)
        self._poll_timer: asyncio.TimerHandle | None = None
        self._polling: asyncio.Task[None] | None = None

    def new_id(self) -> str:
        """A new task id, a UUID whose answer this listener receives."""
        digits = os.urandom(8).hex()
        return f"{self._id_prefix}a{digits[1:4]}-{digits[4:]}"

    @property
    def is_connected(self) -> bool:
        """Whether answers can arrive, and the clock is right."""
        return self.redis.is_open and self.clock.is_fresh

    async def connect(self, deadline: float, consequence: str, *, may_have_run: bool = False) -> None:
        """Return once answers can arrive and the clock is right, at the latest at a monotonic time.

        Args:
            consequence: What it means for the caller if Redis cannot be reached, for the error.
            may_have_run: For the error, too.

        Raises:
            BrokerUnavailable: Redis did not accept the subscription in time, or refuses it.
        """
        if self.is_connected:
            return
        timeout_s = seconds_until(deadline)
        self._callers += 1
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._connect_soon())
        except TimeoutError:
            waited = f"Redis did not answer within {timeout_s:.3g} s" if timeout_s else "No time was left to ask Redis"
            raise BrokerUnavailable(
                f"{waited} ({self._failure or 'no connection'}). {consequence} "
                "Check TARSY_REDIS_URL and whether Redis is running; `tarsy-tasks up` prints the line for its own.",
                may_have_run,
            ) from None
        except connection_errors() as error:
            raise BrokerUnavailable(
                f"Redis refuses this user ({error}). {consequence} Check user and password in TARSY_REDIS_URL, and the "
                "ACL rules of that user.",
                may_have_run,
            ) from error
        finally:
            self._callers -= 1

    def expect(self, task_id: str, hear: Hear) -> None:
        """Have `hear` called with the answer to a task, and before that with the state of a parked call. To be called
        before the task is published."""
        self._pending.setdefault(task_id, []).append(hear)
        is_foreign = not task_id.startswith(self._id_prefix)
        if self._poll_timer is None or is_foreign > self._has_foreign:
            self._has_foreign = self._has_foreign or is_foreign
            self._schedule_poll()

    def forget(self, task_id: str, hear: Hear) -> bool:
        """Stop expecting the answer. Returns whether it was still expected."""
        hearers = self._pending.pop(task_id, [])
        left = [each for each in hearers if each is not hear]
        if left:
            self._pending[task_id] = left
        return len(left) < len(hearers)

    def listen(self, task_id: str, hear: "HearEvents") -> Callable[[], object]:
        """Have `hear` called with what happens to a call while it runs, until the returned function is called."""
        self._event_hearers[task_id] = hear
        return partial(self._event_hearers.pop, task_id, None)

    def listen_for_changes(self, watch_id: str, hear: HearChanges) -> None:
        """As `listen`, for a watched resource, until `stop_listening`."""
        self._change_hearers[watch_id] = hear

    def stop_listening(self, watch_id: str) -> None:
        """What is published of a watched resource is of no interest any more."""
        self._change_hearers.pop(watch_id, None)

    async def hear_events(self) -> None:
        """Return once events of calls can arrive, or Redis refuses that. Raises one of `connection_errors`."""
        if self.hears_events or self.refuses_events:
            return
        losses, channel = self.losses, keys.events_channel(self._id_prefix, self._agent)
        try:
            await self.redis.execute(("SUBSCRIBE", channel))
        except NoPermissionError as error:
            self._note_refusal(error)
            return
        self.hears_events = losses == self.losses
        await self.poll_events(*self._event_hearers)

    async def poll_events(self, *task_ids: str) -> None:
        """Read how calls stand now. Raises one of `connection_errors`."""
        if not task_ids:
            return
        states = (keys.call_state_key(task_id, self._agent) for task_id in task_ids)
        try:
            [bodies] = await self.redis.execute(("MGET", *states))
        except NoPermissionError as error:
            self._note_refusal(error)
            return
        for body in bodies:
            if body is not None:
                self._hear_events(body)

    def _note_refusal(self, error: NoPermissionError) -> None:
        """Calls are more important than their events."""
        if not self.refuses_events:
            self.refuses_events = True
            logger.warning("no events of calls: %s. An operator must load the current ACL rules into Redis", error)

    async def poll(self, *task_ids: str) -> None:
        """Read answers that may be stored already. Raises one of `connection_errors`."""
        if not task_ids:
            return
        [bodies] = await self.redis.execute(("MGET", *map(keys.result_key, task_ids)))
        for task_id, body in zip(task_ids, bodies, strict=True):
            if body is not None:
                self._complete(task_id, _decode(body))

    def _connect_soon(self) -> "asyncio.Task[None]":
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._end_connecting)
        return self._connecting

    def _end_connecting(self, done: "asyncio.Task[None]") -> None:
        self._connecting = None
        if not done.cancelled():
            done.exception()  # nobody may wait for it any more

    async def _connect(self) -> None:
        """Try until it succeeds or Redis refuses this user, for as long as anybody waits."""
        while True:
            try:
                await self.redis.open()
                if not self.clock.is_fresh:
                    await self.clock.sync_async(self.redis.execute)
                self._failure = None
                # An answer may have been published while there was no connection.
                await self.poll(*self._pending)
                if self._event_hearers or self._change_hearers:
                    await self.hear_events()
            except connection_errors() as error:
                self._failure = error
                if is_refusal(error) or not (self._callers or self._pending):
                    raise
                self._outage.failed(error)
                await asyncio.sleep(_RECONNECT_S)
            else:
                self._outage.succeeded()
                return

    def _reconnect(self, error: Exception) -> None:
        self.hears_events = False
        self.losses += 1
        if self._pending:
            logger.warning("connection to Redis lost, reconnecting: %s", error)
            self._connect_soon()

    def _schedule_poll(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        interval_s = _FOREIGN_POLL_S if self._has_foreign else _POLL_S
        self._poll_timer = asyncio.get_running_loop().call_later(interval_s, self._start_poll)

    def _start_poll(self) -> None:
        self._poll_timer = None
        if self._pending:
            self._has_foreign = not all(task_id.startswith(self._id_prefix) for task_id in self._pending)
            self._polling = asyncio.get_running_loop().create_task(self._poll_pending())
            self._schedule_poll()

    async def _poll_pending(self) -> None:
        with suppress(*connection_errors()):  # it tries again
            if self.redis.is_open:
                await self.poll(*self._pending)
                if self._event_hearers and not self.refuses_events:
                    await self.hear_events()
                    await self.poll_events(*self._event_hearers)
            else:
                await self._connect_soon()

    def _hear(self, message: bytes) -> None:
        if message.startswith(_EVENTS):
            self._hear_events(message)
            return
        if message.startswith(_WATCH):
            self._hear_changes(message)
            return
        meta = _decode(message)
        self._complete(str(meta.get("task_id")), meta)

    def _hear_events(self, message: bytes) -> None:
        try:
            batch = EventBatch.model_validate_json(message)
        except ValidationError as error:
            logger.debug("events of a call cannot be read: %s", error)
            return
        hear = self._event_hearers.get(batch.task_id)
        if hear is not None:
            hear(batch)

    def _hear_changes(self, message: bytes) -> None:
        try:
            said = WatchMessage.model_validate_json(message)
        except ValidationError as error:
            logger.debug("a message about a watched resource cannot be read: %s", error)
            return
        hear = self._change_hearers.get(said.watch)
        if hear is not None:
            hear(said)

    def _complete(self, task_id: str, meta: Meta) -> None:
        status = str(meta["status"])
        if status == keys.PARKED_STATE:
            for hear in tuple(self._pending.get(task_id, ())):
                hear(meta)
        if status not in _READY_STATES:
            return
        for hear in self._pending.pop(task_id, ()):
            hear(meta)


def _decode(body: bytes) -> Meta:
    damaged = {"status": _DAMAGED, "result": None}
    try:
        meta = _stored.validate_json(body)
    except ValueError:
        return damaged
    return meta if "status" in meta else damaged
