"""A watch over the event loop that all calls of a worker share: it names what keeps the loop from everything else.

Owns a thread that looks at the loop a few times a second, which costs a call nothing, and asks it for a sign of life
unless it is idle. It reads the stack of the loop's thread with `faulthandler`, in one call of C that makes no objects
and during which no other thread runs Python code. `sys._current_frames` makes objects: in Python 3.11 that may start
the garbage collector, which lets other threads run, and their frames are gone before they are in the object (a worker
ended by that).
"""

import asyncio
import faulthandler
import logging
import re
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tarsy_tasks.event_loop import EventLoop

__all__ = ["LoopWatch"]

logger = logging.getLogger(__name__)

_LOOK_S = 0.25
_COMPUTED_S = 0.1
"""A callback that computes for so long is named."""
_WAITED_S = 0.5
"""One that does not compute may itself wait for the processor, which on a busy machine takes long."""
_ENDLESS_S = 2.0
"""What lasts for so long is reported before it ends: it may never do so."""
_REPORT_S = 60.0
"""How often the same is reported again."""
_MOST_NAMES = 100
_PACKAGE = f"{Path(__file__).parents[2]}/"
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the loop was.

    Attributes:
        is_idle: It waited for events.
        name: Of the callback: function, file and line, down from the one that the loop has called. Empty: not known.
        task: The name of its task, for calls and readers that of the server.
    """

    is_idle: bool = False
    name: str = ""
    task: str = ""


class LoopWatch:
    """The watch over one loop, from `start` to `stop`."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._answered = threading.Event()
        self._answered_at = 0.0
        self._stopping = threading.Event()
        self._reported_at: dict[str, float] = {}

    def start(self, ident: int) -> None:
        """Watch the thread of this identifier, in which the loop runs."""
        self._thread = threading.Thread(target=self._run, args=[ident], name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Before the loop's thread ends, whose clock is read."""
        self._stopping.set()
        self._answered.set()
        self._thread.join()

    def _run(self, ident: int) -> None:
        # macOS cannot say what another thread has computed.
        clock = time.pthread_getcpuclockid(ident) if hasattr(time, "pthread_getcpuclockid") else time.CLOCK_MONOTONIC
        # Open from the start: to open it takes a moment in which the loop could go on.
        with tempfile.TemporaryFile(buffering=0) as file:
            self._watch(ident, clock, file)

    def _watch(self, ident: int, clock: int, file: IO[bytes]) -> None:
        since, before_s = time.monotonic(), time.clock_gettime(clock)
        while not self._stopping.wait(_LOOK_S):
            asked_at, computed_s = time.monotonic(), time.clock_gettime(clock)
            late_s = asked_at - since - _LOOK_S
            if late_s > _COMPUTED_S:
                # A call of C has held the interpreter, and with it this thread. It may be of another thread.
                place, computed_s = self._look(ident, file), time.clock_gettime(clock) - before_s
                if computed_s > late_s / 2:
                    self._report(place, late_s, computed_s)
            elif self._loop.is_idle:
                pass
            elif not self._ask():
                return
            elif not self._answered.wait(_COMPUTED_S):
                place = self._look(ident, file)
                if is_endless := not self._answered.wait(_ENDLESS_S):
                    self._report(place, time.monotonic() - asked_at, time.clock_gettime(clock) - computed_s)
                    self._answered.wait()
                if not (is_endless or self._stopping.is_set()):
                    self._report(place, self._answered_at - asked_at, time.clock_gettime(clock) - computed_s)
            since, before_s = time.monotonic(), time.clock_gettime(clock)

    def _ask(self) -> bool:
        """Ask for a sign of life; False if the loop is closed."""
        self._answered.clear()
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return False
        return True

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._answered.set()

    def _look(self, ident: int, file: IO[bytes]) -> _Place:
        before = asyncio.current_task(self._loop)
        faulthandler.dump_traceback(file.fileno())
        after = asyncio.current_task(self._loop)
        file.seek(0)
        stack = file.read().decode(errors="replace")
        file.seek(0)
        file.truncate()
        return _read_stack(stack, ident, after.get_name() if after is not None and after is before else "")

    def _report(self, place: _Place, took_s: float, computed_s: float) -> None:
        if place.is_idle or (computed_s < took_s / 2 and took_s < _WAITED_S):
            return
        now = time.monotonic()
        if now - self._reported_at.get(place.name, float("-inf")) < _REPORT_S:
            return
        if len(self._reported_at) >= _MOST_NAMES:
            self._reported_at.clear()
        self._reported_at[place.name] = now
        logger.warning(
            "the event loop, which all calls share, did not respond for %.1f s, of which it computed for %.1f s; "
            "it was in %s%s",
            *(took_s, min(computed_s, took_s), place.name or "an unknown function"),
            f" (task {place.task:.100})" if place.task else "",
        )


def _read_stack(stack: str, ident: int, task: str) -> _Place:
    """Find the callback in what `faulthandler` writes: of up to 100 threads, the innermost function first."""
    _, _, found = stack.partition(f"Thread 0x{ident:016x}")
    frames: list[str] = []
    inner = ""
    for path, line, function in _FRAME.findall(found.partition("\n\n")[0]):
        if path.endswith("/asyncio/events.py") and function == "_run":
            break
        is_own = path.startswith(_PACKAGE)
        frame = f"{function} ({path.removeprefix(_PACKAGE) if is_own else path.rpartition('/')[2]}, line {line})"
        inner = inner or (frame if is_own else "")
        frames.append(frame)
    else:
        return _Place(is_idle=bool(frames))
    names = dict.fromkeys([*frames[:1], inner, *frames[-1:]])
    return _Place(name=" < ".join(filter(None, names)), task=task)
