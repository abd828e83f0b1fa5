"""Web servers that ask who is asking: MCP over HTTP and SSE behind credentials, a token endpoint, redirects elsewhere.

They run in threads of the test and write down every request. Paths: `/mcp/NAME` and `/sse/NAME` are MCP servers that
take what `keys[NAME]` says, `/token/KIND` and `/.well-known/…/KIND` an authorization server that behaves in some way.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.servers.plain_http import JSON, PlainHandler, PlainServer, serving

__all__ = ["Guarded", "Request", "guarded"]

TOOL = {"name": "whoami", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


class Request(NamedTuple):
    """One request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: str

    @property
    def is_call(self) -> bool:
        return '"tools/call"' in self.body


class Guarded(PlainServer):
    """One server on its own port.

    Attributes:
        keys: By the name of an MCP server, what it takes: the name of a header and its value, or `?parameter` and its.
        elsewhere: Where redirects lead to.
        requests: All that came.
        tokens: How many access tokens were given; each names its number.
        token_s: How long those live, None: the endpoint does not say.
        withdrawn: Tokens that are not taken any more.
        gate: While it is clear, no token is given.
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.keys: dict[str, tuple[str, str]] = {}
        self.elsewhere = ""
        self.requests: list[Request] = []
        self.tokens = 0
        self.token_s: Any = 3600
        self.withdrawn: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.released = threading.Event()
        self.lock = threading.Lock()

    def calls(self, path: str) -> list[Request]:
        return [each for each in self.requests if each.path.startswith(path) and each.is_call]

    def asked_for_tokens(self) -> list[Request]:
        return [each for each in self.requests if each.path.startswith("/token")]


class Handler(PlainHandler):
    """Answers by path."""

    server: Guarded

    def do_POST(self) -> None:
        body = self.read_body().decode()
        self.record(body)
        kind, _, name = urlsplit(self.path).path[1:].partition("/")
        match kind:
            case "token":
                self.give_token(name, {key: values[0] for key, values in parse_qs(body).items()})
            case "mcp" if self.is_admitted(name):
                self.serve(json.loads(body))
            case "mcp":
                self.reply(401, b"who are you?")
            case "redirect":
                self.redirect(int(name.partition("/")[0]))
            case _:
                self.reply(404, b"")

    def do_GET(self) -> None:
        self.record("")
        kind, _, name = urlsplit(self.path).path[1:].partition("/")
        match kind:
            case "redirect":
                self.redirect(int(name.partition("/")[0]))
            case "sse":
                self.stream()
            case ".well-known":
                self.tell_metadata(name.rpartition("/")[2])
            case _:
                self.reply(405, b"")

    def do_DELETE(self) -> None:
        self.record("")
        self.reply(200, b"")

    def record(self, body: str) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.command, self.path, headers, body))

    def is_admitted(self, name: str) -> bool:
        if name == "oauth":
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            return token.startswith("token-") and token not in self.server.withdrawn
        where, value = self.server.keys.get(name, ("", ""))
        if where.startswith("?"):
            return parse_qs(urlsplit(self.path).query).get(where[1:]) == [value]
        return self.headers.get(where, "") == value

    def serve(self, request: dict[str, Any]) -> None:
        if "id" not in request:
            self.reply(202, b"")
            return
        result: dict[str, Any] = {}
        match request["method"]:
            case "server/discover":
                result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            case "tools/list":
                result = {"tools": [TOOL], "ttlMs": 0, "cacheScope": "private"}
            case "tools/call":
                result = {"content": [{"type": "text", "text": "somebody"}]}
            case _:
                pass
        message = {"id": request["id"], "result": {"resultType": "complete", **result}}
        # A cookie has no port: the jar would send it to every server of the host.
        self.reply_json(message, headers={"Set-Cookie": "c=cookie-5"})

    def stream(self) -> None:
        """An event stream that names an endpoint on the other server."""
        self.begin_stream()
        self.wfile.write(f"event: endpoint\ndata: {self.server.elsewhere}/mcp/messages\n\n".encode())
        self.wfile.flush()
        self.server.released.wait(30)

    def redirect(self, status: int) -> None:
        self.reply(status, b"", {"Location": f"{self.server.elsewhere}/mcp/elsewhere"})

    def give_token(self, kind: str, form: dict[str, str]) -> None:
        match kind:
            case "hangs":
                self.server.released.wait(30)
                self.close_connection = True
            case "html":
                self.reply(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})
            case "redirects":
                self.reply(307, b"", {"Location": f"{self.server.elsewhere}/token/plain?secret=1"})
            case "refuses":
                said = {"error": "invalid_client", "error_description": f"no client has {form.get('client_secret')}"}
                self.reply(401, json.dumps(said).encode(), JSON)
            case "endless":
                self.begin()
                with suppress(OSError):
                    while not self.server.released.is_set():
                        self.wfile.write(b"x" * 65536)
            case "mac" | "broken":
                fields = {"token_type": "mac"} if kind == "mac" else {"access_token": "two\r\nlines"}
                self.reply(200, json.dumps({"access_token": "t", **fields}).encode(), JSON)
            case status if status.isdigit():
                self.reply(int(status), b"not now")
            case _:
                with self.server.lock:
                    self.server.tokens += 1
                    token = f"token-{self.server.tokens}"
                self.server.gate.wait(30)
                said = {"access_token": token, "token_type": "bearer"}
                if self.server.token_s is not None:
                    said["expires_in"] = self.server.token_s
                self.reply(200, json.dumps(said).encode(), JSON)

    def tell_metadata(self, kind: str) -> None:
        metadata = {"issuer": f"{self.server.url}/{kind}", "token_endpoint": f"{self.server.url}/token/plain"}
        match kind:
            case "good":
                pass
            case "impostor":
                metadata["issuer"] = "https://other.example"
            case "plain":
                metadata["token_endpoint"] = "http://192.0.2.1/token"
            case _:
                self.reply(404, b"")
                return
        self.reply(200, json.dumps(metadata).encode(), JSON)


@contextmanager
def guarded() -> Iterator[Guarded]:
    with serving(Guarded()) as server:
        try:
            yield server
        finally:
            server.gate.set()
            server.released.set()
