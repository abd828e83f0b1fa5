"""The process that masks large texts for a worker: threads share the interpreter with the event loop of all calls.

Owns its start, with the worker, its end, and what happens when it is busy or fails: then the text is masked in the
thread. It serves the threads of `long_work` only; any other one would block for as long as it takes.

It is a fork of the worker, because a program that is executed can be looked into by MCP servers of the same user until
it has hidden itself. Only a process with one thread can be forked safely, so it is started once.
"""

import gc
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tarsy_tasks.masking import process
from tarsy_tasks.masking.known_secrets import KnownSecrets

__all__ = ["LARGE_CHARS", "MaskingProcess", "Rules", "allow_in_thread", "masking_process", "take_cost_s"]

logger = logging.getLogger(__name__)

LARGE_CHARS = 32 * 1024
"""To mask so much takes up to 40 ms; to hand it over, a fraction of one."""
_LEAST_TIMEOUT_S = 2.0
_TIMEOUT_S_PER_BYTE = 5 / 1_000_000
"""Several times what a text takes on a processor of its own."""
_THREADS = Path("/proc/self/task")


class _Thread(threading.local):
    is_allowed = False
    cost_s = 0.0


_thread = _Thread()


def allow_in_thread() -> None:
    """Large texts of the current thread may be masked in the process, for which the thread waits."""
    _thread.is_allowed = True


def take_cost_s() -> float:
    """The CPU time that the process took for the current thread since this was last asked."""
    cost_s, _thread.cost_s = _thread.cost_s, 0.0
    return cost_s


class Rules(NamedTuple):
    """What a masker masks, as for `build_masker`; `known` changes."""

    groups: Sequence[str] | None
    patterns: Sequence[str]
    is_enabled: bool
    known: KnownSecrets


class MaskingProcess:
    """At most one process, which is started once."""

    def __init__(self) -> None:
        self.obstacle = ""
        """Why `start` has started none, for the log."""
        self._lock = threading.Lock()
        self._pid = 0
        self._connection: Connection | None = None
        self._owes_answer = self._has_ended = False

    def start(self) -> None:
        """Fork it, on Linux. The worker has hidden its memory, and has one thread: otherwise there is no process."""
        if sys.platform != "linux":
            return
        try:
            if len(list(_THREADS.iterdir())) > 1:  # also those of libraries that are not Python's
                self.obstacle = "threads run already that a module or `celeryconfig.py` started when it was imported"
                return
            self._fork()
        except OSError as error:
            self.obstacle = f"the process for it cannot be started: {error}"

    def _fork(self) -> None:
        worker = os.getpid()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            gc.freeze()  # or the process would copy what it looks at
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, process.OF_THE_WORKER)
            child = -1
            try:
                child = os.fork()
                if not child:
                    process.serve(theirs.fileno(), worker)
            finally:
                if not child:
                    os._exit(0)
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
                gc.unfreeze()
            self._pid, self._connection = child, Connection(ours.detach())

    def mask(self, rules: Rules, text: str) -> str | None:
        """The masked text; None if the caller has to mask it: it is short, the thread is another one, or the process
        is busy, too slow, or gone."""
        if len(text) < LARGE_CHARS or not _thread.is_allowed or not self._lock.acquire(blocking=False):
            return None
        try:
            answer = self._ask(self._connection, rules, text) if self._connection is not None else b""
        except (OSError, EOFError):
            self._give_up()
            return None
        except BaseException:  # such as MemoryError: it may have got half of a message
            self._give_up()
            raise
        finally:
            self._lock.release()
        if not answer:
            return None
        _thread.cost_s += process.COST.unpack_from(answer)[0]
        return answer[process.COST.size :].decode(errors=process.ERRORS)

    def end(self) -> None:
        """End the process."""
        self._has_ended = True
        if pid := self._pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # which a thread that waits for it notices
        with self._lock:
            self._release()

    def _ask(self, connection: Connection, rules: Rules, text: str) -> bytes:
        """Empty if there is no answer, because the process is too slow, or cannot mask the text."""
        if self._owes_answer:
            if not connection.poll(0):
                return b""
            connection.recv_bytes()
            self._owes_answer = False
        settings = {**rules._asdict(), "known": sorted(rules.known.values)}
        messages = json.dumps(settings).encode(), text.encode(errors=process.ERRORS)
        timeout_s = _LEAST_TIMEOUT_S + _TIMEOUT_S_PER_BYTE * sum(map(len, messages))
        _limit(connection, timeout_s)
        for message in messages:
            connection.send_bytes(message)
        if not connection.poll(timeout_s):
            self._owes_answer = True
            logger.warning(
                "the process that masks large texts, %d, has not answered within %.1f s; until it does, the worker "
                "masks them itself",
                self._pid,
                timeout_s,
            )
            return b""
        return connection.recv_bytes()

    def _give_up(self) -> None:
        if not self._has_ended:
            logger.warning(
                "the process that masks large texts, %d, has failed; the worker masks them itself from now on, which "
                "delays other calls more. Restart the worker to get another one",
                self._pid,
            )
        self._release()

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        pid, self._pid = self._pid, 0
        if pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _limit(connection: Connection, timeout_s: float) -> None:
    """How long each sending and receiving may take."""
    seconds, rest_s = divmod(timeout_s, 1)
    value = struct.pack("ll", int(seconds), int(rest_s * 1_000_000))
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, value)


masking_process = MaskingProcess()
"""That of this worker."""
