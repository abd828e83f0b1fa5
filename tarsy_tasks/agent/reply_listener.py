"""One thread and one Redis subscription per process, through which all answers arrive.

Owns the task ids and what waits for them. All ids of a process begin alike, and their answers are announced in one
channel of that name: no subscription, connection or thread per wait, and none that would show the answers of others.
Pub/sub may lose a message, so whatever is pending is also read from Redis after each reconnect and every few seconds.
"""

import json
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.errors import BrokerUnavailable

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["ReplyListener", "is_refusal", "listener_of"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

Meta = Mapping[str, Any]
"""What Celery stores for a task: `status`, `result` and more."""

_DAMAGED = "DAMAGED"
_READY_STATES = frozenset({"SUCCESS", "FAILURE", "REVOKED", _DAMAGED})
_POLL_S = 5.0
_RECONNECT_S = 0.25
_STRANGER_POLL_S = 0.25
"""Answers to calls of other processes (the same idempotency key) are not announced to this one."""


class ReplyListener:
    """Receives the stored results of Celery tasks, from its first use until the process ends.

    Args:
        redis: A redis-py client of the result backend.

    Attributes:
        clock: The clock of that Redis, set before the subscription is announced.
        redis: That client.
    """

    def __init__(self, redis: Any) -> None:
        self.clock = RedisClock()
        self.redis = redis
        # The beginning of a random UUID is this process's own, the rest a call's.
        self._id_prefix = str(uuid.uuid4())[: keys.TASK_ID_PREFIX_LENGTH]
        self._channel = keys.reply_channel(self._id_prefix)
        self._wakes = keys.wake_channel(self._id_prefix)
        self._lock = threading.Lock()
        self._pending: dict[str, list[_Wait]] = {}
        self._strangers: set[str] = set()
        self._settled = threading.Event()
        self._failure: Exception | None = None
        self._refusal: Exception | None = None
        threading.Thread(target=self._run, name="tarsy-replies", daemon=True).start()

    def new_id(self) -> str:
        """A new task id, a UUID whose answer this reader will see."""
        return self._id_prefix + str(uuid.uuid4())[keys.TASK_ID_PREFIX_LENGTH :]

    def expect(self, task_id: str, convert: Callable[[Meta], T], deadline: float = float("inf")) -> "Future[T]":
        """A future for the answer of a task. Call it before publishing.

        Args:
            convert: Turns what Celery stored into the future's value.
            deadline: Monotonic time after which nobody waits; the answer is forgotten then.
        """
        future: Future[T] = Future()
        # From here on nobody can cancel it: an asyncio wait that is cancelled must not take the answer from others.
        future.set_running_or_notify_cancel()
        with self._lock:
            self._pending.setdefault(task_id, []).append(_Wait(future, convert, deadline))
            if not task_id.startswith(self._id_prefix):
                self._strangers.add(task_id)
        return future

    def forget(self, task_id: str, future: "Future[Any]") -> bool:
        """Nobody waits for this answer any more.

        Returns:
            Whether it was still waited for: then its future belongs to the caller now.
        """
        with self._lock:
            waits = self._pending.get(task_id, [])
            left = [wait for wait in waits if wait.future is not future]
            self._keep(task_id, left)
            return len(left) < len(waits)

    def look(self, task_id: str) -> None:
        """Read an answer that may be there already; one of another process is looked for again and again."""
        body = self.redis.get(keys.result_key(task_id))
        if body is not None:
            self._resolve(task_id, body)
        elif not task_id.startswith(self._id_prefix):
            self.redis.publish(self._wakes, b"")  # wakes the reader, which has to poll from now on

    def wait_until_subscribed(self, timeout_s: float) -> None:
        """Return once answers can arrive.

        Raises:
            BrokerUnavailable: Redis did not take the subscription in time, or never will of this user.
        """
        if not self._settled.wait(timeout_s):
            raise BrokerUnavailable(
                f"Redis did not answer within {timeout_s:g} s ({self._failure or 'no connection'}). "
                "The call was not enqueued and the tool did not run. Check TARSY_REDIS_URL and that Redis is up."
            )
        if self._refusal is not None:
            raise BrokerUnavailable(
                f"Redis refuses this user ({self._refusal}). The call was not enqueued and the tool did not run. Check "
                "user and password in TARSY_REDIS_URL, and the rules of that user (docs/security.md)."
            )

    def _run(self) -> None:
        while True:
            pubsub = self.redis.pubsub()
            try:
                pubsub.subscribe(self._wakes, self._channel)
                self._receive(pubsub)
            except Exception as error:
                if self._pending:
                    logger.warning("lost Redis, reconnecting: %s", error)
                self._failure = error
                self._refusal = error if is_refusal(error) else None
                if self._refusal is None:
                    self._settled.clear()
                else:
                    self._settled.set()
                time.sleep(_RECONNECT_S)
            finally:
                pubsub.close()

    def _receive(self, pubsub: Any) -> None:
        next_poll = time.monotonic() + _POLL_S
        while True:
            message = pubsub.get_message(timeout=max(0.0, next_poll - time.monotonic()))
            # On the other channel other agents may speak, too: what they say there only wakes.
            if message is None or message["channel"] != self._channel.encode():
                pass
            elif message["type"] == "message":
                self._hear(message["data"])
            elif message["type"] == "subscribe":
                # The first subscription, or one that redis-py renewed by itself after a lost connection.
                self.clock.sync(self.redis)
                self._refusal = None
                self._settled.set()
                self._catch_up()
            if time.monotonic() >= next_poll:
                self.clock.sync(self.redis)
                self._catch_up()
                next_poll = time.monotonic() + _POLL_S
            if self._strangers:
                next_poll = min(next_poll, time.monotonic() + _STRANGER_POLL_S)

    def _catch_up(self) -> None:
        """Read what is pending from Redis: its message may have been published while nobody listened."""
        now = time.monotonic()
        with self._lock:
            for task_id, waits in list(self._pending.items()):
                self._keep(task_id, [wait for wait in waits if wait.deadline >= now])
            task_ids = list(self._pending)
        if not task_ids:
            return
        for task_id, body in zip(task_ids, self.redis.mget(map(keys.result_key, task_ids)), strict=True):
            if body is not None:
                self._resolve(task_id, body)

    def _keep(self, task_id: str, waits: "list[_Wait]") -> None:
        if waits:
            self._pending[task_id] = waits
        else:
            self._pending.pop(task_id, None)
            self._strangers.discard(task_id)

    def _hear(self, body: bytes) -> None:
        """What was announced; what cannot be read is read again where it is stored."""
        with suppress(ValueError, TypeError, KeyError):
            meta = json.loads(body)
            self._end(str(meta["task_id"]), meta, str(meta["status"]))

    def _resolve(self, task_id: str, body: bytes) -> None:
        """What is stored."""
        try:
            meta = json.loads(body)
            status = str(meta["status"])
        except (ValueError, TypeError, KeyError):
            meta, status = {"status": _DAMAGED, "result": None}, _DAMAGED
        self._end(task_id, meta, status)

    def _end(self, task_id: str, meta: Meta, status: str) -> None:
        if status not in _READY_STATES:
            return
        with self._lock:
            waits = self._pending.get(task_id, [])
            self._keep(task_id, [])
        for wait in waits:
            wait.resolve(meta)


def is_refusal(error: BaseException) -> bool:
    """Whether Redis knows who asks, or who does not say so, and will not do it."""
    from redis.exceptions import AuthenticationError, NoPermissionError

    return isinstance(error, (AuthenticationError, NoPermissionError))


@dataclass(slots=True)
class _Wait:
    future: "Future[Any]"
    convert: Callable[[Meta], Any]
    deadline: float

    def resolve(self, meta: Meta) -> None:
        try:
            self.future.set_result(self.convert(meta))
        except Exception as error:
            self.future.set_exception(error)


_readers = weakref.WeakKeyDictionary["Celery", ReplyListener]()
_readers_lock = threading.Lock()


def listener_of(app: "Celery") -> ReplyListener:
    """The one reader of this process for the result backend of an application."""
    with _readers_lock:
        reader = _readers.get(app)
        if reader is None:
            reader = _readers[app] = ReplyListener(app.backend.client)
        return reader


def _forget_readers() -> None:
    """A forked child has none of the threads, and its parent's ids."""
    global _readers, _readers_lock
    _readers = weakref.WeakKeyDictionary["Celery", ReplyListener]()
    _readers_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_readers)
