"""HTTP/1.1 connections to a server, straight over asyncio.

Owns the connections, their use for one request after the other, and the exceptions of httpx2 that their failures
become. It takes the place of httpx2's own transport, whose layers cost more than all else that a call needs. It knows
no proxies, redirects, cookies or credentials.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import h11
import httpx2

__all__ = ["Connections"]

_IDLE_S = 3.0
"""Below the servers' own limit, 5 s for Node and uvicorn: a request that is sent while the server closes the connection
may or may not arrive.
"""
_MAX_IDLE = 64
_HEAD_BYTES = 100 * 1024
_BUFFERED_BYTES = 64 * 1024
"""When so much was not read yet, the server has to wait."""
_MAX_INFORMATIONAL = 10
_HAPPY_EYEBALLS_S = 0.25
_SMALL_CHUNK_BYTES = 4096
_CHUNKS_PER_TURN = 64
"""Of small chunks, which are read without a wait when they came together; then others have a turn."""

_Origin = tuple[str, str, int]


class Connections(httpx2.AsyncBaseTransport):
    """As many connections as there are requests in flight, each used again for 3 s after its last request."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        tls.set_alpn_protocols(["http/1.1"])
        self._tls = tls
        self._idle: deque[tuple[float, _Connection]] = deque()
        self._open: set[_Connection] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the body of its response is read as it comes. Of the timeouts, `pool` does not count.

        Raises:
            httpx2.TransportError: As httpx2's own transport does.
        """
        timeouts = request.extensions.get("timeout", {})
        origin = _origin_of(request.url)
        connection = self._take_idle(origin) or await self._connect(origin, timeouts.get("connect"))
        try:
            response = await connection.send(request, timeouts.get("write"), timeouts.get("read"))
        except BaseException:
            self._close(connection)
            raise
        return httpx2.Response(
            response.status_code,
            headers=response.headers.raw_items(),
            stream=_Body(connection, timeouts.get("read"), self._put_back),
            request=request,
            extensions={"reason_phrase": bytes(response.reason), "network_stream": connection.transport},
        )

    def _take_idle(self, origin: _Origin) -> "_Connection | None":
        oldest = time.monotonic() - _IDLE_S
        while self._idle:
            idle_since, connection = self._idle.pop()
            if idle_since >= oldest and connection.origin == origin and connection.is_idle:
                return connection
            self._close(connection)
        return None

    def _put_back(self, connection: "_Connection") -> None:
        """Use a connection again if its response was read to the end."""
        if not connection.start_next_cycle():
            self._close(connection)
            return
        now = time.monotonic()
        self._idle.append((now, connection))
        while len(self._idle) > _MAX_IDLE or self._idle[0][0] < now - _IDLE_S:
            self._close(self._idle.popleft()[1])

    async def _connect(self, origin: _Origin, timeout_s: float | None) -> "_Connection":
        scheme, host, port = origin
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(origin),
                    host,
                    port,
                    ssl=self._tls if scheme == "https" else None,
                    happy_eyeballs_delay=_HAPPY_EYEBALLS_S,
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error
        self._open.add(connection)
        return connection

    def _close(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        connection.close()

    async def aclose(self) -> None:
        """Close all connections; requests in flight fail."""
        self._idle.clear()
        for connection in self._open.copy():
            self._close(connection)


def _origin_of(url: httpx2.URL) -> _Origin:
    host = url.raw_host.decode("ascii")
    if url.scheme not in ("http", "https") or not host:
        raise httpx2.UnsupportedProtocol("the address does not begin with http:// or https://, and a host")
    return url.scheme, host, url.port or (443 if url.scheme == "https" else 80)


class _Connection(asyncio.Protocol):
    """One connection.

    Attributes:
        origin: Where it leads.
        transport: What asyncio sends with.
    """

    transport: asyncio.Transport

    def __init__(self, origin: _Origin) -> None:
        self.origin = origin
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._received = bytearray()
        self._is_open = True
        self._is_paused = False
        self._failure: Exception | None = None
        self._reading: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        self._failure = exc
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    # A request and its response.

    @property
    def is_idle(self) -> bool:
        """Whether a request can be sent: the server neither closed the connection nor said anything unasked."""
        return self._is_open and not self._received

    async def send(self, request: httpx2.Request, write_s: float | None, read_s: float | None) -> h11.Response:
        """Send a request and wait for the head of its response."""
        try:
            head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
            text = self._http.send(head) or b""
            if body := await request.aread():
                text += self._http.send(h11.Data(data=body)) or b""
            text += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise httpx2.LocalProtocolError(str(error)) from error
        self.transport.write(text)
        if not self._writable.is_set():
            await self._drain(write_s)
        for _ in range(_MAX_INFORMATIONAL):
            event = await self.next_event(read_s)
            if isinstance(event, h11.Response):
                return event
        raise httpx2.RemoteProtocolError("too many informational responses")

    async def _drain(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._writable.wait()
        except TimeoutError as error:
            raise httpx2.WriteTimeout(str(error)) from error

    async def next_event(self, timeout_s: float | None) -> object:
        """The next part of the response, as h11 has it."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise httpx2.RemoteProtocolError(str(error)) from error
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self._receive(timeout_s))

    async def _receive(self, timeout_s: float | None) -> bytes:
        """What the server sent, b"" at the end."""
        if not self._received and self._is_open:
            self._reading = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._reading
            except TimeoutError as error:
                raise httpx2.ReadTimeout(str(error)) from error
        data = bytes(self._received)
        self._received.clear()
        if self._is_paused and self._is_open:
            self._is_paused = False
            self.transport.resume_reading()
        if not data and self._failure is not None:
            raise httpx2.ReadError(str(self._failure)) from self._failure
        if not data and self._http.their_state is h11.SEND_RESPONSE:
            raise httpx2.RemoteProtocolError("Server disconnected without sending a response.")
        return data

    def start_next_cycle(self) -> bool:
        """Get ready for the next request; false if there cannot be one."""
        is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not is_done or self._http.trailing_data[0] or not self.is_idle:
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        self.transport.abort()


class _Body(httpx2.AsyncByteStream):
    """The body of a response. Its connection can be used again if it was read to the end."""

    def __init__(
        self, connection: _Connection, timeout_s: float | None, put_back: Callable[[_Connection], None]
    ) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._put_back = put_back
        self._is_read = self._is_closed = False
        self._small_chunks = 0

    def __aiter__(self) -> "_Body":
        return self

    async def __anext__(self) -> bytes:
        # Not a generator: who stops reading early would leave it to the loop to close it, in a task.
        if not self._is_read:
            event = await self._connection.next_event(self._timeout_s)
            if isinstance(event, h11.Data):
                chunk = bytes(event.data)
                if len(chunk) < _SMALL_CHUNK_BYTES:
                    self._small_chunks += 1
                    if self._small_chunks % _CHUNKS_PER_TURN == 0:
                        await asyncio.sleep(0)
                return chunk
            self._is_read = True
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._put_back(self._connection)
