"""A watch over the event loop that all calls share: it names what runs there for too long without a break.

Owns a thread that looks up to 40 times a second at what the loop's thread is doing. That costs a call nothing, and less
than half a percent of a core; asyncio's own debug mode would cost each call much.
"""

import asyncio
import logging
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from types import FrameType

__all__ = ["Blocked", "LoopWatch"]

logger = logging.getLogger(__name__)

_LOOK_S = 0.025
_IDLE_LOOK_S = 0.05
_STARVED_S = 0.05
"""A look that comes so much later had to wait: for the interpreter, or for the processor."""
_BLOCKING_S = 0.05
_ENDLESS_S = 2.0
"""What runs for so long is reported before it ends: it may never do so."""
_REPORT_S = 60.0
"""How often the same is reported again."""
_MOST_NAMES = 100
_OTHERS = "others"
_PACKAGE = "tarsy_tasks"
_STEP = asyncio.Handle._run.__code__  # pyright: ignore[reportPrivateUsage]
"""The loop runs each callback, and each step of a task, in one of these."""


@dataclass
class Blocked:
    """How often a callback has blocked the loop, and for how many seconds together."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class _LongStep:
    """What was there at two looks, one after the other.

    Attributes:
        name: Of the function that the loop has called.
        place: Where in the package it was last.
    """

    name: str = ""
    place: str = ""
    is_reported: bool = False


class LoopWatch:
    """The watch over one loop's thread, from `start` to `stop`.

    Attributes:
        blocked: By the name of the function that the loop has called. Safe to read from any thread.
    """

    def __init__(self) -> None:
        self.blocked: defaultdict[str, Blocked] = defaultdict(Blocked)
        self._stopping = threading.Lock()
        self._stopping.acquire()
        self._reported_at: dict[str, float] = {}

    def start(self, thread: threading.Thread) -> None:
        """Watch a thread that runs a loop."""
        threading.Thread(target=self._run, args=[thread.ident], name="loop-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopping.release()

    def _run(self, ident: int) -> None:
        is_failing = False
        while True:
            try:
                self._watch(ident)
                return
            except Exception as error:
                # What is watched, such as the globals of a function, may be anything.
                if not is_failing:
                    is_failing = True
                    logger.warning("a look at the event loop failed: %r; it goes on being watched", error)
            if self._stopping.acquire(timeout=_IDLE_LOOK_S):
                return

    def _watch(self, ident: int) -> None:
        # macOS cannot tell the CPU time of another thread: there a step counts only from when it was first seen.
        has_clock = hasattr(time, "pthread_getcpuclockid")
        clock = time.pthread_getcpuclockid(ident) if has_clock else time.CLOCK_MONOTONIC
        seen: FrameType | None = None
        since, long_step = 0.0, _LongStep()
        looked_at, cpu_s, look_s = time.monotonic(), time.clock_gettime(clock), _LOOK_S
        # A look that finds nothing calls no function of Python.
        while not self._stopping.acquire(timeout=look_s):
            step = innermost = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]
            while step is not None and step.f_code is not _STEP:
                step = step.f_back
            now, cpu_before_s = time.monotonic(), cpu_s
            if has_clock:
                cpu_s = time.clock_gettime(clock)
            if step is None or step is not seen:
                if long_step.name:
                    self._end(long_step, looked_at - since)
                    long_step = _LongStep()
                # After a rest, or if the loop's thread kept this one from looking, it has worked on this step.
                is_starved = now - looked_at > look_s + _STARVED_S
                is_late = is_starved or look_s == _IDLE_LOOK_S
                seen, since = step, now - (cpu_s - cpu_before_s if is_late else 0.0)
                is_long = is_starved and now - since >= _BLOCKING_S
            else:
                is_long = True
            if is_long and step is not None:
                self._look_at(long_step, step, innermost, now - since)
            looked_at, look_s = now, _LOOK_S if step is not None or cpu_s > cpu_before_s else _IDLE_LOOK_S
            # What an old frame refers to must not live on.
            step = innermost = None

    def _look_at(self, long_step: _LongStep, step: FrameType, innermost: FrameType | None, took_s: float) -> None:
        name, place, frame = step.f_code.co_qualname, "", innermost
        while frame is not None and frame is not step:
            module: str = frame.f_globals.get("__name__", "")
            if not place or (module.startswith(_PACKAGE) and not place.startswith(_PACKAGE)):
                place = f"{module}, line {frame.f_lineno}"
            name, frame = frame.f_code.co_qualname, frame.f_back
        if innermost is not step and frame is None:
            return  # it has ended meanwhile
        long_step.name, long_step.place = name, place
        if took_s >= _ENDLESS_S and not long_step.is_reported:
            long_step.is_reported = True
            self._report(long_step, took_s)

    def _end(self, step: _LongStep, took_s: float) -> None:
        if took_s < _BLOCKING_S:
            return
        blocked = self.blocked[step.name if step.name in self.blocked or len(self.blocked) < _MOST_NAMES else _OTHERS]
        blocked.count += 1
        blocked.seconds += took_s
        if not step.is_reported:
            self._report(step, took_s)

    def _report(self, step: _LongStep, took_s: float) -> None:
        now = time.monotonic()
        if now - self._reported_at.get(step.name, float("-inf")) < _REPORT_S:
            return
        if len(self._reported_at) >= _MOST_NAMES:
            self._reported_at.clear()
        self._reported_at[step.name] = now
        logger.warning(
            "the event loop, which all calls share, was blocked for %.0f ms by %s (%s)",
            *(took_s * 1000, step.name, step.place or "in C code"),
        )
