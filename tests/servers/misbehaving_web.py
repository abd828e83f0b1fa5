"""MCP servers over Streamable HTTP and SSE that misbehave, one path a kind: `python misbehaving_web.py PORT`.

The path names transport, moment and kind: `/http/call/status-503` behaves until its tool `act` is called,
`/sse/connect/html` does not even connect. The handshake era without the SDK, so that what goes over the wire is what
stands here. The tool `echo` always behaves.
"""

import json
import queue
import sys
import threading
import uuid
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

from tests.servers.boundless_stdio import ENDLESS_BYTES, FILLER, LONG_DESCRIPTION, VERY_MANY
from tests.servers.invalid_tools import INVALID_TOOLS
from tests.servers.plain_http import JSON, Message, PlainHandler, PlainServer, event

LARGE_BYTES = 20_000_000
SSE_LIMIT_BYTES = 100_000
"""The `max_message_bytes` that the kinds `too-much-…` exceed over SSE."""
SECRET = "hunter2hunter2"
ELSEWHERE = "http://127.0.0.2:9"
ASKS = {"WWW-Authenticate": 'Bearer realm="bank", resource_metadata="https://h/x"'}
HTML = {"Content-Type": "text/html"}
STATUSES: dict[str, tuple[dict[str, str], bytes]] = {
    "status-401": (ASKS, b"who are you?"),
    "rpc-401": (JSON | ASKS, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "who are you?"}}'),
    "status-403": ({}, b"not for you"),
    "status-404": (HTML, b"<h1>no such page</h1>"),
    "status-405": ({}, b"not like this"),
    "status-429": ({"Retry-After": "7"}, b"too often"),
    "status-500": ({}, b"the database is down"),
    "status-503": ({"Retry-After": "70"}, b"too busy"),
    "status-524": ({}, b"a timeout occurred"),
    "gateway-401": (JSON, b'{"error": {"code": 401, "message": "no key"}}'),
}
WITH_SESSIONS = ("forgets-sessions", "clings", "floods")
EMPTY_LINES = b"\n" * 1_000_000
FLOOD = event({"method": "notifications/message", "params": {"level": "info", "data": "flood"}}) * 100
GARBAGE = [
    *(b"data: \xff\xfe", b'data: {"jsonrpc": "2.0", "id":', b"data: []", b"data:", b"what?", b"id: 7"),
    *(b"event: ping\ndata: {}", b"event: endpoint\ndata: http://127.0.0.2:9/", b"retry: soon\n: hm", b""),
]
Stream = queue.Queue[bytes | None]


class Handler(PlainHandler):
    """Answers what it is asked, on SSE in the stream that was opened last on its path, unless the path says otherwise.

    Attributes:
        is_moved: Whether this is the address that the kind `redirects-within` leads to.
    """

    server: "Server"

    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        if is_valid:
            path, _, query = self.path.partition("?")
            self.transport, self.moment, self.kind, *_ = [*path.split("/")[1:], "", "", ""]
            self.is_moved = query == "moved"
        return is_valid

    @property
    def stream(self) -> Stream:
        return self.server.streams[self.moment, self.kind]

    def do_POST(self) -> None:
        request = json.loads(self.read_body())
        is_act = request["method"] == "tools/call" and request["params"]["name"] == "act" and not self.is_moved
        behaves = not is_act and (self.transport == "sse" or self.moment != "connect" or self.is_moved)
        if "id" not in request:
            self.accept()
        elif behaves:
            self.behave(request)
        elif self.misbehave(request):
            pass
        elif self.transport == "http":
            self.misbehave_http(request)
        else:
            self.misbehave_sse(request)

    def do_GET(self) -> None:
        if self.transport == "sse":
            if self.moment == "call" or self.opens():
                self.serve_stream()
        elif self.kind == "floods":
            self.begin_stream()
            self.flood()
        else:
            self.reply(405)

    def do_DELETE(self) -> None:
        if self.kind == "clings":
            threading.Event().wait(30)
        self.reply(200)

    def behave(self, request: Message) -> None:
        if self.transport == "sse":
            self.accept()
            self.stream.put(event(self.answer_to(request)))
            if request["method"] == "tools/call":
                self.server.echoed.set()
            return
        headers: dict[str, str] = {}
        if self.kind in WITH_SESSIONS:
            session = self.headers.get("Mcp-Session-Id")
            if request["method"] == "initialize":
                headers["Mcp-Session-Id"] = session = uuid.uuid4().hex
                self.server.sessions.add(session)
            if session not in self.server.sessions:
                self.reply(404 if session else 400)
                return
        self.reply_json(self.answer_to(request), headers=headers)

    def misbehave(self, request: Message) -> bool:
        """What both transports have in common; false if this is not it."""
        match self.kind:
            case "redirects":
                self.reply(307, headers={"Location": f"{ELSEWHERE}/mcp"})
            case "redirects-within":
                self.reply(307, headers={"Location": f"{self.path}?moved"})
            case "html":
                self.reply(200, b"<h1>It works!</h1>", HTML)
            case "cuts-at-once":
                self.close_connection = True
            case kind if kind in STATUSES:
                headers, body = STATUSES[kind]
                self.reply(int(kind.rpartition("-")[2]), body, headers)
            case _:
                return False
        return True

    def misbehave_http(self, request: Message) -> None:
        match self.kind:
            case "says-too-many-values":
                self.reply_json(self.too_many_values(request))
            case "says-an-endless-line":
                self.begin(200, {**JSON, "Connection": "close"})
                self.say_without_end()
            case "says-an-endless-event":
                self.begin_stream()
                self.wfile.write(b"data: ")
                self.say_without_end()
            case "zips-empty-lines":
                self.begin_stream()
                self.say_empty_lines(self.say)
            case "floods" | "lists-a-long-description":  # on its other stream, and in its list of tools
                self.behave(request)
            case "hangs":
                threading.Event().wait(30)
            case "hangs-in-stream":
                self.begin_stream()
                threading.Event().wait(30)
            case "floods-in-stream":
                self.begin_stream()
                self.flood()
            case "cuts-json":
                self.begin(200, {**JSON, "Content-Length": "1000"})
                self.wfile.write(b'{"jsonrpc": "2.0", "id": ')
                self.close_connection = True
            case "cuts-stream":
                self.begin_stream()
                self.close_connection = True
            case "no-json":
                self.reply(200, b"{ a table and two chairs", JSON)
            case "wrong-json":
                self.reply(200, b"[1, 2, 3]", JSON)
            case "empty":
                self.reply(200, b"", JSON)
            case "too-much-json":
                self.reply_json({"id": request["id"], "result": text("x" * LARGE_BYTES)})
            case "too-much-html":
                self.reply(500, b"x" * LARGE_BYTES, HTML)
            case "too-much-stream":
                self.begin_stream()
                self.wfile.write(event({"id": request["id"], "result": text("x" * LARGE_BYTES)}))
                self.close_connection = True
            case "accepts":
                self.accept()
            case "wrong-id":
                self.reply_json({"id": request["id"] + 1_000, "result": {"content": []}})
            case "forgets-sessions":
                self.server.sessions.clear()
                self.reply(404)
            case "odd-header":
                self.reply_json({"id": request["id"], "result": {"content": []}}, headers={"X-Site": "K\u00fcche"})
            case "secret-500":
                self.reply(500, f"cannot log in, password: {SECRET}".encode())
            case "secret-no-json":
                self.reply(200, f"password: {SECRET}".encode(), JSON)
            case "secret-stream":
                self.begin_stream()
                self.wfile.write(f"event: message\ndata: password: {SECRET}\n\n".encode())
                self.close_connection = True
            case "secret-result":
                self.reply_json({"id": request["id"], "result": {"content": f"password: {SECRET}"}})
            case kind:
                raise LookupError(kind)

    def misbehave_sse(self, request: Message) -> None:
        """First how the POST is answered, then what comes on the stream."""
        answered = event(self.answer_to(request))
        match self.kind:
            case "holds-post":
                self.stream.put(answered)
                threading.Event().wait(30)
            case "waits-in-post":
                self.server.echoed.wait(30)
            case "error-400":
                error = {"id": None, "error": {"code": -32602, "message": "no such colour"}}
                self.reply_json(error, 400)
                return
            case _:
                pass
        self.accept()
        match self.kind:
            case "says-too-many-values":
                self.stream.put(event(self.too_many_values(request)))
            case "says-an-endless-event":
                self.stream.put(b"data: ")
                for _ in range(ENDLESS_BYTES // len(FILLER)):
                    self.stream.put(FILLER)
            case "answers-without-end":
                self.stream.put(b'data: {"jsonrpc": "2.0", "id": %d, "result": {"text": "' % request["id"])
                for _ in range(ENDLESS_BYTES // len(FILLER)):
                    self.stream.put(FILLER)
            case "zips-empty-lines":
                self.say_empty_lines(self.stream.put)
            case "lists-a-long-description":
                self.stream.put(answered)
            case "wrong-id":
                self.stream.put(event({"id": request["id"] + 1_000, "result": {"content": []}}))
            case "waits-in-post":
                self.stream.put(answered)
            case "cuts-stream":
                self.stream.put(None)
            case "cuts-idle-stream":
                self.stream.put(answered)
                self.stream.put(None)
            case "cuts-event":
                self.stream.put(answered[:30])
                self.stream.put(None)
            case "garbage":
                self.stream.put(b"\n\n".join(GARBAGE) + answered.replace(b"still", b"st\xffill"))
            case "splits":
                for byte in answered.replace(b"\n", b"\r"):
                    self.stream.put(bytes([byte]))
            case "floods":
                self.stream.put(answered)
                while True:
                    self.stream.put(FLOOD)
            case kind if kind.startswith("too-much"):
                self.stream.put(b"data: " + too_much(kind, request["id"]) + b"\n\n")
            case kind:
                assert kind in ("answers-nothing", "holds-post"), kind

    def answer_to(self, request: Message) -> Message:
        result: Message
        match request["method"]:
            case "initialize":
                version = "2024-11-05" if self.transport == "sse" else request["params"]["protocolVersion"]
                info = {"name": "zoo", "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("act", "echo")]}
                if self.kind == "lists-invalid-tools":
                    result["tools"][1:1] = INVALID_TOOLS
                elif self.kind == "lists-a-long-description":
                    result["tools"][0]["description"] = LONG_DESCRIPTION
                elif self.kind == "lists-very-many":
                    result["tools"] *= VERY_MANY // 2
            case "tools/call":
                result = text("still here")
            case method:
                return {"id": request["id"], "error": {"code": -32601, "message": f"no method {method}"}}
        return {"id": request["id"], "result": result}

    def opens(self) -> bool:
        """Whether the stream of SSE is opened at all; if not, says why."""
        match self.kind:
            case "hangs":
                self.begin_stream()
                threading.Event().wait(30)
            case "cuts-stream":
                self.begin_stream()
            case kind if kind in ENDPOINTS:
                return True
            case _:
                self.misbehave({})
        return False

    def serve_stream(self) -> None:
        events: Stream = queue.Queue(maxsize=100)
        self.server.streams[self.moment, self.kind] = events
        self.begin_stream()
        self.say(b": welcome\r\n\r\n")
        endpoint = ENDPOINTS.get(self.kind, f"{self.path}/messages")
        self.say(b"event: endpoint\r\ndata: %s\r\n\r\n" % endpoint.encode())
        while (data := events.get()) is not None:
            self.say(data)

    def accept(self) -> None:
        self.reply(202, b"Accepted" if self.transport == "sse" else b"")

    def too_many_values(self, request: Message) -> Message:
        return {"id": request["id"], "result": {"content": text("")["content"] * 500_000}}

    def say_without_end(self) -> None:
        for _ in range(ENDLESS_BYTES // len(FILLER)):
            self.wfile.write(FILLER)

    def say_empty_lines(self, say: Callable[[bytes], object]) -> None:
        for _ in range(ENDLESS_BYTES // len(EMPTY_LINES)):
            say(EMPTY_LINES)

    def say(self, data: bytes) -> None:
        """Write to a stream, compressed if that is the kind: then a gigabyte of empty lines is a megabyte."""
        if self.kind == "zips-empty-lines":
            data = self.zipping.compress(data) + self.zipping.flush(zlib.Z_SYNC_FLUSH)
        self.wfile.write(data)

    def flood(self) -> NoReturn:
        while True:
            self.wfile.write(FLOOD)

    def begin_stream(self) -> None:
        if self.kind == "zips-empty-lines":
            self.begin(200, {"Content-Type": "text/event-stream", "Content-Encoding": "gzip", "Connection": "close"})
            self.zipping = zlib.compressobj(wbits=31)
            return
        super().begin_stream()
        if self.transport == "http":
            self.wfile.write(b": one moment\n\n")


ENDPOINTS = {
    "names-another-origin": f"{ELSEWHERE}/messages?session=secret",
    "names-nonsense": "http://127.0.0.1:messages/",
}


def text(words: str) -> Message:
    return {"content": [{"type": "text", "text": words}]}


def too_much(kind: str, number: Any) -> bytes:
    result = json.dumps(text("x" * SSE_LIMIT_BYTES))
    lines = json.dumps({"content": [{"type": "text", "text": "x"}] * (SSE_LIMIT_BYTES // 30)}).replace("{", "\ndata: {")
    words = {
        "too-much-id-first": f'{{"jsonrpc": "2.0", "id": {number}, "result": {result}}}',
        "too-much-id-last": f'{{"result": {result}, "jsonrpc": "2.0", "id": {number}}}',
        "too-much-in-lines": f'{{"jsonrpc": "2.0", "id": {number}, "result": {lines}}}',
    }
    return words[kind].encode()


class Server(PlainServer):
    """The server.

    Attributes:
        sessions: Ids that it has given out over HTTP and not forgotten.
        streams: The open ones of SSE, by moment and kind.
        echoed: Set by any `echo` over SSE.
    """

    def __init__(self, port: int) -> None:
        super().__init__(Handler, port)
        self.sessions: set[str] = set()
        self.streams: dict[tuple[str, str], Stream] = {}
        self.echoed = threading.Event()


if __name__ == "__main__":
    Server(int(sys.argv[1])).serve_forever()
