"""An MCP server over stdio that plays what a call asks for: `python -S -E player_stdio.py`.

Plain JSON-RPC of the handshake era, without the SDK. The tools `play` and `replay` (the same, harmless to repeat) take
`steps`, each an object with one key:

    progress     parameters of a progress notification, to which the token is added unless they have one; `infinity`
                 and `huge` stand for numbers, and `half a character` for that
    log          parameters of a log line
    times        how often to do what stands beside it, and `per_s`, how often a second
    wait_for     a gate (`tests.gates`); goes on once it is open
    pause_s      seconds
    die_once     a path; the process ends, unless it exists, which it does from then on

The answer is the `_meta` of the request, as JSON.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

Message = dict[str, Any]

_STDOUT = threading.Lock()
_NUMBERS = {"infinity": float("inf"), "huge": 10**400}
_TOOLS = [
    {
        "name": name,
        "description": "Play.",
        "inputSchema": {"type": "object", "properties": {"steps": {"type": "array"}}},
        "annotations": {"readOnlyHint": is_harmless},
    }
    for name, is_harmless in (("play", False), ("replay", True))
]


def write(message: Message) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with _STDOUT:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def play(request: Message) -> None:
    params: Message = request["params"]
    meta: Message = params.get("_meta", {})
    for step in params["arguments"].get("steps", ()):
        take(step, meta.get("progressToken"))
    content = [{"type": "text", "text": json.dumps(meta)}]
    write({"id": request["id"], "result": {"content": content}})


def take(step: Message, token: Any) -> None:
    began = time.monotonic()
    for number in range(step.get("times", 1)):
        if "per_s" in step:
            time.sleep(max(0.0, began + number / step["per_s"] - time.monotonic()))
        match step:
            case {"progress": params}:
                own = {"progressToken": token} if token is not None else {}
                reached = params.get("progress", number + 1)
                reached = _NUMBERS.get(reached, reached) if isinstance(reached, str) else reached
                said = {"message": "\ud800"} if params.get("message") == "half a character" else {}
                write({"method": "notifications/progress", "params": {**own, **params, **said, "progress": reached}})
            case {"log": params}:
                write({"method": "notifications/message", "params": params})
            case {"wait_for": path}:
                with suppress(FileNotFoundError):
                    Path(path).read_bytes()
            case {"pause_s": seconds}:
                time.sleep(seconds)
            case {"die_once": path} if not Path(path).exists():
                Path(path).touch()
                os._exit(1)
            case _:
                pass


def main() -> None:
    for line in sys.stdin.buffer:
        request: Message = json.loads(line)
        match request:
            case {"id": key, "method": "initialize", "params": {"protocolVersion": version}}:
                info = {"name": "player", "version": "1"}
                capabilities: Message = {"tools": {}, "logging": {}}
                write(
                    {
                        "id": key,
                        "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info},
                    }
                )
            case {"id": key, "method": "tools/list"}:
                write({"id": key, "result": {"tools": _TOOLS}})
            case {"id": _, "method": "tools/call"}:
                threading.Thread(target=play, args=(request,), daemon=True).start()
            case {"id": key, "method": method}:
                write({"id": key, "error": {"code": -32601, "message": f"no method {method}"}})
            case _:
                pass


if __name__ == "__main__":
    main()
