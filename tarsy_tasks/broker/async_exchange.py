"""Redis commands from an event loop: those of one turn of the loop go out in one write.

Owns one connection, opened by redis-py (address, TLS, login, database), its replies, and opening it again when it was
lost. Only for commands that may be sent twice: an exchange on a connection that was lost is tried once more on a new
one.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis
from redis import asyncio as redis_asyncio
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["AsyncRedisExchange"]

_TIMEOUT_S = 5.0
_NO_SCRIPT = "NOSCRIPT"
_pack: Any = cast("Any", hiredis).pack_command


class AsyncRedisExchange:
    """Executes groups of commands on one connection, for one event loop.

    Args:
        find_pool: Gives the redis-py pool whose settings the connection takes. Called in a thread, for it may block or
            raise while Redis is away; the pool itself is not used.
    """

    def __init__(self, find_pool: Callable[[], Any]) -> None:
        self._find_pool = find_pool
        self._replies: _Replies | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def execute(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands together and return their replies.

        Raises:
            RedisError: The first reply that is an error, a lost connection, or no reply in time.
        """
        replies = self._replies or await self._open()
        try:
            return await replies.ask(commands)
        except (RedisConnectionError, OSError):
            return await (await self._open()).ask(commands)

    def close(self) -> None:
        """Close the connection; what still waits for a reply fails."""
        self._is_closed = True
        if self._replies is not None:
            self._replies.abort(RedisConnectionError("the connection was closed"))

    async def _open(self) -> "_Replies":
        async with self._opening:
            if self._replies is not None and self._replies.is_open:
                return self._replies
            if self._is_closed:
                raise RedisConnectionError("the connection was closed")
            pool = await asyncio.get_running_loop().run_in_executor(None, self._find_pool)
            connection = _build_connection(pool)
            await connection.connect()
            timeout_s = pool.connection_kwargs.get("socket_timeout") or _TIMEOUT_S
            self._replies = _Replies(connection, timeout_s)
            return self._replies


class _Replies(asyncio.Protocol):
    """An open connection, and who waits for its replies, in order.

    Args:
        connection: That of redis-py. Its transport is used without its reader, which would cost a task switch a reply.
    """

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader()
        self._waiting: deque[_Group] = deque()
        self._out: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = True

    def ask(self, commands: tuple[tuple[Any, ...], ...]) -> "asyncio.Future[list[Any]]":
        if not self.is_open:
            raise RedisConnectionError("the connection was lost")
        group = _Group(self._loop.create_future(), len(commands), self._loop.time())
        self._waiting.append(group)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += map(_pack, commands)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)
        return group.future

    def abort(self, error: Exception) -> None:
        self.is_open = False
        self._transport.abort()
        # redis-py warns of a connection that still has them when it is collected.
        self._connection._reader = self._connection._writer = None
        while self._waiting:
            self._waiting.popleft().fail(error)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while self._waiting:
            reply = self._reader.gets()
            if reply is False:
                return
            group = self._waiting[0]
            group.replies.append(reply)
            if len(group.replies) == group.size:
                self._waiting.popleft().end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(RedisConnectionError(f"the connection was lost ({exc or 'closed by Redis'})"))

    def _flush(self) -> None:
        if self.is_open:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _look(self) -> None:
        """A Redis that answers nothing is treated as lost."""
        self._timer = None
        if not self._waiting:
            return
        left_s = self._waiting[0].asked_at + self._timeout_s - self._loop.time()
        if left_s <= 0:
            self.abort(RedisTimeoutError(f"no reply from Redis within {self._timeout_s:g} s"))
        else:
            self._timer = self._loop.call_later(left_s, self._look)


class _Group:
    """Commands that were sent together."""

    __slots__ = ("asked_at", "future", "replies", "size")

    def __init__(self, future: "asyncio.Future[list[Any]]", size: int, asked_at: float) -> None:
        self.future, self.size, self.asked_at = future, size, asked_at
        self.replies: list[Any] = []

    def end(self) -> None:
        if self.future.done():  # its waiter was cancelled
            return
        for reply in self.replies:
            if isinstance(reply, hiredis.ReplyError):
                text = str(reply)
                self.future.set_exception(NoScriptError(text) if text.startswith(_NO_SCRIPT) else ResponseError(text))
                return
        self.future.set_result(self.replies)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _build_connection(pool: Any) -> Any:
    """A connection of redis.asyncio with the settings of a pool that is not asynchronous."""
    kind: Any = redis_asyncio.Connection
    if issubclass(pool.connection_class, SSLConnection):
        kind = redis_asyncio.SSLConnection
    elif issubclass(pool.connection_class, UnixDomainSocketConnection):
        kind = redis_asyncio.UnixDomainSocketConnection
    known = {name for each in kind.__mro__ for name in inspect.signature(each.__init__).parameters}
    # These are objects of the other, blocking half of redis-py.
    known -= {"parser_class", "retry", "retry_on_error", "redis_connect_func", "event_dispatcher"}
    given = cast("dict[str, Any]", pool.connection_kwargs)
    return kind(**{name: value for name, value in given.items() if name in known})
