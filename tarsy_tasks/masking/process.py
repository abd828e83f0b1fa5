"""Masks texts for a worker in a process of its own: `python -m tarsy_tasks.masking.process DESCRIPTOR`.

Owns the program: it reads pairs of messages from a socket, the rules and a text, and answers each pair with the CPU
time that it took and the masked text. It ends when the other end of the socket is closed, so with its worker. Rules
hold secrets, so they come this way only, and other processes of the user cannot look into this one.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import time
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection

from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import Masker, build_masker

__all__ = ["COST", "ERRORS", "main"]

COST = struct.Struct("d")
"""Seconds of CPU time, at the beginning of an answer."""
ERRORS = "surrogatepass"
"""Texts may hold halves of characters."""
_SET_DUMPABLE = 4
_NICENESS = 5
_MEMORY_BYTES = 1024 * 1024 * 1024
"""More than ten times what the longest text takes."""


@lru_cache(maxsize=32)
def _masker_of(rules: bytes) -> Masker:
    settings = json.loads(rules)
    return build_masker(
        settings["groups"],
        patterns=settings["patterns"],
        known=KnownSecrets(settings["known"]),
        is_enabled=settings["is_enabled"],
    )


def _mask(rules: bytes, text: bytes) -> bytes:
    """The answer; an empty one if the text cannot be masked here."""
    began = time.process_time()
    try:
        masked = _masker_of(rules).mask(text.decode(errors=ERRORS)).encode(errors=ERRORS)
        return COST.pack(time.process_time() - began) + masked
    except Exception:  # such as MemoryError; not printed, because its text could hold a part of the other
        return b""


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(*map(ctypes.c_long, (_SET_DUMPABLE, 0, 0, 0, 0)))
    os.nice(_NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM):  # which a supervisor sends to all; the worker still needs it
        signal.signal(number, signal.SIG_IGN)
    with suppress(ValueError, OSError):  # there is a lower limit already
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    with Connection(int(sys.argv[1])) as worker, suppress(EOFError, OSError):
        worker.send_bytes(b"ready")
        while True:
            worker.send_bytes(_mask(worker.recv_bytes(), worker.recv_bytes()))


if __name__ == "__main__":
    main()
