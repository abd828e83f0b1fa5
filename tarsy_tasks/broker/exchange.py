"""A few Redis commands in one round trip, without what redis-py 8 puts around each pipeline.

Owns connections that it took from a pool and does not return. A `Pipeline` borrows a connection, checks its arguments,
polls its socket and keeps statistics for every execution, which costs three times the exchange itself; a worker does
three per call. Only for commands that may be sent twice: when a connection is cut, they are sent again on a new one.
"""

import os
import time
from collections import deque
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

__all__ = ["RedisExchange"]

_IDLE_LIMIT = 16
_IDLE_S = 10.0


class RedisExchange:
    """Executes groups of commands on connections of its own, made by a redis-py pool. Safe to share between threads;
    after a fork the child opens its own."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: deque[tuple[float, Any]] = deque()
        self._process = os.getpid()

    def close_idle(self) -> None:
        """Close unused connections; new ones are opened when they are needed."""
        with suppress(IndexError):
            while True:
                self._close(self._idle.pop()[1])

    def execute(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands together and return their replies.

        Raises:
            RedisError: As redis-py's own commands do; the first reply that is an error, or a lost connection.
        """
        if self._process != os.getpid():
            # After a fork both processes would read from the same sockets. The pool handles that by itself.
            self._process, self._idle = os.getpid(), deque()
        try:
            _, connection = self._idle.pop()
        except IndexError:
            connection = self._pool.get_connection()
        try:
            try:
                replies = _exchange(connection, commands)
            except (RedisConnectionError, OSError):
                # It may have been cut while it was idle; if Redis is gone, the second attempt fails.
                connection.disconnect()
                replies = _exchange(connection, commands)
        except BaseException:
            # Replies that still arrive would be mistaken for the replies to the next commands.
            self._close(connection)
            raise
        self._keep(connection)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    def _keep(self, connection: Any) -> None:
        """Keep a connection for the next exchange. After Redis was frozen there are too many: those that were idle for
        the longest time are closed.
        """
        now = time.monotonic()
        self._idle.append((now, connection))
        with suppress(IndexError):  # other threads take connections meanwhile
            while len(self._idle) > _IDLE_LIMIT or self._idle[0][0] < now - _IDLE_S:
                self._close(self._idle.popleft()[1])

    def _close(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)


def _exchange(connection: Any, commands: tuple[tuple[Any, ...], ...]) -> list[Any]:
    connection.send_packed_command(connection.pack_commands(commands))
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies
