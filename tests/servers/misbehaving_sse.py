"""MCP servers over SSE (protocol 2024-11-05) that misbehave, one path a kind: `python misbehaving_sse.py PORT`.

The path names when and how: `/call/status-503/sse` behaves until its tool `act` is called, `/connect/html/sse` does not
even connect. Plain JSON-RPC over http.server, without the SDK; the tool `echo` always behaves.
"""

import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIMIT_BYTES = 100_000
"""The `max_message_bytes` that the kinds `too-much-…` exceed."""
STATUSES: dict[str, tuple[dict[str, str], bytes]] = {
    "status-401": ({"WWW-Authenticate": "Bearer"}, b"who are you?"),
    "status-403": ({}, b"not for you"),
    "status-404": ({}, b"no such thing"),
    "status-405": ({}, b"not like this"),
    "status-429": ({"Retry-After": "7"}, b"too often"),
    "status-500": ({}, b"the database is down"),
    "status-503": ({"Retry-After": "7"}, b"too busy"),
}
Message = dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    """Answers what it is asked on the stream that was opened last on the same path, unless the path says otherwise."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        _, moment, kind, _ = self.path.split("/")
        if moment == "connect" and not self.opens(kind):
            return
        events: queue.Queue[bytes | None] = queue.Queue(maxsize=100)
        self.server.streams[f"/{moment}/{kind}"] = events
        self.begin_stream()
        self.wfile.write(b": welcome\r\n\r\n")
        self.wfile.write(b"event: endpoint\r\ndata: %s\r\n\r\n" % self.endpoint(moment, kind).encode())
        while (event := events.get()) is not None:
            self.wfile.write(event)

    def opens(self, kind: str) -> bool:
        """Whether the stream is opened at all; says why not."""
        match kind:
            case "html":
                self.reply(200, {"Content-Type": "text/html"}, b"<h1>It works!</h1>")
            case "redirects":
                self.reply(307, {"Location": "http://127.0.0.2:9/sse"}, b"")
            case "names-no-endpoint":
                self.begin_stream()
                threading.Event().wait(30)
            case "ends-at-once":
                self.begin_stream()
            case "names-another-origin" | "names-nonsense":
                return True
            case _:
                headers, body = STATUSES[kind]
                self.reply(int(kind.removeprefix("status-")), headers, body)
        return False

    def endpoint(self, moment: str, kind: str) -> str:
        match kind:
            case "names-another-origin":
                return "http://127.0.0.2:9/messages?session=secret"
            case "names-nonsense":
                return "http://127.0.0.1:messages/"
            case _:
                return f"/{moment}/{kind}/messages"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, moment, kind, *moved = self.path.split("/")
        stream = self.server.streams[f"/{moment}/{kind}"]
        if "id" not in request:
            self.accept()
        elif request["method"] == "tools/call" and request["params"]["name"] == "act" and "moved" not in moved:
            self.misbehave(kind, request, stream)
        else:
            self.accept()
            stream.put(answer(request))
            if request["method"] == "tools/call":
                self.server.echoed.set()

    def misbehave(self, kind: str, request: Message, stream: queue.Queue[bytes | None]) -> None:
        match kind:
            case "cuts-post":
                self.close_connection = True
            case "holds-post":
                stream.put(answer(request))
                threading.Event().wait(30)
            case "waits-in-post":
                self.server.echoed.wait(30)
                self.accept()
                stream.put(answer(request))
            case "redirects":
                self.reply(307, {"Location": f"{self.path}/moved"}, b"")
            case "redirects-elsewhere":
                self.reply(307, {"Location": "http://127.0.0.2:9/messages"}, b"")
            case "error-400":
                error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no such colour"}}
                self.reply(400, {"Content-Type": "application/json"}, json.dumps(error).encode())
            case "cuts-stream":
                self.accept()
                stream.put(None)
            case "cuts-idle-stream":
                self.accept()
                stream.put(answer(request))
                stream.put(None)
            case "cuts-event":
                self.accept()
                stream.put(answer(request)[:30])
                stream.put(None)
            case "garbage":
                self.accept()
                garbage = [
                    b"data: \xff\xfe",
                    b'data: {"jsonrpc": "2.0", "id":',
                    b"data: []",
                    b"data:",
                    b"what?",
                    b"id: 7",
                ]
                names = [b"event: ping\ndata: {}", b"event: endpoint\ndata: http://127.0.0.2:9/", b"retry: soon\n: hm"]
                stream.put(b"\n\n".join([*garbage, *names, b""]) + answer(request).replace(b"still", b"st\xffill"))
            case "splits":
                self.accept()
                for byte in answer(request).replace(b"\n", b"\r"):
                    stream.put(bytes([byte]))
            case "floods":
                self.accept()
                stream.put(answer(request))
                log = event({"method": "notifications/message", "params": {"level": "info", "data": "flood"}})
                while True:
                    stream.put(log * 100)
            case "answers-nothing":
                self.accept()
            case _ if kind.startswith("too-much"):
                self.accept()
                stream.put(b"data: " + too_much(kind, request) + b"\n\n")
            case _:
                headers, body = STATUSES[kind]
                self.reply(int(kind.removeprefix("status-")), headers, body)

    def accept(self) -> None:
        self.reply(202, {}, b"Accepted")

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.begin({**headers, "Content-Length": str(len(body))}, status)
        self.wfile.write(body)

    def begin_stream(self) -> None:
        self.begin({"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close"})

    def begin(self, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing; the worker's log is what matters."""


def answer(request: Message) -> bytes:
    result: Message
    match request["method"]:
        case "initialize":
            info = {"name": "zoo", "version": "1"}
            result = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("act", "echo")]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "still here"}]}
        case method:
            return event({"id": request["id"], "error": {"code": -32601, "message": f"no method {method}"}})
    return event({"id": request["id"], "result": result})


def event(message: Message) -> bytes:
    return b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


def too_much(kind: str, request: Message) -> bytes:
    number = request["id"]
    result = json.dumps({"content": [{"type": "text", "text": "x" * LIMIT_BYTES}]})
    lines = json.dumps({"content": [{"type": "text", "text": "x"}] * (LIMIT_BYTES // 30)}).replace("{", "\ndata: {")
    words = {
        "too-much-id-first": f'{{"jsonrpc": "2.0", "id": {number}, "result": {result}}}',
        "too-much-id-last": f'{{"result": {result}, "jsonrpc": "2.0", "id": {number}}}',
        "too-much-in-lines": f'{{"jsonrpc": "2.0", "id": {number}, "result": {lines}}}',
    }
    return words[kind].encode()


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1; `streams` are the open ones, by the begin of their path; `echoed` is set by any `echo`."""

    request_queue_size = 512  # a worker connects to all of its servers at once

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.streams: dict[str, queue.Queue[bytes | None]] = {}
        self.echoed = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is none of this server's business."""


if __name__ == "__main__":
    Server(int(sys.argv[1])).serve_forever()
