"""An MCP server over stdio with more resources than fit on a page: `python library.py [KIND]`.

Plain JSON-RPC of the handshake era, as `misbehaving_stdio`. Kinds: `--tools-only` has no resources; `--endless` lists
the same page for ever; `--huge` answers each read with `HUGE_BYTES`; `--ledger FILE` writes down what is read, and in
the first process of that file a read of `HELD` is not answered.
"""

import base64
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from misbehaving_stdio import SECRET, Message, Server

PAGES, PER_PAGE = 3, 40
HUGE_BYTES = 200 * 1024 * 1024
HELD = "book://held"
BLOBS = {"book://secret-blob": f"password: {SECRET}\n".encode(), "book://large": b"\0" * 5_000_000}
TEXTS = {"book://secret": f"password: {SECRET}"}


class Library(Server):
    def __init__(self, options: list[str]) -> None:
        self.options = options
        self.ledger = Path(options[options.index("--ledger") + 1]) if "--ledger" in options else None
        self.is_first = self.ledger is not None and not self.ledger.exists()
        if self.ledger is not None:
            self.ledger.touch()

    def initialize(self, request: Message) -> None:
        version = request["params"]["protocolVersion"]
        has_resources = "--tools-only" not in self.options
        capabilities: Message = {"tools": {}, **({"resources": {}} if has_resources else {})}
        info = {"name": "library", "version": "1"}
        self.answer(request, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})

    def ask(self, request: Message) -> None:
        match request["method"]:
            case "resources/list" if "--tools-only" not in self.options:
                self.list_resources(request)
            case "resources/templates/list" if "--tools-only" not in self.options:
                template = {"uriTemplate": "book://{shelf}/{title}", "name": "any"}
                self.answer(request, {"resourceTemplates": [template]})
            case "resources/read" if "--tools-only" not in self.options:
                self.read(request)
            case _:
                super().ask(request)

    def list_resources(self, request: Message) -> None:
        page = int((request.get("params") or {}).get("cursor", 0))
        books = [book(f"{page}-{number}") for number in range(PER_PAGE)]
        following = 1 if "--endless" in self.options else page + 1 if page + 1 < PAGES else None
        self.answer(request, {"resources": books, **({"nextCursor": str(following)} if following else {})})

    def read(self, request: Message) -> None:
        uri = request["params"]["uri"]
        if self.ledger is not None:
            with self.ledger.open("a") as file:
                file.write(f"{uri}\n")
        if uri == HELD and self.is_first:
            threading.Event().wait()
        if "--huge" in self.options:
            self.write_huge(request, uri)
        elif uri in BLOBS:
            self.give(request, {"uri": uri, "blob": base64.b64encode(BLOBS[uri]).decode()})
        elif uri == "book://parts":
            parts = [{"uri": f"{uri}/{number}", "text": text} for number, text in ((1, "one"), (2, "two"))]
            self.give(request, *parts, {"uri": f"{uri}/3", "blob": "AAAA"})
        elif uri.startswith("book://"):
            self.give(request, {"uri": uri, "mimeType": "text/plain", "text": TEXTS.get(uri, uri)})
        else:
            error = {"code": -32002, "message": f"Resource not found: {uri}"}
            self.write({"id": request["id"], "error": error})

    def give(self, request: Message, *contents: Message) -> None:
        self.answer(request, {"contents": [*contents]})

    def write_huge(self, request: Message, uri: str) -> None:
        head = f'{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {{"contents": [{{"uri": "{uri}", "text": "'
        self.write_bytes(head.encode())
        for _ in range(HUGE_BYTES // 65536):
            self.write_bytes(b"x" * 65536)
        self.write_bytes(b'"}]}}\n')


def book(name: str) -> Message:
    return {
        "uri": f"book://{name}",
        "name": f"book {name}",
        "title": "A book",
        "mimeType": "text/plain",
        "size": 7,
        "annotations": {"audience": ["user"], "priority": 0.5},
    }


if __name__ == "__main__":
    Library(sys.argv[1:]).serve()
