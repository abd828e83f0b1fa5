"""A web server that receives alerts, and answers them well or badly."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Receiver", "receiver"]


class Receiver(ThreadingHTTPServer):
    """Answers with the given statuses, the last one for ever; 0 stands for no answer at all."""

    def __init__(self, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = statuses
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?token=t0psecret"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
        status = self.server.statuses[min(len(self.server.received), len(self.server.statuses)) - 1]
        if status == 0:
            self.server.released.wait(60)
            return
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiver(*statuses: int) -> Iterator[Receiver]:
    with Receiver(list(statuses)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()
