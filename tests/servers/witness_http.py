"""MCP servers over Streamable HTTP that fail and recover, and write down on disk what they did.

`python witness_http.py PORT DIRECTORY [--tls CERTIFICATE KEY]`: plain JSON-RPC without the SDK. The path names era,
kind of reply and fault: `/new/json/status-503-seconds`. What fails is the first request of each call, told by its
argument `key`; the next one is served. Each path has a ledger, `DIRECTORY/new-json-status-503-seconds`, with lines
`start` (hands were shaken), `request METHOD KEY`, `run TOOL KEY`, `early KEY` (asked again before Retry-After),
`delete`.
"""

import argparse
import json
import ssl
import threading
import time
import uuid
from collections import Counter, defaultdict
from email.utils import formatdate
from pathlib import Path
from typing import Any

from tests.servers.plain_http import JSON, PlainHandler, PlainServer, event

RETRY_AFTER_S = {"seconds": 1, "date": 2, "late": 3600}
FORGETTING: dict[str, tuple[int, dict[str, Any] | None]] = {
    "forgets-404": (404, None),
    "forgets-terminated": (404, {"code": -32600, "message": "Session terminated"}),
    "forgets-not-found": (404, {"code": -32001, "message": "Session not found"}),
    "forgets-typescript": (400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
}
"""What a server says to a session id that it does not know; the tool `forget` makes it forget all of them. A call whose
key begins with `late` is told only after the tool `release` was called.
"""
RAN_BEFORE = ("status-500", "status-502", "status-503", "cut-headers", "cut-body", "cut-forgets")
ALWAYS = ("status-401", "status-403")
CUT_AFTER = {"cut-headers": 0, "cut-body": 20, "cut-forgets": 0}
HINTS: dict[str, dict[str, Any]] = {
    "look": {"readOnlyHint": True},
    "add": {},
    "count": {},
    "forget": {},
    "linger": {},
    "release": {},
}
"""Each tool's hints. `look` and `add` give their key back; `count` says how often it was called in its session;
`linger` answers when `release` is called.
"""


class Handler(PlainHandler):
    """Answers what it is asked, unless the path says otherwise."""

    server: "Server"

    def do_POST(self) -> None:
        request = json.loads(self.read_body())
        method, params = request["method"], request.get("params", {})
        key = params.get("arguments", {}).get("key", "")
        self.record("request", method, key)
        if "id" not in request:
            self.reply(202)
        elif not self.forgot(request) and not self.fails(request, method, key):
            self.serve(request, method, key)

    def do_GET(self) -> None:
        self.reply(405)

    def do_DELETE(self) -> None:
        self.record("delete")
        self.reply(200)

    @property
    def sessions(self) -> dict[str, int]:
        return self.server.sessions[self.path]

    @property
    def era(self) -> str:
        return self.path.split("/")[1]

    @property
    def fault(self) -> str:
        return self.path.split("/")[3]

    def forgot(self, request: dict[str, Any]) -> bool:
        session = self.headers.get("Mcp-Session-Id")
        if self.era == "new" or request["method"] in ("initialize", "server/discover"):
            return False
        if session in self.sessions:
            return False
        if request.get("params", {}).get("arguments", {}).get("key", "").startswith("late"):
            self.server.released[self.path].wait()
        status, error = FORGETTING.get(self.fault, (404, None))
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode() if error else b""
        self.reply(status, body, JSON if error else {})
        return True

    def fails(self, request: dict[str, Any], method: str, key: str) -> bool:
        moment = "connect" if self.fault.startswith("connect-") else "call"
        fault = self.fault.removeprefix("connect-")
        if not fault.startswith(("status-", "cut-")) or (moment == "call") != (method == "tools/call"):
            return False
        with self.server.lock:
            attempt = self.server.attempts[self.path][key] = self.server.attempts[self.path][key] + 1
            if attempt > 1 and fault not in ALWAYS:
                if time.time() < self.server.not_before[self.path, key]:
                    self.record("early", key)
                return False
        if moment == "call" and fault in RAN_BEFORE:
            self.record("run", request["params"]["name"], key)
        if fault == "cut-forgets":
            self.sessions.clear()
        if fault in CUT_AFTER:
            self.cut({"id": request["id"], "result": {"content": []}}, CUT_AFTER[fault])
        else:
            _, status, *retry = fault.split("-")
            self.reply(int(status), b"not now", self.retry_after(retry[0], key) if retry else {})
        return True

    def retry_after(self, form: str, key: str) -> dict[str, str]:
        wait_s = RETRY_AFTER_S[form]
        # A date has whole seconds.
        not_before = int(time.time()) + wait_s if form == "date" else time.time() + wait_s
        self.server.not_before[self.path, key] = not_before
        return {"Retry-After": formatdate(not_before, usegmt=True) if form == "date" else str(wait_s)}

    def serve(self, request: dict[str, Any], method: str, key: str) -> None:
        headers: dict[str, str] = {}
        result: dict[str, Any]
        match method:
            case "server/discover" if self.era == "new":
                self.record("start")
                result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            case "initialize" if self.era == "old":
                self.record("start")
                headers["Mcp-Session-Id"] = session = uuid.uuid4().hex
                self.sessions[session] = 0
                version, info = request["params"]["protocolVersion"], {"name": "witness", "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                schema = {"type": "object", "properties": {"key": {"type": "string"}}}
                tools = [{"name": name, "inputSchema": schema, "annotations": hints} for name, hints in HINTS.items()]
                result = {"tools": tools, "ttlMs": 0, "cacheScope": "private"}
            case "tools/call":
                result = {"content": [{"type": "text", "text": self.run(request["params"]["name"], key)}]}
            case _:
                error = {"code": -32601, "message": f"no method {method}"}
                self.reply_json({"id": request["id"], "error": error}, 404 if self.era == "new" else 400)
                return
        self.answer({"id": request["id"], "result": {"resultType": "complete", **result}}, headers)

    def run(self, tool: str, key: str) -> str:
        self.record("run", tool, key)
        if tool == "forget":
            self.sessions.clear()
        if tool == "release":
            self.server.released[self.path].set()
        if tool == "linger":
            self.server.released[self.path].wait()
        if tool == "count":
            session = self.headers.get("Mcp-Session-Id", "")
            self.sessions[session] += 1
            return str(self.sessions[session])
        return key

    def answer(self, message: dict[str, Any], headers: dict[str, str]) -> None:
        kind, body = self.body_of(message)
        self.reply(200, body, {"Content-Type": kind, **headers})

    def body_of(self, message: dict[str, Any]) -> tuple[str, bytes]:
        if self.path.split("/")[2] == "json":
            return "application/json", json.dumps({"jsonrpc": "2.0", **message}).encode()
        return "text/event-stream", event(message)

    def cut(self, message: dict[str, Any], after_bytes: int) -> None:
        kind, body = self.body_of(message)
        self.begin(200, {"Content-Type": kind, "Content-Length": str(len(body))})
        self.wfile.write(body[:after_bytes])
        self.close_connection = True

    def record(self, *words: str) -> None:
        self.server.record(self.path.strip("/").replace("/", "-"), *words)


class Server(PlainServer):
    """`sessions` are the ids that it knows, by path, and how often `count` was called in each."""

    def __init__(self, port: int, directory: Path, tls: ssl.SSLContext | None) -> None:
        super().__init__(Handler, port)
        self.directory = directory
        self.tls = tls
        self.sessions: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.attempts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.not_before: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.lock = threading.Lock()
        self.released: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def record(self, ledger: str, *words: str) -> None:
        with (self.directory / ledger).open("a") as file:
            file.write(" ".join(words) + "\n")

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is not None:
            self.record("connections", "connection")
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    options = parser.parse_args()
    tls = None
    if options.tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*options.tls)
    Server(options.port, options.directory, tls).serve_forever()


if __name__ == "__main__":
    main()
