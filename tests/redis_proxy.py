"""A TCP proxy to Redis that a test can step into, between two commands of one write."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

__all__ = ["HangUp", "RedisProxy", "through"]

_CHUNK_BYTES = 65536


def through(proxy: "RedisProxy", url: str) -> str:
    """The URL of the same Redis, through a proxy."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}").geturl()


class HangUp(Exception):
    """Close the connection."""


class RedisProxy:
    """Listens on a port of its own and passes everything on.

    Attributes:
        port: Where it listens, on 127.0.0.1.
    """

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._text, self._act = b"", _pass_on
        self._answered = threading.Event()

    @contextmanager
    def running(self) -> Iterator["RedisProxy"]:
        self._spawn(self._accept)
        try:
            yield self
        finally:
            for each in (self._listener, *self._open):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for thread in self._threads:
                thread.join(10)

    def step_in(self, text: bytes, act: Callable[[], bytes | None]) -> None:
        """Once, before the next command with this text is passed on, and after those before it were answered.

        Args:
            act: Called in a thread of the proxy. What it returns is the answer in place of Redis'; None: the command is
                passed on. It may raise `HangUp`.
        """
        self._act, self._text = act, text

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
            self._spawn(self._pass_answers, upstream, client)
            with suppress(OSError, HangUp):
                while data := client.recv(_CHUNK_BYTES):
                    upstream.sendall(self._step_in(data, client, upstream))
            for each in (client, upstream):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open -= {client, upstream}

    def _step_in(self, data: bytes, client: socket.socket, upstream: socket.socket) -> bytes:
        """What is still to be passed on."""
        if not self._text or (found := data.find(self._text)) < 0:
            return data
        begin = data.rfind(b"*", 0, found)
        self._text = b""
        if begin:
            self._answered.clear()
            upstream.sendall(data[:begin])
            self._answered.wait(10)
        answer = self._act()
        if answer is None:
            return data[begin:]
        client.sendall(answer)
        return b""

    def _pass_answers(self, upstream: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := upstream.recv(_CHUNK_BYTES):
                client.sendall(data)
                self._answered.set()
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _pass_on() -> None: ...
