"""MCP servers that hold state for who asks, by a credential, and count whom they saw in whose session.

Over HTTP in a thread of the test, with sessions of the handshake era; as a program over stdio, with the credential in
the variable TOKEN. A token is `key-AGENT-…`. `whoami` says whose it is and how many calls this session had, `mine` only
whose it is; each token is also shown a tool of its own, `of_AGENT`.
"""

import json
import os
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

if __name__ != "__main__":  # as a program it starts without the folder of the tests
    from tests.servers.plain_http import PlainHandler, PlainServer, serving

    __all__ = ["Keyed", "keyed"]


def owner_of(token: str) -> str:
    return token.split("-")[1]


def answer(request: dict[str, Any], token: str, counted: int) -> dict[str, Any]:
    """The result of a request, or its error."""
    match request["method"]:
        case "initialize":
            info = {"name": "keyed", "version": "1"}
            version = request["params"]["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            names = ["whoami", "mine", "reveal", f"of_{owner_of(token)}"]
            hints = {"readOnlyHint": True}
            tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": hints} for name in names]
            return {"result": {"tools": tools}}
        case "tools/call":
            owner = owner_of(token)
            text = {"reveal": f"the token is {token}", "mine": owner}.get(
                request["params"]["name"], f"{owner} {counted}"
            )
            return {"result": {"content": [{"type": "text", "text": text}]}}
        case method:
            return {"error": {"code": -32601, "message": f"no method {method}"}}


if __name__ != "__main__":

    class Keyed(PlainServer):
        """Attributes:
        tokens: Those that are taken.
        owners: The token with which each open session began.
        calls: How many calls each session had.
        crossed: What came with another token than its session began with.
        opened: How many sessions each agent opened.
        """

        def __init__(self) -> None:
            super().__init__(Handler)
            self.tokens: set[str] = set()
            self.owners: dict[str, str] = {}
            self.calls: Counter[str] = Counter()
            self.opened: Counter[str] = Counter()
            self.crossed: list[str] = []
            self.lock = threading.Lock()

        def open_sessions(self) -> Counter[str]:
            """How many each agent has."""
            with self.lock:
                return Counter(map(owner_of, self.owners.values()))

    class Handler(PlainHandler):
        server: Keyed

        def do_POST(self) -> None:
            request = json.loads(self.read_body())
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.server.tokens:
                self.reply(401)
            elif "id" not in request:
                self.reply(202)
            elif request["method"] == "server/discover":
                self.reply_json({"id": request["id"], **answer(request, token, 0)}, 400)
            elif request["method"] == "initialize":
                session = str(uuid.uuid4())
                with self.server.lock:
                    self.server.owners[session] = token
                    self.server.opened[owner_of(token)] += 1
                self.reply_json({"id": request["id"], **answer(request, token, 0)}, headers={"Mcp-Session-Id": session})
            else:
                self.serve(request, token, self.headers.get("Mcp-Session-Id", ""))

        def serve(self, request: dict[str, Any], token: str, session: str) -> None:
            with self.server.lock:
                owner = self.server.owners.get(session)
                self.server.calls[session] += request["method"] == "tools/call"
                counted = self.server.calls[session]
                if owner is not None and owner_of(owner) != owner_of(token):
                    self.server.crossed.append(f"{owner_of(token)} in the session of {owner_of(owner)}")
            if owner is None:
                self.reply(404)
            else:
                self.reply_json({"id": request["id"], **answer(request, token, counted)})

        def do_GET(self) -> None:
            self.reply(405)

        def do_DELETE(self) -> None:
            with self.server.lock:
                self.server.owners.pop(self.headers.get("Mcp-Session-Id", ""), None)
            self.reply(200)

    @contextmanager
    def keyed() -> Iterator[Keyed]:
        with serving(Keyed()) as server:
            yield server


def main() -> None:
    counted = 0
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            counted += request["method"] == "tools/call"
            reply = {"jsonrpc": "2.0", "id": request["id"], **answer(request, os.environ["TOKEN"], counted)}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
