"""A proxy to Redis that a test can step into, between two commands of one write."""

import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from tests.tcp_proxy import HangUp, TCPProxy

__all__ = ["HangUp", "RedisProxy", "through"]


def through(proxy: "RedisProxy", url: str) -> str:
    """The URL of the same Redis, through a proxy."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}").geturl()


class RedisProxy(TCPProxy):
    """It knows where a command begins."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self._text, self._act = b"", _pass_on
        self._answered = threading.Event()

    def step_in(self, text: bytes, act: Callable[[], bytes | None]) -> None:
        """Once, before the next command with this text is passed on, and after those before it were answered.

        Args:
            act: Called in a thread of the proxy. What it returns is the answer in place of Redis'; None: the command is
                passed on. It may raise `HangUp`.
        """
        self._act, self._text = act, text

    def answered(self) -> None:
        self._answered.set()

    def request(self, data: bytes, client: socket.socket, upstream: socket.socket) -> bytes:
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


def _pass_on() -> None: ...
