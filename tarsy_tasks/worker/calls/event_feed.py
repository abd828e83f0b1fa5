"""The events of one call on their way to its agent: progress, log lines, retries, a deadline that moved.

Owns what of them is published, masked, at most ten times a second, and the state of the call in Redis, which an agent
reads that has lost its connection. A call to whose events nobody listens has no feed. Nothing here delays the MCP
server, waits for a reader, or ends the call; when the call ends, it waits a moment for the last batch to be written.
"""

import asyncio
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from pydantic import ValidationError
from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.call_events import CallLog, CallProgress, EventBatch
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.long_work import ASKED_S, LARGE_CHARS
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["EventFeed", "Extension"]

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.1
_RETRY_S = 1.0
_LAST_S = 1.0
"""How long an answer waits for the last batch to be written."""
_STATE_S = 60
"""How long the state outlives the deadline of its call, should its worker be lost."""
_LONGEST_STATE_S = 24 * 3600
_TEXT_CHARS = 500
_NAME_CHARS = 100
_LINES = 10
"""Of one batch."""
_KEPT_CHARS = 2 * _TEXT_CHARS + 64
"""Of a text, until it is masked: what `mask_start` looks at."""
_LEAST_MOVE_S = 0.05
"""A deadline that moves by less is not worth a new timer."""


class Extension(NamedTuple):
    """What progress may do for a call.

    Attributes:
        window_s: How long the call may take from the last progress on.
        deadline: Until when it may run without; monotonic time, as the next one.
        latest: Beyond this it may not take any longer.
        move: Moves the deadline of the call, to a monotonic time.
    """

    window_s: float
    deadline: float
    latest: float
    move: Callable[[float], None]


class _Progress(NamedTuple):
    reached: float
    total: float | None
    message: str
    at: float


class _Line(NamedTuple):
    level: str
    logger: str
    text: str
    at: float


class EventFeed:
    """The feed of one call in this worker; it is also the `CallListener` of its requests.

    Args:
        delivery: None for a task that no message brought, and for a call that is parked.
        agent: The bound agent that sent a call without a delivery.

    Attributes:
        limit: That of `CallListener`, as are `has_session` and `heard`.
        shown: The last progress of this attempt that was published; None before. Safe to read from any thread.
    """

    def __init__(
        self,
        context: WorkerContext,
        connection: ServerConnection,
        task_id: str,
        delivery: Delivery | None,
        agent: str = "",
    ) -> None:
        self.limit: asyncio.Timeout | None = None
        self.has_session = False
        self.heard: Callable[[], None] = lambda: None
        self.shown: CallProgress | None = None
        self._progress: _Progress | None = None
        agent = keys.agent_of_queue(delivery.queue) if delivery is not None else agent
        self._task_id = task_id
        self._channel = keys.events_channel(task_id, agent)
        self._key = keys.call_state_key(task_id, agent)
        self._redis: AsyncRedisExchange = context.results
        self._clock: RedisClock = context.clock
        self._connection = connection
        self._delivery_count = delivery.count if delivery is not None else 1
        self._since = time.monotonic()
        self._number = 0
        self._attempt = 0
        self._extension: Extension | None = None
        self._latest = inf
        self._deadline: float | None = None
        self._lines: deque[_Line] = deque()
        self._lost_lines = 0
        self._is_new = False
        self._has_state = self._delivery_count > 1
        self._written_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False

    # What the call does.

    def begin_attempt(self, extension: Extension | None) -> None:
        """The call is about to be sent. From the second time on, that is an event."""
        self._attempt += 1
        self._extension = extension
        self.shown = self._progress = None
        if self._attempt > 1 or self._delivery_count > 1:
            self._publish_soon()

    async def find_deadline(self) -> float | None:
        """The deadline to which progress has moved the call in the worker that was lost with it, monotonic time; None
        if it did not, or nobody knows any more.
        """
        try:
            [text] = await self._redis.execute(("GET", self._key))
            state = EventBatch.model_validate_json(text or b"")
        except (RedisError, OSError, ValidationError):
            return None
        offset = time.monotonic() - self._clock.now()
        self._latest = inf if state.until is None else state.until + offset
        if state.deadline is None:
            return None
        self._deadline = state.deadline + offset
        return self._deadline

    async def finish(self, *, keeps_state: bool = False) -> None:
        """The call ends: write what is new, so that it arrives before the answer, within a second.

        Args:
            keeps_state: The call goes on in another worker, or later in this one.
        """
        self._is_closed = True
        self._stop_timer()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                if self._writing is not None:
                    await asyncio.shield(self._writing)
                if self._is_new or (self._has_state and not keeps_state):
                    await self._write(is_last=not keeps_state)

    def close(self, *, keeps_state: bool = False) -> None:
        """As `finish`, for a call that was ended from outside: nothing waits for the last batch."""
        if not self._is_closed:
            self._is_closed = True
            self._stop_timer()
            if self._has_state and not keeps_state:
                self._start_writing(is_last=True)

    # What the server says. Each of these is called up to thousands of times a second.

    def hear_progress(self, params: Mapping[str, Any]) -> bool:
        progress, total = _number_of(params.get("progress")), _number_of(params.get("total"))
        before = -inf if self._progress is None else self._progress.reached
        if progress is None or progress < before or self._is_closed:
            return False
        message = params.get("message")
        text = message[:_KEPT_CHARS] if isinstance(message, str) else ""
        self._progress = _Progress(progress, total, text, time.monotonic())
        self.heard()
        if self._extension is not None and progress > before:
            self._extend(self._extension)
        self._publish_soon()
        return True

    def hear_log(self, params: Mapping[str, Any]) -> bool:
        level = params.get("level")
        if not isinstance(level, str) or "data" not in params or self._is_closed:
            return False
        name, data = params.get("logger"), params["data"]
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        if len(self._lines) == _LINES:
            self._lines.popleft()
            self._lost_lines += 1
        name = name[:_KEPT_CHARS] if isinstance(name, str) else ""
        self._lines.append(_Line(level[:_KEPT_CHARS], name, text[:_KEPT_CHARS], time.monotonic()))
        self.heard()
        self._publish_soon()
        return True

    def _extend(self, extension: Extension) -> None:
        now = time.monotonic()
        deadline = min(now + extension.window_s, extension.latest, self._latest)
        if deadline < max(self._deadline or -inf, extension.deadline) + _LEAST_MOVE_S:
            return
        self._deadline = deadline
        extension.move(deadline)
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + deadline - now)

    # To Redis.

    def _publish_soon(self) -> None:
        self._is_new = True
        if self._timer is None and self._writing is None and not self._is_closed:
            wait_s = max(0.0, self._written_at + _INTERVAL_S - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._start_writing)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_writing(self, *, is_last: bool = False) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().create_task(self._write(is_last=is_last))
        self._writing.add_done_callback(self._wrote)

    def _wrote(self, _: "asyncio.Task[None]") -> None:
        self._writing = None
        if self._is_new:
            self._publish_soon()

    async def _write(self, *, is_last: bool = False) -> None:
        """Write one batch; what cannot be written is left for the next one."""
        self._is_new, self._written_at = False, time.monotonic()
        lines, self._lines = self._lines, deque[_Line]()
        lost, self._lost_lines = self._lost_lines, 0
        try:
            batch = await self._build(lines, lost)
            publish = ("PUBLISH", self._channel, batch.dump())
            if is_last:
                state: tuple[Any, ...] = ("DEL", self._key)
            else:
                self._has_state = True
                state = ("SET", self._key, batch.dump(is_state=True), "EX", self._state_ttl_s())
            await self._redis.execute(state, publish)
        except (RedisError, OSError):
            self._is_new, self._written_at = True, time.monotonic() + _RETRY_S - _INTERVAL_S
            kept = [*lines, *self._lines]
            self._lines = deque(kept[-_LINES:])
            self._lost_lines += lost + len(kept) - len(self._lines)
        except Exception:
            logger.exception("the events of a call of MCP server %s cannot be published", self._connection.server.name)

    async def _build(self, lines: deque[_Line], lost: int) -> EventBatch:
        self._number += 1
        progress = self._progress
        chars = sum(len(line.text) for line in lines) + (len(progress.message) if progress else 0)
        if chars > LARGE_CHARS:
            shown, logs = await self._connection.long_work.run(self._mask, progress, lines, lost, allowed_s=ASKED_S)
        else:
            shown, logs = self._mask(progress, lines, lost)
        if progress is not None and self._progress is not None:
            self.shown = shown
        at = self._clock.at
        until = self._extension.latest if self._extension is not None and self._deadline is not None else None
        return EventBatch(
            task_id=self._task_id,
            since=round(at(self._since), 6),
            number=self._number,
            at=round(self._clock.now(), 6),
            delivery=self._delivery_count,
            attempt=max(1, self._attempt),
            progress=shown,
            deadline=None if self._deadline is None else round(at(self._deadline), 6),
            until=None if until is None else round(at(min(until, self._latest)), 6),
            logs=logs,
        )

    def _mask(
        self, progress: _Progress | None, lines: deque[_Line], lost: int
    ) -> tuple[CallProgress | None, tuple[CallLog, ...]]:
        masker, at = self._connection.masker, self._clock.at

        def mask(text: str, length: int) -> str:
            # Half a character can be neither masked nor sent.
            return masker.mask_start(text.encode("utf-8", "replace").decode(), length)

        shown = None
        if progress is not None:
            text = mask(progress.message, _TEXT_CHARS)
            shown = CallProgress(
                progress=progress.reached, total=progress.total, message=text, at=round(at(progress.at), 6)
            )
        logs = [
            CallLog(
                level=mask(line.level, _NAME_CHARS),
                logger=mask(line.logger, _NAME_CHARS),
                text=mask(line.text, _TEXT_CHARS),
                at=round(at(line.at), 6),
                lost=0 if number else lost,
            )
            for number, line in enumerate(lines)
        ]
        return shown, tuple(logs)

    def _state_ttl_s(self) -> int:
        left_s = self._time_left_s()
        return int(min(max(left_s, 0.0), _LONGEST_STATE_S)) + _STATE_S

    def _time_left_s(self) -> float:
        when = self.limit.when() if self.limit is not None else None
        left_s = 0.0 if when is None else when - asyncio.get_running_loop().time()
        return max(left_s, 0.0 if self._deadline is None else self._deadline - time.monotonic())


def _number_of(value: Any) -> float | None:
    """A finite number; None for anything else that JSON, and what goes beyond it, may have in its place."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
