"""What calls cost: how long they take, and the CPU of every process that takes part.

Owns the measuring of some calls. It knows nothing of what is called.
"""

import asyncio
import ctypes
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

Call = Callable[[], Awaitable[object]]
Pids = Callable[[], Iterable[int]]
"""The processes of one role, as they are now."""

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Load:
    """How calls are made.

    Attributes:
        in_flight: How many at a time.
        calls: How many in all.
        in_turns: Whether the next ones wait until all that were sent together are answered.
    """

    in_flight: int
    calls: int
    in_turns: bool = False

    def __str__(self) -> str:
        return f"turns of {self.in_flight}" if self.in_turns else str(self.in_flight)

    async def run(self, call: Call) -> list[float]:
        """The seconds that each call took."""
        found: list[float] = []

        async def make_calls(numbers: Iterable[int]) -> None:
            for _ in numbers:
                started = time.perf_counter()
                await call()
                found.append(time.perf_counter() - started)

        if self.in_turns:
            for _ in range(self.calls // self.in_flight):
                await asyncio.gather(*(make_calls([0]) for _ in range(self.in_flight)))
        else:
            left = iter(range(self.calls))
            await asyncio.gather(*(make_calls(left) for _ in range(self.in_flight)))
        return found


@dataclass(frozen=True)
class Figures:
    """Of one contestant under one load.

    Attributes:
        cpu_ms: Per call, by role.
    """

    per_s: float
    p50_ms: float
    p95_ms: float
    cpu_ms: Mapping[str, float]


async def measure(call: Call, load: Load, roles: Mapping[str, Pids]) -> Figures:
    """Make the calls, after a few that do not count."""
    # What a worker still does after its last answer is counted with the next calls: so also before the first.
    await asyncio.gather(*(call() for _ in range(min(load.in_flight, load.calls - 1, 8))))
    before = {role: _read_all(pids()) for role, pids in roles.items()}
    own, started = time.process_time(), time.perf_counter()
    latencies = await load.run(call)
    seconds, own = time.perf_counter() - started, time.process_time() - own
    spent = {role: _subtract(_read_all(pids()), before[role]) for role, pids in roles.items()}
    latencies.sort()
    return Figures(
        len(latencies) / seconds,
        statistics.median(latencies) * 1000,
        latencies[int(len(latencies) * 0.95) - 1] * 1000,
        {role: cpu_s / len(latencies) * 1000 for role, cpu_s in {"client": own, **spent}.items()},
    )


def find_median(rounds: Iterable[Figures]) -> Figures:
    """The median of every figure."""
    found = list(rounds)
    return Figures(
        statistics.median(each.per_s for each in found),
        statistics.median(each.p50_ms for each in found),
        statistics.median(each.p95_ms for each in found),
        {role: statistics.median(each.cpu_ms[role] for each in found) for role in found[0].cpu_ms},
    )


def read_cpu_s(pid: int) -> float:
    """CPU of a process with all its threads so far. By its own clock, which counts nanoseconds; what psutil reads is in
    hundredths of a second.

    Raises:
        ProcessLookupError: It has ended.
    """
    clock = ctypes.c_int()
    if error := _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(error, f"process {pid} has ended")
    return time.clock_gettime(clock.value)


def _read_all(pids: Iterable[int]) -> dict[int, float]:
    found: dict[int, float] = {}
    for pid in pids:
        # A child may just have ended.
        with suppress(ProcessLookupError):
            found[pid] = read_cpu_s(pid)
    return found


def _subtract(after: Mapping[int, float], before: Mapping[int, float]) -> float:
    return sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in after.items())
