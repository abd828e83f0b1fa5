"""An MCP server over stdio that tries to get out of its sandbox: plain JSON-RPC, without the SDK.

Each tool is one way; it answers with what it got, or with `refused: ` and the error.
"""

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

Message = dict[str, Any]

_IPC_CREAT = 0o1000
_PTRACE_ATTACH = 16
_IO_URING_SETUP, _UNSHARE, _NEW_USER = 425, 272 if os.uname().machine == "x86_64" else 97, 0x10000000
_CHUNK = 64 * 1024 * 1024


def read(target: str) -> str:
    with open(target, "rb") as file:  # noqa: PTH123
        return file.read(100_000).decode(errors="replace") or "nothing"


def write(target: str) -> str:
    with open(target, "a") as file:  # noqa: PTH123
        file.write("it was here")
    return "written"


def empty(target: str) -> str:
    os.truncate(target, 0)
    return "emptied"


def remove(target: str) -> str:
    os.unlink(target)  # noqa: PTH108
    return "removed"


def connect(target: str) -> str:
    host, port = target.split(":")
    with socket.create_connection((host, int(port)), timeout=5):
        return "connected"


def connect_unix(target: str) -> str:
    """Also with a socket that was made as one of a pair."""
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as found:
        found.connect(target)
    return "connected"


def connect_unix_directly(target: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        found.connect(target)
    return "connected"


def ring(target: str) -> str:
    """io_uring opens files and sockets past a filter."""
    del target
    return _call(_IO_URING_SETUP, 4, ctypes.create_string_buffer(120))


def memory(target: str) -> str:
    """The memory of another process, at any place where it has some."""
    with open(f"/proc/{target}/maps") as file:  # noqa: PTH123
        start = int(file.readline().split("-")[0], 16)
    with open(f"/proc/{target}/mem", "rb") as file:  # noqa: PTH123
        file.seek(start)
        return f"read {len(file.read(100))} bytes"


def trace(target: str) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_ATTACH, int(target), None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return "attached"


def share(target: str) -> str:
    """What System V's calls share with all processes of the user, by the name of the call."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = {"shmget": (1, 4096), "msgget": (1,), "semget": (1, 1)}
    # Of others, by the small numbers that their ids are; with ways and names of which there is none.
    arguments = (*made[target], _IPC_CREAT | 0o600) if target in made else (0, None, 0, 0, 0)
    if getattr(libc, target)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), target)
    return "shared"


def kill(target: str) -> str:
    os.kill(int(target), signal.SIGCONT)
    return "signalled"


def fork(target: str) -> str:
    """As many processes as it gets, each of which goes on; slowly enough for the other tests on this machine."""
    del target
    while True:
        os.fork()
        select.select((), (), (), 0.05)


def crowd(target: str) -> str:
    """So many processes, which do nothing, for longer than it takes to count them."""
    for _ in range(int(target)):
        if not os.fork():
            signal.pause()
    select.select((), (), (), 5)
    return f"has {target}"


def allocate(target: str) -> str:
    """10 GB, in the given number of processes, with memory that is shared or not."""
    kind, processes = target.split(":")
    for _ in range(int(processes) - 1):
        if not os.fork():
            break
    held: list[Any] = []
    for _ in range(10 * 1024 // 64 // int(processes)):
        if kind == "shared":
            held.append(mmap.mmap(-1, _CHUNK))
            for page in range(0, _CHUNK, 4096):
                held[-1][page] = 1
        else:
            held.append(b"x" * _CHUNK)
    return f"has {len(held)} times 64 MB"


def spin(target: str) -> str:
    del target
    while True:
        pass


def open_files(target: str) -> str:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(int(target))]
    return f"has {len(held)}"


def detach(target: str) -> str:
    """Start a daemon that nothing marks as ours: own session, no parent, no environment."""
    program = f"import os, signal\nif os.fork(): os._exit(0)\nos.setsid()\nopen({target!r}, 'w')\nsignal.pause()"
    subprocess.run([sys.executable, "-S", "-E", "-c", program], env={}, check=True, stdout=subprocess.DEVNULL)
    return "started"


def processes(target: str) -> str:
    del target
    return " ".join(name for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208


def _call(number: int, *arguments: Any) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return "done"


def namespace(target: str) -> str:
    del target
    return _call(_UNSHARE, _NEW_USER)


def dig(target: str) -> str:
    """Make folders in a folder, deeper than Python's recursion goes."""
    os.chdir(target)
    for _ in range(1100):
        os.mkdir("d")  # noqa: PTH102
        os.chdir("d")
    return "dug"


def environment(target: str) -> str:
    del target
    return json.dumps(dict(os.environ))


WAYS = (
    *(read, write, empty, remove, connect, connect_unix, connect_unix_directly, ring, memory, trace, share, kill, fork),
    *(crowd, allocate, spin, open_files, detach, processes, namespace, environment, dig),
)


def answer(request: Message) -> Message:
    match request["method"]:
        case "initialize":
            version, info = request["params"]["protocolVersion"], {"name": "escaping", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            schema = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
            return {"result": {"tools": [{"name": way.__name__, "inputSchema": schema} for way in WAYS]}}
        case "tools/call":
            way = next(way for way in WAYS if way.__name__ == request["params"]["name"])
            try:
                text = way(request["params"]["arguments"]["target"])
            except Exception as error:
                text = f"refused: {type(error).__name__}: {error}"
            return {"result": {"content": [{"type": "text", "text": text}]}}
        case method:
            return {"error": {"code": -32601, "message": f"no method {method}"}}


def main() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer(request)}), flush=True)


if __name__ == "__main__":
    main()
