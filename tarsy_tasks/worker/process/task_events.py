"""Celery's events of tasks, which `celery worker -E` sends and Flower shows.

Owns those that are not sent yet: they outlive their connection, as the calls do. Only the thread of Celery's consumer
sends them, all that came up in one turn of a loop in one message. Stock sends every 24th itself, which would stop the
session loop for as long as Redis does not respond, and it loses what it holds when the connection is replaced.
"""

import asyncio
import logging
import sys
from collections import defaultdict
from typing import Any

from celery.events.dispatcher import EventDispatcher
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

__all__ = ["DISPATCHER", "TaskEventDispatcher", "send_unsent"]

logger = logging.getLogger(__name__)

_GROUP = "task"
_unsent: defaultdict[str, list[dict[str, Any]]] = defaultdict(list, {_GROUP: []})
"""Of this process, by group, as Celery keeps them. Any thread appends; the one that sends removes what it has sent."""


class TaskEventDispatcher(EventDispatcher):
    """Each connection of Celery's consumer has one, and all of them share what is not sent yet."""

    def __init__(self, *args: Any, **options: Any) -> None:
        wake = options.get("on_send_buffered")
        if wake is not None:
            options |= {"buffer_limit": sys.maxsize, "on_send_buffered": self._send_soon}
        stock: Any = super()
        stock.__init__(*args, **options)
        self._group_buffer = _unsent
        self._wake = wake
        self._is_scheduled = False

    def send(self, type: str, *args: Any, **fields: Any) -> None:  # noqa: A002
        """As in Celery. What Redis did not take is sent again with the next event of a task, or heartbeat."""
        stock: Any = super()
        stock.send(type, *args, **fields)
        if self._wake is not None and not type.startswith(_GROUP):
            self._wake()

    def disable(self) -> None:
        """Called when its connection is replaced. Events come up meanwhile, and the next dispatcher sends them."""
        was_enabled = self.enabled
        super().disable()
        self.enabled = was_enabled

    def _send_soon(self) -> None:
        """Called with each event of a task, in any thread."""
        assert self._wake is not None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._wake()
            return
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        assert self._wake is not None
        self._is_scheduled = False
        self._wake()


DISPATCHER = f"{__name__}:{TaskEventDispatcher.__qualname__}"
"""What `dispatcher_cls` of an application's `events` is set to."""


def send_unsent(app: Any) -> None:
    """Send what came up after Celery's consumer had stopped; what Redis does not take at once is lost."""
    if not _unsent[_GROUP]:
        return
    try:
        with app.connection_for_write() as connection:
            rest = app.events.Dispatcher(channel=connection.channel(), buffer_while_offline=False)
            rest.flush()
    except (RedisError, KombuError, OSError) as error:
        logger.warning("the last events of tasks were not sent: %s", error)
