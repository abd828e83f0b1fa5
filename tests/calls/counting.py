"""Counts what this process does: functions called, values dumped and loaded, files opened, sleeps, writes to Redis,
looks of an event loop for input, and objects that only the garbage collector could free.

A worker imports it by its `celeryconfig.py`, an agent at its beginning: before their threads start. From then on it
answers with its counts on a Unix socket, whose path is in an environment variable. None of them depends on how fast the
machine is.
"""

import asyncio
import gc
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOCKET = "COUNTS_SOCKET"

_WRITES = frozenset({"send", "sendall", "sendmsg"})
# Of pydantic's core, by which models and adapters work; JSON encoders and decoders are Python functions.
_CONVERSIONS = {"to_python": "dumps", "to_json": "dumps", "validate_python": "loads", "validate_json": "loads"}
_NAMES = {
    "JSONEncoder.encode": "dumps",
    "JSONDecoder.raw_decode": "loads",
    "_Environ.__getitem__": "settings_read",
    "EpollSelector.select": "polls",
}

_SLEEP = asyncio.sleep.__code__
# It looks at the loop four times a second. Where a call takes as long, that would fall into each.
_WATCH = "loop-watch"

_calls: Counter[tuple[int, CodeType]] = Counter()
_garbage: Counter[str] = Counter()
_others: Counter[tuple[int, str]] = Counter()


def _profile(frame: FrameType, event: str, called: Any) -> None:
    """Each thread counts for itself, so that none overwrites what another one has counted."""
    if event == "call":
        _calls[threading.get_ident(), frame.f_code] += 1
        # Without a delay it only lets other tasks go first.
        if frame.f_code is _SLEEP and frame.f_locals["delay"] > 0:
            _others[threading.get_ident(), "sleeps"] += 1
    elif event == "c_call":
        name = called.__name__
        if called is time.sleep:
            _others[threading.get_ident(), "sleeps"] += 1
        elif name in _CONVERSIONS:
            _others[threading.get_ident(), _CONVERSIONS[name]] += 1
        elif name in _WRITES:
            target = called.__self__
            # Sockets of the Unix family wake event loops.
            if isinstance(target, socket.socket) and target.family == socket.AF_INET:
                _others[threading.get_ident(), "redis_writes"] += 1


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if event == "open":
        _others[threading.get_ident(), "files_opened"] += 1


def _note_collected(phase: str, found: dict[str, int]) -> None:
    if phase == "stop":
        _garbage["garbage"] += found["collected"]


def _find_counts() -> dict[str, Any]:
    gc.collect(1)  # what is older is not of this call
    found: Counter[str] = Counter()
    by_thread: Counter[int] = Counter()
    watches = {thread.ident for thread in threading.enumerate() if thread.name == _WATCH}
    for (_, name), number in _others.copy().items():
        found[name] += number
    for (ident, code), number in _calls.copy().items():
        by_thread[ident] += number if ident not in watches else 0
        if name := _NAMES.get(code.co_qualname):
            found[name] += number
        elif "pydantic_settings" in code.co_filename:
            found["settings_read"] += number
    return {**found, **_garbage, "by_thread": by_thread, "collectable": len(gc.get_objects())}


def _answer(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(_find_counts()).encode())


def _start(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    # This thread starts before the others are counted.
    threading.Thread(target=_answer, args=[listener], daemon=True).start()
    gc.callbacks.append(_note_collected)
    sys.addaudithook(_audit)
    threading.setprofile(_profile)
    sys.setprofile(_profile)


def read_counts(path: Path) -> dict[str, Any]:
    """What the process that answers there has counted since its start.

    `by_thread` has the calls of Python functions by the ident of their thread, 0 for the watch over the loop;
    `collectable` is the number of objects that a full collection of garbage visits; the others are numbers by name, and
    a name is absent as long as there are none.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with connection.makefile("rb") as answer:
            return json.load(answer)


if SOCKET in os.environ:
    _start(os.environ[SOCKET])
