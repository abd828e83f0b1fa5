"""Redis commands from an event loop: those of one iteration of the loop go out in one write.

Owns one connection, opened by redis-py (address, TLS, login, database), its replies, the messages that it subscribes
to, and opening it again when it was lost. Only for commands that may be sent twice: an exchange on a
connection that was lost is tried once more on a new one.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import hiredis
from redis import asyncio as redis_asyncio
from redis.connection import DefaultParser, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["AsyncRedisExchange", "NotSentError", "Receiver", "Subscription"]

_TIMEOUT_S = 5.0
_SLOWEST = 1_000_000
"""Bytes per second that a connection manages at least: what is large has more time."""
_GRACE_S = 1.0
"""For a reply that is late on a connection on which others have just come."""
_WINDOW = 128
"""How many groups of commands may wait for their replies; further ones are not sent yet. When the connection is lost,
nobody knows what became of these."""
_RESP3 = 3
"""The version of Redis' protocol in which other messages may arrive between the replies to commands."""
_HEARD = (b"message", b"invalidate")
_pack: Any = cast("Any", hiredis).pack_command
_Push: Any = cast("Any", hiredis).PushNotification
_parse_error: Any = cast("Any", DefaultParser).parse_error


class NotSentError(RedisConnectionError):
    """The connection was lost before the commands were sent."""


class Subscription(NamedTuple):
    """What a connection hears besides its replies.

    Attributes:
        command: Sent whenever a connection is opened, before any other: `SUBSCRIBE` to a channel, or `CLIENT TRACKING`.
        hear: Called with each message of the channel, or with the list of keys that changed, None for all; must not
            raise.
        lost: Called when an open connection was lost, with the reason; must not raise.
    """

    command: tuple[str, ...]
    hear: Callable[[Any], None]
    lost: Callable[[Exception], None]


class Receiver(Protocol):
    """What replies are given to; a future is one. Its methods are called on the loop, once, and must not raise."""

    def done(self) -> bool:
        """Whether it takes no replies any more."""
        ...

    def set_result(self, result: list[Any], /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class AsyncRedisExchange:
    """Executes groups of commands on one connection, for one event loop.

    Args:
        find_pool: Gives the redis-py pool whose settings the connection takes. Called in a thread, for it may block or
            raise while Redis is unavailable; the pool itself is not used.
        subscription: The connection speaks RESP3 and hears this, too.
        is_eager: What is sent while no reply is awaited goes out at once. That saves an iteration where mostly
            nothing else is sent in the same turn.
    """

    def __init__(
        self, find_pool: Callable[[], Any], subscription: Subscription | None = None, *, is_eager: bool = False
    ) -> None:
        self._find_pool = find_pool
        self._subscription = subscription
        self._is_eager = is_eager
        self._replies: _Replies | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._replies is not None and self._replies.is_open

    async def open(self) -> None:
        """Open the connection, if it is not. Raises as `execute`, or what redis-py raises for a bad address."""
        await self._open()

    async def execute(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands together and return their replies.

        Raises:
            RedisError: The first reply that is an error, a lost connection, or no reply in time.
        """
        replies = self._replies
        if replies is None or not replies.is_open:
            return await (await self._open()).ask(commands)
        try:
            return await replies.ask(commands)
        except (RedisConnectionError, OSError):
            return await (await self._open()).ask(commands)

    def send(self, receiver: Receiver, *commands: tuple[Any, ...]) -> None:
        """Send commands together, once, on the connection that is open. Cheaper than a coroutine that waits for them.

        Args:
            receiver: Gets the replies, or what `execute` raises.
        """
        if self._replies is None:
            receiver.set_exception(NotSentError("the connection was never opened"))
        else:
            self._replies.send(receiver, commands)

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
            try:
                pool = await asyncio.get_running_loop().run_in_executor(None, self._find_pool)
            except RuntimeError as error:  # the program ends, and starts no threads any more
                raise RedisConnectionError(str(error)) from error
            connection = _build_connection(pool, {"protocol": _RESP3} if self._subscription else {})
            try:
                await connection.connect()
                timeout_s = pool.connection_kwargs.get("socket_timeout") or _TIMEOUT_S
                replies = _Replies(connection, timeout_s, self._subscription, is_eager=self._is_eager)
                if self._subscription:
                    await replies.ask((self._subscription.command,))
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            self._replies = replies
            return replies


class _Replies(asyncio.Protocol):
    """An open connection of redis-py, and who waits for its replies, in order. Its transport is used without its
    reader, which would cost a task switch a reply."""

    def __init__(self, connection: Any, timeout_s: float, subscription: Subscription | None, *, is_eager: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)
        self._timeout_s = timeout_s
        self._subscription = subscription
        self._is_eager = is_eager
        self._reader = hiredis.Reader(replyError=_parse_error)
        self._unsent: deque[tuple[Receiver, int, bytes]] = deque()
        """The receiver of each group of commands, how many they are, and the commands."""
        self._is_scheduled = False
        self._waiting: deque[tuple[Receiver, int, float]] = deque()
        """The same of those that are sent, and when their replies are late."""
        self._has_heard = False
        """Whether anything has come since the last look."""
        self._received: list[Any] = []
        """The replies to the first group, so far."""
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = True

    def ask(self, commands: tuple[tuple[Any, ...], ...]) -> "asyncio.Future[list[Any]]":
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.send(future, commands)
        return future

    def send(self, receiver: Receiver, commands: tuple[tuple[Any, ...], ...]) -> None:
        if not self.is_open:
            receiver.set_exception(NotSentError("the connection was lost"))
            return
        self._unsent.append((receiver, len(commands), b"".join(map(_pack, commands))))
        if self._is_scheduled:
            return
        if self._is_eager and not self._waiting:
            self._flush()
        else:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def abort(self, error: Exception) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._transport.abort()
        # redis-py warns of a connection that still has them when it is collected.
        self._connection._reader = self._connection._writer = None
        waiting, self._waiting = self._waiting, deque()
        unsent, self._unsent = self._unsent, deque()
        for receiver, *_ in waiting:
            if not receiver.done():
                receiver.set_exception(error)
        for receiver, *_ in unsent:
            if not receiver.done():
                receiver.set_exception(NotSentError(str(error)))
        if self._subscription:
            self._subscription.lost(error)

    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            # That it is subscribed is the reply to SUBSCRIBE.
            if reply.__class__ is _Push and reply[0] != b"subscribe":
                if self._subscription and reply[0] in _HEARD:
                    self._subscription.hear(reply[-1])
                continue
            if not self._waiting:
                continue
            self._received.append(reply)
            if len(self._received) == self._waiting[0][1]:
                receiver, *_ = self._waiting.popleft()
                _end(receiver, self._received)
                self._received = []
        if self._unsent:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(RedisConnectionError(f"the connection was lost ({exc or 'closed by Redis'})"))

    def _flush(self) -> None:
        self._is_scheduled = False
        late_at = self._loop.time() + self._timeout_s
        out: list[bytes] = []
        while self._unsent and len(self._waiting) < _WINDOW:
            receiver, count, commands = self._unsent.popleft()
            if not receiver.done():  # its waiter was cancelled
                late_at += len(commands) / _SLOWEST
                self._waiting.append((receiver, count, late_at))
                out.append(commands)
        if out:
            self._transport.write(b"".join(out))
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        """A Redis that answers nothing is treated as lost."""
        self._timer = None
        if not self._waiting:
            return
        left_s = self._waiting[0][2] - self._loop.time()
        if left_s <= 0 and self._has_heard:
            left_s = _GRACE_S
        self._has_heard = False
        if left_s <= 0:
            self.abort(RedisTimeoutError(f"no reply from Redis within {self._timeout_s:g} s"))
        else:
            self._timer = self._loop.call_later(left_s, self._look)


def _end(receiver: Receiver, replies: list[Any]) -> None:
    if receiver.done():  # its waiter was cancelled
        return
    for reply in replies:
        if isinstance(reply, RedisError):
            receiver.set_exception(reply)
            return
    receiver.set_result(replies)


def _build_connection(pool: Any, options: dict[str, Any]) -> Any:
    """A connection of redis.asyncio with the settings of a pool that is not asynchronous, and these options."""
    kind: Any = redis_asyncio.Connection
    if issubclass(pool.connection_class, SSLConnection):
        kind = redis_asyncio.SSLConnection
    elif issubclass(pool.connection_class, UnixDomainSocketConnection):
        kind = redis_asyncio.UnixDomainSocketConnection
    known = {name for each in kind.__mro__ for name in inspect.signature(each.__init__).parameters}
    # These are objects of the other, blocking half of redis-py.
    known -= {"parser_class", "retry", "retry_on_error", "redis_connect_func", "event_dispatcher"}
    given = cast("dict[str, Any]", pool.connection_kwargs)
    return kind(**{name: value for name, value in given.items() if name in known} | options)
