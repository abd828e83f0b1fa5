"""What the process does that masks texts for a worker, which it is a fork of.

It reads pairs of messages from a socket, the rules and a text, and answers each pair with the CPU time that it took and
the masked text. It ends with its worker. Rules hold secrets, so they come this way only. It must not log: the handlers
are those of the worker.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import struct
import time
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path

from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import Masker, build_masker

__all__ = ["COST", "ERRORS", "NAME", "OF_THE_WORKER", "serve"]

NAME = "tarsy-masking"
"""As `top` and `ps -o comm` show it; its command line is that of the worker."""
OF_THE_WORKER = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mean something to a worker, and may be sent to all processes with its command line."""
COST = struct.Struct("d")
"""Seconds of CPU time, at the beginning of an answer."""
ERRORS = "surrogatepass"
"""Texts may hold halves of characters."""
_SET_PDEATHSIG, _SET_NAME = 1, 15
_NICENESS = 5
_MEMORY_BYTES = 1024 * 1024 * 1024
"""Several times what the longest text takes."""


@lru_cache(maxsize=8)  # each may take up to 64 MB, and tokens that change make others
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


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None).prctl(*map(ctypes.c_long, (option, argument, 0, 0, 0)))


def _part_from_worker(descriptor: int) -> int:
    """Keep nothing of the worker but memory: no signals, terminal, files. Returns the descriptor as it is now."""
    for number in signal.valid_signals():
        if number in OF_THE_WORKER:
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.setsid()
    kept = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for each in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if each > 2 and each != kept:
            with suppress(OSError):  # the one that listed them
                os.close(each)
    return kept


def serve(descriptor: int, worker: int) -> None:
    """Be the process: to be called by the child, right after the fork, on Linux. Returns when the worker has ended.

    Args:
        descriptor: The socket.
        worker: The id of the parent.
    """
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # it ended before the kernel knew that this one is to follow
        return
    name = ctypes.create_string_buffer(NAME.encode())
    _prctl(_SET_NAME, ctypes.addressof(name))
    kept = _part_from_worker(descriptor)
    os.nice(_NICENESS)
    with suppress(ValueError, OSError):  # there is a lower limit already
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    with Connection(kept) as connection, suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_mask(connection.recv_bytes(), connection.recv_bytes()))
