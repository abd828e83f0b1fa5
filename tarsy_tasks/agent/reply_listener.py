"""One thread and one Redis subscription per process, through which all answers arrive.

Owns the task ids and the waits for them. All ids of a process have the same prefix, and their answers are announced in
one channel of that name: so no wait needs a subscription, a connection or a thread, and no process sees the answers of
others. Pub/sub can lose a message, so pending answers are also read from Redis after each reconnect and every few
seconds.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

from tarsy_tasks.agent.per_app import PerApp
from tarsy_tasks.agent.redis_errors import is_refusal
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.errors import BrokerUnavailable

__all__ = ["Meta", "ReplyListener", "listener_of"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

Meta = Mapping[str, Any]
"""What Celery stores for a task: `status`, `result` and more."""

_DAMAGED = "DAMAGED"
_READY_STATES = frozenset({"SUCCESS", "FAILURE", "REVOKED", _DAMAGED})
_POLL_S = 5.0
_RECONNECT_S = 0.25
_FOREIGN_POLL_S = 0.25
"""Answers to calls of other processes (the same idempotency key) are not announced to this one."""


class _Wait(NamedTuple):
    future: "Future[Any]"
    convert: Callable[[Meta], Any]
    deadline: float


class ReplyListener:
    """Receives the stored results of Celery tasks, from its first use until the process ends.

    Attributes:
        clock: The clock of Redis, set before the subscription is announced.
        redis: A redis-py client of the result backend.
    """

    def __init__(self, redis: Any) -> None:
        self.clock = RedisClock()
        self.redis = redis
        # The beginning of a UUID is the same for this process, the rest differs by call.
        self._id_prefix = str(uuid.uuid4())[: keys.TASK_ID_PREFIX_LENGTH]
        self._channel = keys.reply_channel(self._id_prefix)
        self._wakes = keys.wake_channel(self._id_prefix)
        self._lock = threading.Lock()
        self._pending: dict[str, list[_Wait]] = {}
        self._foreign: set[str] = set()
        self._settled = threading.Event()
        self._failure: Exception | None = None
        threading.Thread(target=self._run, name="tarsy-replies", daemon=True).start()

    def new_id(self) -> str:
        """A new task id, a UUID whose answer this listener receives."""
        return self._id_prefix + str(uuid.uuid4())[keys.TASK_ID_PREFIX_LENGTH :]

    def expect(self, task_id: str, convert: Callable[[Meta], T], deadline: float = float("inf")) -> "Future[T]":
        """A future for the answer of a task, as `convert` reads it. Call it before publishing.

        At `deadline`, a monotonic time, the future is dropped.
        """
        future: Future[T] = Future()
        # It cannot be cancelled from here on: an asyncio wait that is cancelled must not take the answer from others.
        future.set_running_or_notify_cancel()
        with self._lock:
            self._pending.setdefault(task_id, []).append(_Wait(future, convert, deadline))
            if not task_id.startswith(self._id_prefix):
                self._foreign.add(task_id)
        return future

    def forget(self, task_id: str, future: "Future[Any]") -> bool:
        """Drop a future. Whether it was still pending: then the caller may set its result."""
        with self._lock:
            waits = self._pending.get(task_id, [])
            left = [wait for wait in waits if wait.future is not future]
            self._set_waits(task_id, left)
            return len(left) < len(waits)

    def poll(self, task_id: str) -> None:
        """Read an answer that may be stored already. The answer to another process's call is polled from now on."""
        body = self.redis.get(keys.result_key(task_id))
        if body is not None:
            self._complete(task_id, _decode(body))
        elif not task_id.startswith(self._id_prefix):
            self.redis.publish(self._wakes, b"")  # wakes the thread, so that it polls

    def wait_until_subscribed(self, timeout_s: float) -> None:
        """Return once answers can arrive. Raises if Redis did not accept the subscription in time, or refuses it."""
        if not self._settled.wait(timeout_s):
            raise BrokerUnavailable(
                f"Redis did not answer within {timeout_s:g} s ({self._failure or 'no connection'}). "
                "The call was not enqueued and the tool did not run. Check TARSY_REDIS_URL and that Redis runs."
            )
        if (failure := self._failure) is not None and is_refusal(failure):
            raise BrokerUnavailable(
                f"Redis refuses this user ({failure}). The call was not enqueued and the tool did not run. Check "
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
                    logger.warning("connection to Redis lost, reconnecting: %s", error)
                self._failure = error
                if is_refusal(error):
                    self._settled.set()
                else:
                    self._settled.clear()
                time.sleep(_RECONNECT_S)
            finally:
                pubsub.close()

    def _receive(self, pubsub: Any) -> None:
        next_poll = time.monotonic() + _POLL_S
        while True:
            message = pubsub.get_message(timeout=max(0.0, next_poll - time.monotonic()))
            # Any agent may publish on the other channel; a message there only wakes this thread.
            if message is None or message["channel"] != self._channel.encode():
                pass
            elif message["type"] == "message":
                meta = _decode(message["data"])
                self._complete(str(meta.get("task_id")), meta)
            elif message["type"] == "subscribe":
                # The first subscription, or one that redis-py renewed after a lost connection.
                self.clock.sync(self.redis)
                self._failure = None
                self._settled.set()
                self._catch_up()
            if time.monotonic() >= next_poll:
                self.clock.sync(self.redis)
                self._catch_up()
                next_poll = time.monotonic() + _POLL_S
            if self._foreign:
                next_poll = min(next_poll, time.monotonic() + _FOREIGN_POLL_S)

    def _catch_up(self) -> None:
        """Read pending answers from Redis: one may have been published while this thread was not subscribed."""
        now = time.monotonic()
        with self._lock:
            for task_id, waits in list(self._pending.items()):
                self._set_waits(task_id, [wait for wait in waits if wait.deadline >= now])
            task_ids = list(self._pending)
        if not task_ids:
            return
        for task_id, body in zip(task_ids, self.redis.mget(map(keys.result_key, task_ids)), strict=True):
            if body is not None:
                self._complete(task_id, _decode(body))

    def _set_waits(self, task_id: str, waits: list[_Wait]) -> None:
        if waits:
            self._pending[task_id] = waits
        else:
            self._pending.pop(task_id, None)
            self._foreign.discard(task_id)

    def _complete(self, task_id: str, meta: Meta) -> None:
        if str(meta["status"]) not in _READY_STATES:
            return
        with self._lock:
            waits = self._pending.get(task_id, [])
            self._set_waits(task_id, [])
        for wait in waits:
            try:
                wait.future.set_result(wait.convert(meta))
            except Exception as error:
                wait.future.set_exception(error)


def _decode(body: bytes) -> Meta:
    with suppress(ValueError):
        meta: Any = json.loads(body)
        if isinstance(meta, dict) and "status" in meta:
            return cast("Meta", meta)
    return {"status": _DAMAGED, "result": None}


listener_of = PerApp(lambda app: ReplyListener(app.backend.client))
"""The one listener of this process for the result backend of an application."""
