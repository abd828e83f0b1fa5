"""Isolated sessions: what happens to the state of runs when something fails.

Each run counts its calls in its own session. So a state that is lost and nobody says so, a call that is made twice, and
one that got into the session of another run all show in the next count.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tests.chaos.faults import cut_connections, last
from tests.chaos.load import Tally
from tests.chaos.stage import Form, Stage
from tests.processes import Worker, wait_until

__all__ = [
    "connections_are_cut",
    "processes_are_killed",
    "redis_is_restarted",
    "their_worker_is_killed",
    "their_worker_is_stopped",
]

RUNS = 6
WARM = 3
"""So many calls each run has had when something fails, and again when that is over."""
_CALL_S = 0.1
_HANG_S = 10.0
_CLOSED_S = 20.0


@dataclass
class Run:
    """One run of an agent, which makes a call after the other."""

    name: str
    tools: ToolExecutor
    fault: threading.Event | None
    """Once it is warm it makes no call until then, so that some sessions are hit in which no call runs."""
    answers: list[ToolResult] = field(default_factory=list[ToolResult])
    errors: list[Exception] = field(default_factory=list[Exception])
    longest_s: float = 0.0

    def go_on(self, goes_on: threading.Event) -> None:
        while goes_on.is_set():
            if self.fault is not None and self.count_ok() >= WARM:
                self.fault.wait()
            began = time.monotonic()
            key = f"{self.name}-{len(self.answers) + len(self.errors)}"
            arguments = {"key": key, "wait_s": _CALL_S}
            try:
                self.answers.append(self.tools.execute(ToolCall(id=key, name="desk.count", arguments=arguments)))
            except Exception as error:
                self.errors.append(error)
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def count_ok(self) -> int:
        return sum(answer.outcome is Outcome.OK for answer in self.answers)

    @property
    def losses(self) -> int:
        """How many calls were told that the state is gone."""
        return sum(each.error_code is ErrorCode.SESSION_LOST for each in self.answers)

    def find_wrong(self) -> Iterator[str]:
        """What its answers say that cannot be, after those before."""
        counted, unsure, is_lost = 0, 0, False
        for answer in self.answers:
            if answer.error_code is ErrorCode.SESSION_LOST:
                if is_lost:
                    yield f"{answer.call_id}: it is said again that the state is gone"
                counted, unsure, is_lost = 0, 0, True
            elif answer.outcome is Outcome.OK:
                found = int(answer.content)
                if not counted < found <= counted + 1 + unsure:
                    yield f"{answer.call_id}: counted {found} after {counted}, and {unsure} of which nobody knows"
                counted, unsure, is_lost = found, 0, False
            elif answer.outcome is Outcome.UNKNOWN:
                unsure += 1
            else:
                yield f"{answer.call_id}: {answer.outcome}, {answer.content[:160]}"


class Runs:
    """Runs of one agent, each in a thread, over the isolated sessions of both workers."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._fault_is_over = threading.Event()
        deadline_s = stage.form.deadline_s
        self._deadline_s = deadline_s
        self._name = name
        self.runs = [
            Run(
                f"{name}{n}",
                ToolExecutor(["desk"], session="run", timeout_s=deadline_s, app=stage.app),
                self._fault_is_over if n % 2 else None,
            )
            for n in range(RUNS)
        ]
        self._threads = [threading.Thread(target=run.go_on, args=[self._goes_on], daemon=True) for run in self.runs]
        for thread in self._threads:
            thread.start()
        self._wait_for_calls([0] * RUNS)

    def go_on(self) -> None:
        """After the fault, all runs make calls again. Returns when each has had some answers that were `ok`."""
        before = [run.count_ok() for run in self.runs]
        self._fault_is_over.set()
        self._wait_for_calls(before)

    def _wait_for_calls(self, before: list[int]) -> None:
        wait_until(
            lambda: all(run.count_ok() >= n + WARM for run, n in zip(self.runs, before, strict=True)),
            f"all runs of {self._name} go on",
            2 * self._deadline_s,
        )

    def find_holder(self) -> tuple[Worker, int]:
        """A worker that holds sessions of these runs, and how many."""
        holders = Counter(holder.decode() for holder in self._holders())
        by_worker = {
            worker: sum(count for name, count in holders.items() if name.startswith(f"{worker.log_path.stem}@"))
            for worker in self._stage.workers
        }
        return max(by_worker.items(), key=lambda item: item[1])

    def _holders(self) -> list[bytes]:
        redis = self._stage.redis
        return [holder for key in redis.keys("tarsy:session:*") if (holder := redis.hget(key, "holder"))]

    def tally(self, *, losses: int, unknown: bool = False) -> Tally:
        """End the runs, and hold their answers against the ledger.

        Args:
            losses: How many calls have to be told that the state of their run is gone.
            unknown: Whether calls that had begun may be `unknown`.
        """
        self._goes_on.clear()
        until = time.monotonic() + self._deadline_s + _HANG_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        tally = Tally()
        tally.find(
            "hang", (run.name for run, thread in zip(self.runs, self._threads, strict=True) if thread.is_alive())
        )
        answers = [answer for run in self.runs for answer in run.answers]
        ran = self._stage.ledger.runs("count")
        tally.calls = len(answers)
        tally.outcomes = Counter(str(answer.outcome) for answer in answers)
        tally.longest_s = max(run.longest_s for run in self.runs)
        doubled = [answer.call_id for answer in answers if ran[answer.call_id] > 1]
        tally.doubled = len(doubled)
        tally.find("doubled", doubled)
        tally.find(
            "`ok` that never ran", (a.call_id for a in answers if a.outcome is Outcome.OK and not ran[a.call_id])
        )
        tally.lost = sum(answer.error_code is ErrorCode.NO_ANSWER for answer in answers)
        tally.expect(not tally.lost, f"{tally.lost} calls were not answered")
        for run in self.runs:
            tally.findings += [f"{type(error).__name__}: {error}" for error in run.errors]
            tally.findings += list(run.find_wrong())
        told = sum(run.losses for run in self.runs)
        tally.expect(told == losses, f"{told} calls were told that a state is gone, and not {losses}")
        unsure = [a.call_id for a in answers if a.outcome is Outcome.UNKNOWN and a.error_code != ErrorCode.SESSION_LOST]
        if not unknown:
            tally.find("`unknown`", unsure)
        for run in self.runs:
            run.tools.close()
        with suppress(AssertionError):
            wait_until(lambda: not self._holders(), "", _CLOSED_S)
        tally.expect(not self._holders(), f"sessions are left behind: {self._holders()}")
        return tally


def their_worker_is_killed(stage: Stage, form: Form) -> Tally:
    runs = Runs(stage, "killed")
    victim, count = runs.find_holder()
    stage.give_up(victim)
    os.kill(victim.pid, signal.SIGKILL)
    victim.process.wait()
    runs.go_on()
    return runs.tally(losses=count, unknown=True)


def their_worker_is_stopped(stage: Stage, form: Form) -> Tally:
    runs = Runs(stage, "stopped")
    victim, count = runs.find_holder()
    stage.give_up(victim)
    victim.ask_to_stop()
    code = victim.stop()
    runs.go_on()
    tally = runs.tally(losses=count)
    tally.expect(code == 0, f"the worker that was stopped ended with {code}")
    return tally


def processes_are_killed(stage: Stage, form: Form) -> Tally:
    """The servers of all runs end, and so they forget what was done in them."""
    runs = Runs(stage, "forgotten")
    for child in stage.families():
        if str(stage.ledger.path) in child.cmdline():
            child.kill()
    runs.go_on()
    return runs.tally(losses=RUNS)


def redis_is_restarted(stage: Stage, form: Form) -> Tally:
    def restart() -> None:
        stage.valkey.terminate()
        last(form.down_s)
        stage.valkey.start()

    return _play(stage, "restarted", restart)


def connections_are_cut(stage: Stage, form: Form) -> Tally:
    return _play(stage, "cut", lambda: _cut(stage, form))


def _cut(stage: Stage, form: Form) -> None:
    for _ in range(form.cuts):
        cut_connections(stage.redis)


def _play(stage: Stage, name: str, fault: Callable[[], None]) -> Tally:
    """A fault that takes no state away."""
    runs = Runs(stage, name)
    fault()
    runs.go_on()
    return runs.tally(losses=0)
