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
from collections.abc import Callable, Sequence
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
_STALLED_S = 3
"""The process reads what it is sent, and sends its answer, without a pause of that length."""
_MOST_ANSWER_BYTES = 256 * 1024 * 1024
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
    """At most one process, which is started once.

    Args:
        serve: What it does, as `process.serve`.
    """

    def __init__(self, serve: Callable[[int, int], None] = process.serve) -> None:
        self._serve = serve
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
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _STALLED_S, 0))
            # What is frozen is never freed, so collect first. A collection in the child would copy all that it visits.
            gc.collect()
            gc.freeze()
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, process.OF_THE_WORKER)
            child = -1
            try:
                child = os.fork()
                if not child:
                    self._serve(theirs.fileno(), worker)
            finally:
                if not child:
                    os._exit(0)
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            self._pid, self._connection = child, Connection(ours.detach())

    def mask(self, rules: Rules, text: str) -> str | None:
        """The masked text; None if the caller has to mask it: it is short, the thread is another one, or the process
        is busy, too slow, or gone."""
        if len(text) < LARGE_CHARS or not _thread.is_allowed or not self._lock.acquire(blocking=False):
            return None
        try:
            return None if self._connection is None else self._ask(self._connection, rules, text)
        except Exception as error:  # it is gone, or one of the two may have got half of a message
            self._give_up(type(error).__name__)
            return None
        finally:
            self._lock.release()

    def end(self) -> None:
        """End the process."""
        self._has_ended = True
        if pid := self._pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # which a thread that waits for it notices
        with self._lock:
            self._release()

    def _ask(self, connection: Connection, rules: Rules, text: str) -> str | None:
        """None if the process is too slow, or cannot mask the text."""
        if self._owes_answer:
            if not connection.poll(0):
                return None
            connection.recv_bytes(_MOST_ANSWER_BYTES)
            self._owes_answer = False
        settings = {**rules._asdict(), "known": sorted(rules.known.values)}
        messages = json.dumps(settings).encode(), text.encode(errors=process.ERRORS)
        for message in messages:
            connection.send_bytes(message)
        timeout_s = _LEAST_TIMEOUT_S + _TIMEOUT_S_PER_BYTE * sum(map(len, messages))
        if not connection.poll(timeout_s):
            self._owes_answer = True
            logger.warning(
                "the process that masks large texts, %d, has not answered within %.1f s; until it does, the worker "
                "masks them itself",
                self._pid,
                timeout_s,
            )
            return None
        if not (answer := connection.recv_bytes(_MOST_ANSWER_BYTES)):
            return None
        masked = answer[process.COST.size :].decode(errors=process.ERRORS)
        _thread.cost_s += process.COST.unpack_from(answer)[0]
        return masked

    def _give_up(self, reason: str) -> None:
        if not self._has_ended:
            logger.warning(
                "the process that masks large texts, %d, has failed (%s); the worker masks them itself from now on, "
                "which delays other calls more. Restart the worker to get another one",
                self._pid,
                reason,
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


masking_process = MaskingProcess()
"""That of this worker."""
