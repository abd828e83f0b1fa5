"""Profiles the session loop of the worker that imports this module, by its `celeryconfig.py`, and answers with the
profile so far on a Unix socket: what each function took itself, with the C functions that it called.
"""

import cProfile
import json
import os
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

SOCKET = "PROFILE_SOCKET"
THREAD = "mcp-sessions"

_profiles: list[cProfile.Profile] = []


def _start_in_thread(*_: Any) -> None:
    """The first event of a thread: from here on, the C profiler takes its place."""
    sys.setprofile(None)
    if threading.current_thread().name == THREAD:
        profile = cProfile.Profile()
        _profiles.append(profile)
        profile.enable()


def _read_own_seconds() -> dict[str, float]:
    """By the file of the function."""
    found: Counter[str] = Counter()
    for profile in _profiles:
        for entry in profile.getstats():
            if isinstance(entry.code, str):
                continue
            path = entry.code.co_filename
            found[path] += entry.inlinetime
            for called in entry.calls or ():
                # Waiting costs nothing.
                if isinstance(called.code, str) and "poll" not in called.code:
                    found[path] += called.inlinetime
    return dict(found)


def _answer(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(_read_own_seconds()).encode())


def read_profile(path: Path) -> Counter[str]:
    """The seconds so far, by file, of the worker that answers there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with connection.makefile("rb") as answer:
            return Counter(json.load(answer))


if SOCKET in os.environ:
    _listener = socket.socket(socket.AF_UNIX)
    _listener.bind(os.environ[SOCKET])
    _listener.listen()
    threading.Thread(target=_answer, args=[_listener], daemon=True).start()
    threading.setprofile(_start_in_thread)
