"""An MCP server over stdio that starts in no time, speaks either era, and writes down on disk what it did.

`python -S -E witness_stdio.py LEDGER [options]`: plain JSON-RPC without the SDK. A line of the ledger is `start` or
`run TOOL KEY PID`, with the process id of the worker that it belongs to. A call whose key begins with `held` is not
answered by the first process of a ledger, only by those that follow. Any call may ask for more: `wait_s` before it is
answered, an answer of `length` characters, or the death of the worker (`kills_worker`). SIGUSR1 makes it close its
stdout and live on, SIGUSR2 makes it exit cleanly.
"""

import argparse
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

Message = dict[str, Any]

READ_ONLY = {"readOnlyHint": True}
TOOLS: dict[str, Message] = {
    "look": READ_ONLY,
    "renew": {"idempotentHint": True},
    "add": {},
    "count": {},
    "meet": {},
    "grow": {},
}
"""Each tool's hints. `look`, `renew` and `add` give their key back; `count` says how often it was called in this
process; `meet` answers when the gate that `--gate` names is open (`tests.gates`); `grow` adds a tool.
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "wait_s": {"type": "number"},
        "length": {"type": "integer"},
        "kills_worker": {"type": "boolean"},
    },
}
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"


class Server:
    """One process of the server."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.is_first = not os.path.exists(options.ledger)  # noqa: PTH110  pathlib is slow to import
        self.is_mute = options.mute and not self.is_first and self.count(b"start\n") == options.mute - 1
        self.tools = dict(TOOLS)
        self.counted = 0
        self.listeners: list[str] = []
        self.lock = threading.Lock()
        self.record("start")

    def record(self, *words: str) -> None:
        # One write in append mode: what is written survives a SIGKILL that comes right after.
        file = os.open(self.options.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, " ".join(words).encode() + b"\n")
        os.close(file)

    def count(self, line: bytes) -> int:
        with open(self.options.ledger, "rb") as file:  # noqa: PTH123
            return file.read().count(line)

    def serve(self) -> None:
        if self.is_mute:
            threading.Event().wait()
        if self.options.flood:
            threading.Thread(target=self.flood, daemon=True).start()
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if "id" in request:
                self.handle(request)
            if self.options.stops_reading and request["method"] == "tools/list":
                threading.Event().wait()
        if self.options.lingers:
            threading.Event().wait()

    def handle(self, request: Message) -> None:
        match request["method"]:
            case "server/discover" if self.options.probe == "answers":
                versions, capabilities = ["2026-07-28"], {"tools": {"listChanged": True}}
                self.answer(request, {"supportedVersions": versions, "capabilities": capabilities})
            case "server/discover" if self.options.probe == "kills":
                print("fatal: unknown method server/discover", file=sys.stderr, flush=True)
                sys.exit(1)
            case "server/discover" if self.options.probe == "ignored":
                pass
            case "initialize":
                version, info = request["params"]["protocolVersion"], {"name": "witness", "version": "1"}
                capabilities = {"tools": {"listChanged": True}}
                self.answer(request, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
            case "tools/list":
                entries = [
                    {"name": name, "inputSchema": SCHEMA, "annotations": hints} for name, hints in self.tools.items()
                ]
                self.answer(request, {"tools": entries, "ttlMs": 0, "cacheScope": "private"})
            case "tools/call":
                self.call(request, request["params"]["name"], request["params"]["arguments"])
            case "subscriptions/listen" if self.options.probe == "answers":
                self.listeners.append(request["id"])
                wanted = request["params"]["notifications"]
                about = {"_meta": {SUBSCRIPTION_ID: request["id"]}, "notifications": wanted}
                self.write({"method": "notifications/subscriptions/acknowledged", "params": about})
            case method:
                self.write({"id": request["id"], "error": {"code": -32601, "message": f"no method {method}"}})

    def call(self, request: Message, tool: str, arguments: Message) -> None:
        key: str = arguments.get("key", "")
        self.record("run", tool, key, str(os.getppid()))
        if arguments.get("kills_worker") and not self.options.merciful:
            os.kill(os.getppid(), signal.SIGKILL)
            return
        match tool:
            case "count":
                self.counted += 1
                self.answer_later(request, str(self.counted), arguments.get("wait_s", 0))
            case "meet":
                threading.Thread(target=self.meet, args=[request], daemon=True).start()
            case "grow":
                self.tools["grown"] = READ_ONLY
                self.answer_text(request, "grown")
                self.tell_of_change()
            case _ if key.startswith("held") and self.is_first:
                pass
            case _ if wait_s := arguments.get("wait_s"):
                self.answer_later(request, key, wait_s)
            case _:
                self.answer_text(request, "é" * arguments.get("length", 0) or key)

    def answer_later(self, request: Message, words: str, wait_s: float) -> None:
        if not wait_s:
            self.answer_text(request, words)
            return
        timer = threading.Timer(wait_s, self.answer_text, [request, words])
        timer.daemon = True
        timer.start()

    def meet(self, request: Message) -> None:
        with suppress(FileNotFoundError):
            Path(self.options.gate).read_bytes()
        self.answer_text(request, "met")

    def tell_of_change(self) -> None:
        changed = "notifications/tools/list_changed"
        if not self.listeners:
            self.write({"method": changed})
        for listener in self.listeners:
            self.write({"method": changed, "params": {"_meta": {SUBSCRIPTION_ID: listener}}})

    def flood(self) -> None:
        note = {"method": "notifications/message", "params": {"level": "info", "data": "y"}}
        while True:
            self.write(note)

    def answer_text(self, request: Message, words: str) -> None:
        self.answer(request, {"content": [{"type": "text", "text": words}]})

    def answer(self, request: Message, result: Message) -> None:
        self.write({"id": request["id"], "result": {"resultType": "complete", **result}})

    def write(self, message: Message) -> None:
        with self.lock:
            sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            sys.stdout.buffer.flush()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger")
    parser.add_argument("--probe", choices=["answers", "refused", "kills", "ignored"], default="answers")
    parser.add_argument("--gate", default="")
    parser.add_argument("--flood", action="store_true", help="send notifications as fast as they are taken")
    parser.add_argument("--merciful", action="store_true", help="kill no worker")
    parser.add_argument("--lingers", action="store_true", help="neither a closed stdin nor SIGTERM ends it")
    parser.add_argument("--mute", type=int, default=0, help="which process of the ledger answers nothing, from 2 on")
    parser.add_argument("--stops-reading", action="store_true", help="read nothing after tools/list, once")
    return parser


def main() -> None:
    options = build_parser().parse_args()
    signal.signal(signal.SIGUSR1, lambda *_: os.close(1))
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(0))
    if options.lingers:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = Server(options)
    options.stops_reading &= server.is_first
    server.serve()


if __name__ == "__main__":
    main()
