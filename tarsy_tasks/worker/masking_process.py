"""The process that masks large texts for a worker: threads share the interpreter with the event loop of all calls.

Owns its start, with the first large text that may hold a secret, its end with the worker, and what happens when it
fails: then the text is masked in the thread, as before it was started. It serves the threads of `long_work` only, one
after the other; any other one would block for as long as it takes.
"""

import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from tarsy_tasks.masking import process
from tarsy_tasks.masking.known_secrets import KnownSecrets

__all__ = ["LARGE_CHARS", "MaskingProcess", "Rules", "allow_in_thread", "masking_process", "take_cost_s"]

logger = logging.getLogger(__name__)

LARGE_CHARS = 32 * 1024
"""To mask so much takes up to 40 ms; to hand it over, a fraction of one."""
_TIMEOUT_S = 30
"""Many times what the longest text takes."""
_PAUSE_S = 5.0
"""Before it is started again."""
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONHOME")


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
    """At most one process at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_ready = self._has_ended = False
        self._starts_at = 0.0

    def mask(self, rules: Rules, text: str) -> str | None:
        """The masked text; None if the caller has to mask it: it is short, the thread is another one, or the process
        has just been started, or has failed."""
        if len(text) < LARGE_CHARS or not _thread.is_allowed:
            return None
        with self._lock:
            try:
                answer = self._ask(rules, text)
            except (OSError, EOFError):
                self._give_up()
                return None
        if not answer:
            return None
        _thread.cost_s += process.COST.unpack_from(answer)[0]
        return answer[process.COST.size :].decode(errors=process.ERRORS)

    def end(self) -> None:
        """End the process; no other one is started."""
        self._has_ended = True
        if (running := self._process) is not None:
            running.kill()  # which a thread that waits for it notices
        with self._lock:
            self._release()

    def _ask(self, rules: Rules, text: str) -> bytes:
        """Empty if there is no answer, because the process is not ready, or cannot mask the text."""
        if self._connection is None:
            if not self._has_ended and time.monotonic() >= self._starts_at:
                self._connection = self._start()
            return b""
        if not self._is_ready:
            if not self._connection.poll(0):
                return b""
            self._connection.recv_bytes()
            self._is_ready = True
        settings = {**rules._asdict(), "known": sorted(rules.known.values)}
        self._connection.send_bytes(json.dumps(settings).encode())
        self._connection.send_bytes(text.encode(errors=process.ERRORS))
        return self._connection.recv_bytes()

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _TIMEOUT_S, 0))
            kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-m", process.__name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
            return Connection(ours.detach())

    def _give_up(self) -> None:
        self._starts_at = time.monotonic() + _PAUSE_S
        if not self._has_ended:
            logger.warning(
                "the process that masks large texts has failed; the worker masks them itself, and starts another "
                "process with a large text after %g s",
                _PAUSE_S,
            )
        self._release()

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None
        self._is_ready = False


masking_process = MaskingProcess()
"""That of this worker."""
