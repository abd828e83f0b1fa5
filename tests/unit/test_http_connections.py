"""Connections to a server: each is used for one request after the other, and nothing unasked answers a request."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest

from tarsy_tasks.worker.transport.http_client import ssl_context
from tarsy_tasks.worker.transport.http_connections import Connections

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere"
TIMEOUTS = {"connect": 10, "read": 0.2, "write": 0.2}


class Server:
    """Says something to each request, and what follows a `|` when the response was read. Where that has the word
    `closes`, it closes the connection then.

    Attributes:
        requests: The number of the connection of each request.
        heard: Set when a response was read.
        spoken: Set when it has closed one, or has said what it had to say.
        is_reading: Whether it reads requests at all.
    """

    def __init__(self, *said: bytes, is_reading: bool = True) -> None:
        self._said = said
        self._connections = 0
        self.requests: list[int] = []
        self.heard, self.spoken = asyncio.Event(), asyncio.Event()
        self.tasks: set[asyncio.Task[None] | None] = set()
        self.is_reading = is_reading

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        self._connections += 1
        number = self._connections
        try:
            while self.is_reading:
                await reader.readuntil(b"\r\n\r\n")
                self.requests.append(number)
                said = self._said[len(self.requests) - 1]
                response, _, more = said.partition(b"|")
                writer.write(response)
                await writer.drain()
                if more:
                    await self.heard.wait()
                    writer.write(more)
                    self.spoken.set()
                if b"closes" in said:
                    return
            await self.spoken.wait()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.spoken.set()


@asynccontextmanager
async def connected(server: Server) -> AsyncGenerator[Callable[[bytes, str], Awaitable[bytes]]]:
    """What sends a request to the server, with a body and a header, and returns the body of the response."""
    async with asyncio.timeout(20), await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=2000) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        async with Connections(ssl_context(verify=True, ca_file=None)) as connections:

            async def post(body: bytes = b"", header: str = "x") -> bytes:
                request = httpx2.Request("POST", url, content=body, headers={"X": header})
                request.extensions = {"timeout": TIMEOUTS}
                response = await connections.handle_async_request(request)
                try:
                    return await response.aread()
                finally:
                    await response.aclose()

            yield post
        server.spoken.set()
        await asyncio.gather(*filter(None, server.tasks))


def numbers(*said: bytes) -> list[int]:
    """The connections of as many requests, each of which must be answered with `here`."""
    server = Server(*said)

    async def main() -> None:
        async with connected(server) as post:
            for each in said:
                assert await post(b"", "x") == b"here"
                server.heard.set()
                if b"closes" in each or b"|" in each:
                    await server.spoken.wait()
                    for _ in range(3):  # what is in the socket is read in one iteration of the event loop
                        await asyncio.sleep(0)

    asyncio.run(main())
    return server.requests


def failure(server: Server, body: bytes = b"", header: str = "x") -> type[Exception]:
    async def main() -> type[Exception]:
        async with connected(server) as post:
            with pytest.raises(httpx2.TransportError) as found:
                await post(body, header)
        return type(found.value)

    return asyncio.run(main())


def test_a_connection_is_used_again() -> None:
    assert numbers(OK, b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK, OK) == [1, 1, 1]


def test_small_chunks_of_a_body_leave_others_their_turn() -> None:
    count = 3000
    server = Server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count + b"0\r\n\r\n")

    async def main() -> int:
        looks = turns_of_others = 0
        async with connected(server) as post:
            reading = asyncio.create_task(post(b"", "x"))
            while not reading.done():
                turns_of_others += bool(server.requests)
                looks += 1
                await asyncio.sleep(0)
            assert reading.result() == b"x" * count
        return turns_of_others

    # Without turns for others, what is left is a few: to be woken by what arrives.
    assert asyncio.run(main()) > count / 64


def test_a_connection_that_the_server_closes_is_not() -> None:
    assert numbers(OK.replace(b"OK", b"closes"), OK.replace(b"Con", b"Connection: close\r\nCon", 1), OK) == [1, 2, 3]


def test_what_was_said_unasked_answers_no_request() -> None:
    lies = OK.replace(b"here", b"lies")
    assert numbers(OK + lies, OK) == [1, 2]
    assert numbers(OK + b"|" + lies, OK) == [1, 2]


def test_a_body_without_length_ends_with_its_connection() -> None:
    assert numbers(b"HTTP/1.1 200 closes\r\n\r\nhere", OK) == [1, 2]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"closes", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 closes\r\nContent-Length: 5\r\n\r\nhere", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 closes\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhere\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000 + OK, httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhere", httpx2.ReadTimeout),
        (b"", httpx2.ReadTimeout),
    ],
)
def test_a_response_that_is_not_whole_is_an_error(said: bytes, kind: type[Exception]) -> None:
    assert failure(Server(said)) is kind


def test_a_header_cannot_add_another() -> None:
    server = Server(OK)
    assert failure(server, header="a\r\nY: b") is httpx2.LocalProtocolError
    assert server.requests == []


def test_a_server_that_reads_nothing_is_given_up() -> None:
    assert failure(Server(is_reading=False), body=b"x" * 20_000_000) is httpx2.WriteTimeout
