"""MCP servers over Streamable HTTP that misbehave, one path a kind: `python misbehaving_http.py PORT`.

The path names when and how: `/call/status-503` behaves until its tool `act` is called, `/connect/hangs` never does.
Plain JSON-RPC of the handshake era over http.server, without the SDK; the tool `echo` always behaves.
"""

import json
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn

LARGE_BYTES = 20_000_000
SECRET = "hunter2hunter2"
STATUSES = {
    "status-401": ({"WWW-Authenticate": "Bearer"}, b"who are you?"),
    "status-403": ({}, b"not for you"),
    "status-404": ({"Content-Type": "text/html"}, b"<h1>no such page</h1>"),
    "status-500": ({}, b"the database is down"),
    "status-503": ({"Retry-After": "70"}, b"too busy"),
    "status-524": ({}, b"a timeout occurred"),
    "gateway-401": ({"Content-Type": "application/json"}, b'{"error": {"code": 401, "message": "no key"}}'),
    "redirects": ({"Location": "http://127.0.0.2:9/mcp"}, b""),
}


class Handler(BaseHTTPRequestHandler):
    """Answers what it is asked, unless the path says otherwise."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        _, moment, kind = self.path.partition("?")[0].split("/")
        is_act = request.get("method") == "tools/call" and request["params"]["name"] == "act"
        if "id" not in request:
            self.reply(202, {}, b"")
        elif moment == "connect" or is_act:
            self.misbehave(kind, request)
        else:
            self.behave(request, kind)

    def do_GET(self) -> None:
        if self.path.endswith("/floods"):
            self.begin_stream()
            self.flood()
        self.reply(405, {}, b"")

    def flood(self) -> NoReturn:
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "flood"}}
        while True:
            self.wfile.write((b"event: message\ndata: " + json.dumps(log).encode() + b"\n\n") * 100)

    def do_DELETE(self) -> None:
        if self.path.endswith("/clings"):
            threading.Event().wait(30)
        self.reply(200, {}, b"")

    def behave(self, request: dict[str, Any], kind: str) -> None:
        headers: dict[str, str] = {}
        if kind in ("forgets-sessions", "clings", "floods"):
            session = self.headers.get("Mcp-Session-Id")
            if request["method"] == "initialize":
                headers["Mcp-Session-Id"] = session = uuid.uuid4().hex
                self.server.sessions.add(session)
            if session not in self.server.sessions:
                self.reply(404 if session else 400, {}, b"")
                return
        result: dict[str, Any]
        match request["method"]:
            case "initialize":
                version, info = request["params"]["protocolVersion"], {"name": "zoo", "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("act", "echo")]}
            case "tools/call":
                result = {"content": [{"type": "text", "text": "still here"}]}
            case method:
                self.answer({"id": request["id"], "error": {"code": -32601, "message": f"no method {method}"}})
                return
        self.answer({"id": request["id"], "result": result}, headers)

    def misbehave(self, kind: str, request: dict[str, Any]) -> None:
        match kind:
            case "floods":  # on its other stream
                self.behave(request, kind)
            case "redirects-within" if self.path.endswith("?moved"):
                self.behave(request, kind)
            case "redirects-within":
                self.reply(307, {"Location": f"{self.path}?moved"}, b"")
            case "hangs":
                threading.Event().wait(30)
            case "hangs-in-stream":
                self.begin_stream()
                threading.Event().wait(30)
            case "floods-in-stream":
                self.begin_stream()
                self.flood()
            case "cuts-json":
                self.begin({"Content-Type": "application/json", "Content-Length": "1000"})
                self.wfile.write(b'{"jsonrpc": "2.0", "id": ')
                self.close_connection = True
            case "cuts-stream":
                self.begin_stream()
                self.close_connection = True
            case "cuts-at-once":
                self.close_connection = True
            case "no-json":
                self.reply(200, {"Content-Type": "application/json"}, b"{ a table and two chairs")
            case "wrong-json":
                self.reply(200, {"Content-Type": "application/json"}, b"[1, 2, 3]")
            case "empty":
                self.reply(200, {"Content-Type": "application/json"}, b"")
            case "html":
                self.reply(200, {"Content-Type": "text/html"}, b"<h1>It works!</h1>")
            case "too-much-json":
                self.answer({"id": request["id"], "result": {"content": [{"type": "text", "text": "x" * LARGE_BYTES}]}})
            case "too-much-html":
                self.reply(500, {"Content-Type": "text/html"}, b"x" * LARGE_BYTES)
            case "too-much-stream":
                self.begin_stream()
                result = {"content": [{"type": "text", "text": "x" * LARGE_BYTES}]}
                self.event({"id": request["id"], "result": result})
                self.close_connection = True
            case "accepts":
                self.reply(202, {}, b"")
            case "wrong-id":
                self.answer({"id": request["id"] + 1_000, "result": {"content": []}})
            case "forgets-sessions":
                self.server.sessions.clear()
                self.reply(404, {}, b"")
            case "odd-header":
                self.answer({"id": request["id"], "result": {"content": []}}, {"X-Site": "K\u00fcche"})
            case "secret-500":
                self.reply(500, {}, f"cannot log in, password: {SECRET}".encode())
            case "secret-no-json":
                self.reply(200, {"Content-Type": "application/json"}, f"password: {SECRET}".encode())
            case "secret-stream":
                self.begin_stream()
                self.wfile.write(f"event: message\ndata: password: {SECRET}\n\n".encode())
                self.close_connection = True
            case "secret-result":
                self.answer({"id": request["id"], "result": {"content": f"password: {SECRET}"}})
            case _:
                headers, body = STATUSES[kind]
                self.reply(307 if kind == "redirects" else int(kind.rpartition("-")[2]), headers, body)

    def answer(self, message: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.reply(200, {"Content-Type": "application/json", **(headers or {})}, body)

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.begin({**headers, "Content-Length": str(len(body))}, status)
        self.wfile.write(body)

    def begin(self, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def begin_stream(self) -> None:
        self.begin({"Content-Type": "text/event-stream", "Connection": "close"})
        self.wfile.write(b": one moment\n\n")

    def event(self, message: dict[str, Any]) -> None:
        self.wfile.write(b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n")

    def log_message(self, *_: Any) -> None:
        """Says nothing; the worker's log is what matters."""


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1; `sessions` are the ids that it has given out and not forgotten."""

    request_queue_size = 512  # a worker connects to all of its servers at once

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.sessions: set[str] = set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is none of this server's business."""


if __name__ == "__main__":
    Server(int(sys.argv[1])).serve_forever()
