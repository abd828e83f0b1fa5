"""A TCP proxy that a test can step into; each protocol has one of its own, which knows what to look for."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

__all__ = ["HangUp", "TCPProxy"]

_CHUNK_BYTES = 65536


class HangUp(Exception):
    """Close the connection."""


class TCPProxy:
    """Listens on a port of its own and passes everything on.

    Attributes:
        port: Where it listens, on 127.0.0.1.
    """

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()

    @contextmanager
    def running(self) -> Iterator[Self]:
        self._spawn(self._accept)
        try:
            yield self
        finally:
            _shut(self._listener)
            self._listener.close()
            self.close_connections()
            for thread in self._threads:
                thread.join(10)

    def close_connections(self) -> None:
        """Hang up on everybody."""
        _shut(*self._open)

    def request(self, data: bytes, client: socket.socket, upstream: socket.socket) -> bytes:
        """What to pass on of what a client sent; it may raise `HangUp`."""
        return data

    def answer(self, data: bytes) -> bytes:
        """What to pass on of what the server said; it may raise `HangUp`."""
        return data

    def answered(self) -> None:
        """Some answer was passed on."""

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream_port)) as upstream:
            self._open |= {client, upstream}
            back = threading.Thread(target=self._pass_answers, args=(upstream, client))
            back.start()
            with suppress(OSError, HangUp):
                while data := client.recv(_CHUNK_BYTES):
                    upstream.sendall(self.request(data, client, upstream))
            _shut(client, upstream)
            back.join()
            self._open -= {client, upstream}

    def _pass_answers(self, upstream: socket.socket, client: socket.socket) -> None:
        with suppress(OSError, HangUp):
            while data := upstream.recv(_CHUNK_BYTES):
                client.sendall(self.answer(data))
                self.answered()
        _shut(client, upstream)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
