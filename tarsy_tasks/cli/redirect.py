"""The redirect address of a sign-in: a page on this machine, to which the browser is sent (RFC 8252).

Owns the port, and waiting for one request. It answers nothing else, and what it says contains nothing of the request.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

__all__ = ["RedirectPage", "find_free_port"]

_PATH = "/callback"
_LONGEST_LINE = 16 * 1024
_READ_S = 10.0
_DONE = "Signed in, or not: tarsy-tasks says which. You can close this page."
_UNKNOWN = "This is not the answer to the sign-in that tarsy-tasks waits for."


def find_free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class RedirectPage:
    """Waits on 127.0.0.1 for the browser. Open it, and use it as a context manager.

    Args:
        port: 0: any that is free.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_answer: Callable[[str], bool] = lambda _: False

    @staticmethod
    def address_at(port: int) -> str:
        """The redirect address with a port."""
        return f"http://127.0.0.1:{port}{_PATH}"

    async def open(self) -> None:
        """Listen. Raises `OSError` if the port is taken."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=_LONGEST_LINE)
        self._port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> "RedirectPage":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()  # its connections end with the loop; from Python 3.12 on, `wait_closed` waits for them

    @property
    def address(self) -> str:
        """The redirect address."""
        return self.address_at(self._port)

    async def wait(self, timeout_s: float) -> str:
        """The address that the browser was sent to.

        Raises:
            TimeoutError: It did not come.
        """
        return await asyncio.wait_for(self._answer, timeout_s)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A browser may keep another connection open until the loop ends, and Python 3.11 logs a traceback for a handler
        # that is cancelled.
        ends = (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with suppress(*ends, asyncio.CancelledError):
            async with asyncio.timeout(_READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
            path = target.partition("?")[0]
            address = f"http://127.0.0.1:{self._port}{target}"
            is_ours = method == "GET" and path == _PATH and self.is_answer(address)
            status, text = ("200 OK", _DONE) if is_ours else ("404 Not Found", _UNKNOWN)
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n"
                f"Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n{text}".encode()
            )
            await writer.drain()
            if is_ours and not self._answer.done():
                self._answer.set_result(address)
        writer.close()
