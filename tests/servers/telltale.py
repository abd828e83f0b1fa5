"""MCP servers that tell secrets wherever a server can say something: over stdio, Streamable HTTP and SSE.

`python telltale.py SECRETS` is one over stdio; `telling_on_web` runs those of the web, at `/mcp` and `/sse`, in threads
of the test. SECRETS is a file of JSON, the secrets by the places where they are told. Plain JSON-RPC of the handshake
era, without the SDK. What the tool `tell` does, its argument `how` says; all that is told beside a secret holds `MARK`.
"""

import base64
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.plain_http import JSON, Message, PlainHandler, PlainServer, event, serving

__all__ = ["MARK", "Telltale", "telling_on_web"]

MARK = "innocent-bystander"
"""What is no secret, and stands beside all of them."""
LARGE_CHARS = 3_000_000
FLOOD_LINES = 300


class Telltale:
    """What a server says.

    Args:
        secrets: By the places where they are told.
    """

    def __init__(self, secrets: dict[str, str]) -> None:
        self._secrets = secrets
        self._has_changed = False

    def answer(self, request: Message, known: list[str]) -> Iterator[Message]:
        """The messages with which it answers, the answer itself last; none if it keeps silent.

        Args:
            known: Secrets of the configuration that it was handed.
        """
        match request["method"]:
            case "initialize":
                yield _result(request, self._introduction(request))
            case "tools/list":
                yield _result(request, {"tools": self._tools()})
            case "tools/call":
                yield from self._call(request, known)
            case method:
                yield {"id": request["id"], "error": {"code": -32601, "message": f"no method {method}"}}

    def _introduction(self, request: Message) -> Message:
        return {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}, "logging": {}},
            "serverInfo": {
                "name": f"{MARK} password={self._secrets['name']}",
                "version": f"1 token={self._secrets['version']}",
            },
            "instructions": f"{MARK}: log in with password: {self._secrets['instructions']}",
        }

    def _tools(self) -> list[Message]:
        anything = {"type": "object", "properties": {"how": {"type": "string"}}}
        added = f" Since today the password is {self._secrets['change']}." if self._has_changed else ""
        return [
            {"name": "tell", "inputSchema": anything, "annotations": {"readOnlyHint": True}},
            {"name": "wait", "inputSchema": anything},
            {"name": f"login-{self._secrets['tool name']}", "inputSchema": anything},
            {
                "name": "log_in",
                "title": f"{MARK} password={self._secrets['title']}",
                "description": f"{MARK}: as admin, password: {self._secrets['description']}.{added}",
                "annotations": {"title": f"token={self._secrets['annotation']}", "readOnlyHint": True},
                "inputSchema": {
                    "type": "object",
                    "description": f"password: {self._secrets['schema']}",
                    "properties": {
                        "password": {
                            "type": "string",
                            "description": f"{MARK}: such as `password={self._secrets['property']}`",
                            "default": self._secrets["default"],
                            "examples": [self._secrets["example"]],
                        },
                        "token": {"enum": ["none", self._secrets["member"]]},
                        "count": {"type": "integer", "description": "how often"},
                    },
                    "required": ["count"],
                },
            },
        ]

    def _call(self, request: Message, known: list[str]) -> Iterator[Message]:
        params = request["params"]
        how: str = params["arguments"].get("how", "text")
        secret = self._secrets.get(how, "")
        match how:
            case "known":
                yield _text(request, f"{MARK}: I was told {' and '.join(known)} in confidence")
            case "known, in an error":
                words = f"{MARK}: nobody comes in with {' or '.join(known)}"
                yield {"id": request["id"], "error": {"code": -32001, "message": words, "data": known}}
            case "known, in a picture":
                picture = b"\x89PNG\r\n\x1a\n" + " and ".join(known).encode()
                data = base64.b64encode(picture).decode()
                yield _content(
                    request,
                    {"type": "image", "mimeType": "image/png", "data": data},
                    {"type": "text", "text": MARK},
                )
            case "text":
                yield _text(request, f"{MARK}\nuser: admin\npassword: {secret}\n")
            case "structured":
                told = {"db": {"password": secret, "dsn": f"postgres://me:{secret}@{MARK}/db"}}
                yield _result(request, {"content": [], "structuredContent": told})
            case "image":
                data = _encode(f"<svg><!-- {MARK} password: {secret} --></svg>")
                yield _content(request, {"type": "image", "mimeType": "image/svg+xml", "data": data})
            case "attachments":
                address = f"https://{MARK}.example/?password={secret}"
                yield _content(
                    request,
                    {"type": "resource", "resource": {"uri": address, "text": f"{MARK} password: {secret}"}},
                    {"type": "resource", "resource": {"uri": address, "blob": _encode(f"{MARK}\ntoken={secret}")}},
                    {"type": "resource_link", "name": "it", "uri": address},
                )
            case "split":
                middle = len(secret) // 2
                yield _content(
                    request,
                    {"type": "text", "text": f"{MARK} password: {secret[:middle]}"},
                    {"type": "text", "text": secret[middle:]},
                )
            case "base64":
                yield _text(request, f"{MARK} {_encode(f'api_key={secret}')} {_encode(json.dumps({'token': secret}))}")
            case "address":
                yield _text(request, f"{MARK}: see https://me:{secret}@example.com/?q=1&access_token={secret}#top")
            case "large":
                yield _text(request, "\n".join(_large(secret)))
            case "refusal":
                yield _result(request, {"content": [{"type": "text", "text": f"{MARK} pwd={secret}"}], "isError": True})
            case "error":
                words = f'{MARK}: OperationalError("password={secret}")\nTraceback: connect(password="{secret}")'
                error = {"code": -32001, "message": words, "data": {"password": secret}}
                yield {"id": request["id"], "error": error}
            case "notifications":
                token = params.get("_meta", {}).get("progressToken", 0)
                said = f"{MARK} password: {secret}"
                progress = {"progressToken": token, "progress": 1, "message": said}
                yield {"method": "notifications/progress", "params": progress}
                yield {"method": "notifications/message", "params": {"level": "error", "data": {"password": secret}}}
                yield _text(request, said)
            case "pattern":
                yield _text(request, f"{MARK} door-code {secret}, ask jane.doe+{secret}@example.com")
            case "nonsense":
                yield _result(request, {"content": f"{MARK} password: {secret}"})
            case "change":
                self._has_changed = True
                yield {"method": "notifications/tools/list_changed"}
                yield _text(request, f"{MARK} changed")
            case _:
                yield _text(request, MARK)


def _large(secret: str) -> Iterator[str]:
    """Lines of a log of some MB, in which it stands at every distance to a border between two pieces."""
    length = 0
    for number in range(LARGE_CHARS):
        what = f"connected with password={secret} after {number} ms" if number % 7 == 0 else "." * (number % 97)
        said = f"2026-03-01T20:00:00Z {MARK} {what}"
        length += len(said) + 1
        if length > LARGE_CHARS:
            return
        yield said


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _result(request: Message, result: Message) -> Message:
    return {"id": request["id"], "result": result}


def _content(request: Message, *content: Message) -> Message:
    return _result(request, {"content": list(content)})


def _text(request: Message, words: str) -> Message:
    return _content(request, {"type": "text", "text": words})


class _Stdio:
    """The server of this process, which is one of a worker."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self._secrets = secrets
        self._telltale = Telltale(secrets)
        self._lock = threading.Lock()
        self._known = [os.environ.get("MY_TOKEN", ""), *(word.partition("=")[2] for word in sys.argv[2:])]
        self._known.append(secrets["broker"])

    def serve(self) -> None:
        self._say(f"{MARK}: connecting with password: {self._secrets['start']}")
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if "id" in request and not self._misbehaves(request):
                for message in self._telltale.answer(request, self._known):
                    self._write(json.dumps({"jsonrpc": "2.0", **message}))

    def _misbehaves(self, request: Message) -> bool:
        """Whether that was all."""
        arguments = request["params"].get("arguments", {}) if request["method"] == "tools/call" else {}
        how = arguments.get("how", "")
        secret = self._secrets.get(how, "")
        match how:
            case "flood":
                for number in range(FLOOD_LINES):
                    self._say(f"{MARK} {number}: password: {secret} {'x' * (number % 50)} token={secret}")
            case "private key":
                key = "\n".join(secret[:40] for _ in range(8))
                self._say(f"{MARK}\n-----BEGIN RSA PRIVATE KEY-----\n{key}\n-----END RSA PRIVATE KEY-----")
            case "garbage":
                self._write(f"{MARK} debug: password: {secret}")
            case "hang":
                self._say(f"{MARK} hangs: password: {secret}")
                return True
            case "death":
                self._say(f"{MARK} panic: password: {secret}")
                os._exit(1)
            case "worker's death":
                os.kill(os.getppid(), signal.SIGKILL)
            case _:
                pass
        return False

    def _write(self, line: str) -> None:
        with self._lock:
            sys.stdout.buffer.write(line.encode() + b"\n")
            sys.stdout.buffer.flush()

    @staticmethod
    def _say(words: str) -> None:
        print(words, file=sys.stderr, flush=True)


class Web(PlainServer):
    """At `/token` it gives an access token; `/broken` does not work."""

    def __init__(self, secrets: dict[str, str]) -> None:
        super().__init__(_Handler)
        self.secrets = secrets
        self.telltale = Telltale(secrets)
        self.stream: queue.Queue[bytes | None] = queue.Queue()


class _Handler(PlainHandler):
    server: Web

    def do_POST(self) -> None:
        body = self.read_body()
        path = self.path.partition("?")[0]
        if path == "/token":
            said = {"access_token": self.server.secrets["access token"], "token_type": "bearer"}
            self.reply(200, json.dumps(said).encode(), JSON)
            return
        request = json.loads(body)
        if path == "/broken":
            self.reply(500, f"{MARK}: door-code {self.server.secrets['broken']}".encode(), JSON)
        elif "id" not in request:
            self.reply(202)
        elif path == "/messages":
            self.reply(202)
            for message in self._answers(request):
                self.server.stream.put(event(message))
        else:
            self._answer(request)

    def do_GET(self) -> None:
        if not self.path.startswith("/sse"):
            self.reply(405)
            return
        self.server.stream = events = queue.Queue()
        self.begin_stream()
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while (data := events.get()) is not None:
            self.wfile.write(data)

    def do_DELETE(self) -> None:
        self.reply(200)

    def _answers(self, request: Message) -> Iterator[Message]:
        """What is told of a request, with what came along with it as what the server was handed."""
        known = [self.headers[name].rpartition(" ")[2] for name in ("Authorization", "X-Key")]
        return self.server.telltale.answer(request, known)

    def _answer(self, request: Message) -> None:
        how = request.get("params", {}).get("arguments", {}).get("how", "")
        secret = self.server.secrets.get(how, "")
        match how:
            case "status":
                self.reply(500, f"{MARK}: cannot log in, password: {secret}".encode(), JSON)
            case "page":
                self.reply(200, f"<h1>{MARK}</h1><!-- password: {secret} -->".encode(), {"Content-Type": "text/html"})
            case "redirect":
                self.reply(307, headers={"Location": f"http://127.0.0.2:9/{MARK}?password={secret}"})
            case _ if request["method"] == "tools/call":
                self.begin_stream()
                for message in self._answers(request):
                    self.wfile.write(event(message))
                self.close_connection = True
            case _:
                (message,) = self._answers(request)
                self.reply_json(message, 404 if "error" in message else 200)


@contextmanager
def telling_on_web(secrets: dict[str, str]) -> Iterator[Web]:
    """The servers at `/mcp` and `/sse`, until they are not needed any more."""
    with serving(Web(secrets)) as server:
        try:
            yield server
        finally:
            server.stream.put(None)


if __name__ == "__main__":
    _Stdio(json.loads(Path(sys.argv[1]).read_text())).serve()
