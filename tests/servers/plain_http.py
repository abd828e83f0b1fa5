"""What the HTTP servers of the tests share: JSON-RPC over http.server, without the SDK, quiet, on 127.0.0.1."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

__all__ = ["JSON", "Message", "PlainHandler", "PlainServer", "event", "serving"]

Message = dict[str, Any]
JSON = {"Content-Type": "application/json"}


class PlainServer(ThreadingHTTPServer):
    """Listens on a port of 127.0.0.1; 0: on any that is free."""

    request_queue_size = 512  # a worker connects to all of its servers at once
    daemon_threads = True

    def __init__(self, handler: type["PlainHandler"], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class PlainHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for the acknowledgement of its headers

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.begin(status, {**(headers or {}), "Content-Length": str(len(body))})
        self.wfile.write(body)

    def reply_json(self, message: Message, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """A JSON-RPC message as the whole body."""
        self.reply(status, json.dumps({"jsonrpc": "2.0", **message}).encode(), {**JSON, **(headers or {})})

    def begin(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def begin_stream(self) -> None:
        self.begin(200, {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close"})

    def log_message(self, *_: Any) -> None:
        """Logs nothing: the log of the worker is what matters."""


S = TypeVar("S", bound=PlainServer)


def event(message: Message) -> bytes:
    """A JSON-RPC message as an event of a stream."""
    return b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


@contextmanager
def serving(server: S) -> Iterator[S]:
    """The server, in a thread of this process."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
