"""MCP servers over stdio that misbehave, one class a kind: `python misbehaving_stdio.py exits-at-once`.

Plain JSON-RPC of the handshake era, without the SDK, so that what goes over the wire is what stands here. Each kind
overrides the step that it gets wrong; its tool `act` is the one that hurts, `echo` always behaves.
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

Message = dict[str, Any]

LARGE_BYTES = 20_000_000
SECRET = "hunter2hunter2"
ENCODED_SECRET = base64.b64encode(f"user: admin\npassword: {SECRET}\n".encode()).decode()
ATTACHMENT = {"uri": f"file:///etc/app?password={SECRET}", "mimeType": "text/plain", "blob": ENCODED_SECRET}
GRANDCHILD = "grandchild of tarsy-tasks' tests"
"""Stands on the command line of the process that `StartsGrandchild` starts."""
GRANDCHILD_COMMAND = [sys.executable, "-c", "import signal; signal.pause()", GRANDCHILD]
_STDOUT = threading.Lock()


class Server:
    """A server that does everything right."""

    def serve(self) -> None:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if "id" not in request:
                continue
            match request["method"]:
                case "initialize":
                    self.initialize(request)
                case "tools/list":
                    self.list_tools(request)
                case "tools/call" if request["params"]["name"] == "act":
                    self.act(request)
                case "tools/call":
                    self.echo(request)
                case _:
                    self.ask(request)

    def ask(self, request: Message) -> None:
        """A request about something else than tools."""
        error = {"code": -32601, "message": f"no method {request['method']}"}
        self.write({"id": request["id"], "error": error})

    def initialize(self, request: Message) -> None:
        version = request["params"]["protocolVersion"]
        info = {"name": type(self).__name__, "version": "1"}
        self.answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})

    def list_tools(self, request: Message) -> None:
        self.answer(request, {"tools": [tool("act"), tool("echo")]})

    def act(self, request: Message) -> None:
        self.answer(request, text("still here"))

    def echo(self, request: Message) -> None:
        self.answer(request, text(request["params"]["arguments"]["text"]))

    def answer(self, request: Message, result: Message) -> None:
        self.write({"id": request["id"], "result": result})

    def write(self, message: Message) -> None:
        self.write_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write_bytes(self, line: bytes) -> None:
        with _STDOUT:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def tool(name: str) -> Message:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "description": f"{name} something", "inputSchema": schema}


def text(words: str) -> Message:
    return {"content": [{"type": "text", "text": words}]}


def say(words: str) -> None:
    """Last words, on stderr."""
    print(words, file=sys.stderr, flush=True)


def wait_for_ever() -> NoReturn:
    while True:
        threading.Event().wait()


class ExitsAtOnce(Server):
    def serve(self) -> None:
        say("fatal: the licence has expired")
        sys.exit(3)


class ExitsInHandshake(Server):
    def initialize(self, request: Message) -> None:
        say("fatal: no such protocol")
        sys.exit(4)


class ExitsAfterHandshake(Server):
    def list_tools(self, request: Message) -> None:
        say("fatal: the tools are not at home")
        sys.exit(5)


class Hangs(Server):
    def initialize(self, request: Message) -> None:
        say("waiting for the database")


class FloodsStderr(Server):
    """Writes long lines as fast as they are taken, and never reads."""

    def serve(self) -> None:
        while True:
            os.write(2, (b"flood " * 300 + b"\n") * 100)


class FloodsStderrBesideItsAnswers(Server):
    """Writes the shortest lines as fast as they are taken, as `yes >&2` does, and answers all the while."""

    def serve(self) -> None:
        threading.Thread(target=self.flood, daemon=True).start()
        super().serve()

    def flood(self) -> None:
        while True:
            os.write(2, b"y\n" * 50_000)


class FloodsNotifications(Server):
    """Once its tool `act` has been called it writes notifications as fast as they are taken, beside its answers."""

    def act(self, request: Message) -> None:
        super().act(request)
        threading.Thread(target=self.flood, daemon=True).start()

    def flood(self) -> None:
        log = {"method": "notifications/message", "params": {"level": "info", "data": "flood"}}
        while True:
            self.write_bytes((json.dumps({"jsonrpc": "2.0", **log}).encode() + b"\n") * 100)


class FloodsStdout(Server):
    """Writes short lines that are no JSON-RPC as fast as they are taken, and never reads."""

    def serve(self) -> None:
        while True:
            self.write_bytes(b"y\n" * 50_000)


class FloodsStdoutWithoutLineEnd(Server):
    def serve(self) -> None:
        while True:
            self.write_bytes(b"x" * 100_000)


class Garbage(Server):
    """Puts lines that are no JSON-RPC around every message, and a byte that is not UTF-8 into its text."""

    def act(self, request: Message) -> None:
        self.answer(request, text("done"))

    def write_bytes(self, line: bytes) -> None:
        garbage = b'Listening ...\n\xff\xfe\x00\x80\n\n{"jsonrpc": "2.0", "id":\n[]\nnull\n{"jsonrpc": "2.0"}\n'
        super().write_bytes(garbage + line.replace(b"done", b"st\xffill here") + garbage)


class WrongId(Server):
    def act(self, request: Message) -> None:
        self.answer({"id": request["id"] + 1_000}, text("for somebody else"))


class AnswersTwice(Server):
    def act(self, request: Message) -> None:
        self.answer(request, text("first"))
        self.answer(request, text("second"))


class TooMuchIdFirst(Server):
    def act(self, request: Message) -> None:
        self.answer(request, text("x" * LARGE_BYTES))


class TooMuchIdLast(Server):
    def act(self, request: Message) -> None:
        body = json.dumps({"result": text("x" * LARGE_BYTES), "id": request["id"], "jsonrpc": "2.0"})
        self.write_bytes(body.encode() + b"\n")


class TooMuchIdBetween(Server):
    """The id stands where nobody finds it: between two results that are too long."""

    def act(self, request: Message) -> None:
        filler = "x" * (LARGE_BYTES // 2)
        body = json.dumps({"_meta": filler, "id": request["id"], "result": text(filler), "jsonrpc": "2.0"})
        self.write_bytes(body.encode() + b"\n")


class AnswersNoResult(Server):
    """The answer is JSON-RPC, but no result of a tool call."""

    def act(self, request: Message) -> None:
        self.answer(request, {"content": "not a list"})


class PromisesAPattern(Server):
    """Its result does not match the pattern that it promised, which takes Python's own engine hours to find out."""

    def list_tools(self, request: Message) -> None:
        output = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
        self.answer(request, {"tools": [tool("act") | {"outputSchema": output}, tool("echo")]})

    def act(self, request: Message) -> None:
        self.answer(request, {"content": [], "structuredContent": {"a": "a" * 50 + "!"}})


class ListsTooMuch(Server):
    def list_tools(self, request: Message) -> None:
        self.answer(request, {"tools": [tool("act") | {"description": "x" * LARGE_BYTES}]})


class SaysTooManyParts(Server):
    def act(self, request: Message) -> None:
        self.answer(request, {"content": text("")["content"] * 30_000})


class SaysTooManyValues(Server):
    """As many empty parts as fit into a message."""

    def act(self, request: Message) -> None:
        self.answer(request, {"content": text("")["content"] * 500_000})


class ListsTooMany(Server):
    def list_tools(self, request: Message) -> None:
        self.answer(request, {"tools": [tool("act")] * 5_000})


class ListsLongSchemas(Server):
    def list_tools(self, request: Message) -> None:
        schema = {"type": "object", "description": "x" * 50_000}
        self.answer(request, {"tools": [tool(f"act{number}") | {"inputSchema": schema} for number in range(100)]})


class PagesForEver(Server):
    """Every page of tools/list has a fresh cursor."""

    pages = count()

    def list_tools(self, request: Message) -> None:
        number = next(self.pages)
        self.answer(request, {"tools": [tool(f"tool{number}")], "nextCursor": f"page{number}"})


class PagesInCircles(Server):
    def list_tools(self, request: Message) -> None:
        self.answer(request, {"tools": [tool("act")], "nextCursor": "again"})


class DoesOneThingAtATime(Server):
    """Reads nothing until the gate (`tests.gates`) that its tool `act` gets as an argument is open."""

    def act(self, request: Message) -> None:
        Path(request["params"]["arguments"]["text"]).read_bytes()
        super().act(request)


class DiesInMidCall(Server):
    def act(self, request: Message) -> None:
        say("panic: index out of range")
        os.kill(os.getpid(), signal.SIGKILL)


class ClosesStdout(Server):
    """Closes its stdout in mid-call, but lives on; an attempt to answer would put a traceback below its last words."""

    def act(self, request: Message) -> None:
        os.close(1)
        say("nobody listens to me any more")
        sys.stdin.buffer.read()


class ClosesStdin(Server):
    """Closes its stdin after an answer, but lives on, also after SIGTERM."""

    def act(self, request: Message) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().act(request)
        os.close(0)
        say("I have heard enough")
        wait_for_ever()


class IgnoresTermination(Server):
    """Neither a closed stdin nor SIGTERM ends it."""

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().serve()
        wait_for_ever()


class StartsGrandchild(Server):
    """Starts a process that inherits its pipes and outlives it."""

    def serve(self) -> None:
        subprocess.Popen(GRANDCHILD_COMMAND)
        super().serve()


class StartsDetachedGrandchild(Server):
    """Starts a process with a session of its own, which no signal to the server's process group reaches."""

    def serve(self) -> None:
        subprocess.Popen(GRANDCHILD_COMMAND, start_new_session=True)
        super().serve()


class StartsDaemon(Server):
    """Starts a process that is nobody's child by now and has a session of its own; `act` tells its id."""

    def serve(self) -> None:
        start = f"subprocess.Popen({GRANDCHILD_COMMAND!r}, stdout=subprocess.DEVNULL, start_new_session=True)"
        command = [sys.executable, "-c", f"import subprocess; print({start}.pid)"]
        self.daemon = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        super().serve()

    def act(self, request: Message) -> None:
        self.answer(request, text(self.daemon))


class NeverReads(Server):
    """Stops reading once its tools are listed."""

    def list_tools(self, request: Message) -> None:
        super().list_tools(request)
        wait_for_ever()


class TellsSecrets(Server):
    """A password in the result, in a structured value, in an error, in garbage, and in its last words."""

    def list_tools(self, request: Message) -> None:
        names = ("act", "refuse", "fail", "garble", "die", "split", "attach")
        self.answer(request, {"tools": [tool(name) for name in names]})

    def serve(self) -> None:
        self.say_it()
        super().serve()

    def act(self, request: Message) -> None:
        result = text(f"user: admin\npassword: {SECRET}\n")
        self.answer(request, result | {"structuredContent": {"db": {"password": SECRET, "dsn": f"password={SECRET}"}}})

    def answer(self, request: Message, result: Message) -> None:
        match request.get("params", {}).get("name"):
            case "refuse":
                super().answer(request, text(f'cannot log in with {{"password": "{SECRET}"}}') | {"isError": True})
            case "fail":
                message = f"cannot log in, password: {SECRET}"
                self.write(
                    {"id": request["id"], "error": {"code": -32001, "message": message, "data": {"password": SECRET}}}
                )
            case "garble":
                self.write_bytes(f"debug: password: {SECRET}\n".encode())
                super().answer(request, {"content": f"password: {SECRET}"})
            case "die":
                self.say_it()
                sys.exit(1)
            case "split":
                parts = [f"user: admin\npassword: {SECRET[:7]}", f"{SECRET[7:]} is old"]
                super().answer(request, {"content": [part for each in parts for part in text(each)["content"]]})
            case "attach":
                super().answer(request, {"content": [{"type": "resource", "resource": ATTACHMENT}]})
            case _:
                super().answer(request, result)

    def say_it(self) -> None:
        say(f"connecting with password: {SECRET}")


KINDS = {re.sub("(?<!^)(?=[A-Z])", "-", kind.__name__).lower(): kind for kind in [Server, *Server.__subclasses__()]}

if __name__ == "__main__":
    KINDS[sys.argv[1]]().serve()
