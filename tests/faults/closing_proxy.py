"""A TCP proxy that hangs up on its clients when it is told to, as one does whose idle timeout is over."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["ClosingProxy"]

_CHUNK_BYTES = 65536


class ClosingProxy:
    """Listens on a port of its own and passes everything on.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        hangs_up_on_next: Whether it hangs up when the next call of a tool comes, and does not pass it on. A request for
            a stream or a check may come in between.
    """

    def __init__(self, upstream_port: int) -> None:
        self.hangs_up_on_next = False
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()

    @contextmanager
    def running(self) -> Iterator["ClosingProxy"]:
        self._spawn(self._accept)
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self.close_connections()
            for thread in self._threads:
                thread.join(10)

    def close_connections(self) -> None:
        """Hang up on everybody."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

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
            back = threading.Thread(target=self._pass_on, args=(upstream, client, False))
            back.start()
            self._pass_on(client, upstream, True)
            back.join()
            self._open -= {client, upstream}

    def _pass_on(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if is_request and self.hangs_up_on_next and b"tools/call" in data:
                    self.hangs_up_on_next = False
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
