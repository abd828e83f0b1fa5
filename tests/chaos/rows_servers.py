"""Servers and clocks: calls that take long, a server that never answers, workers that do not know what time it is."""

import statistics
import time

from tarsy_tasks import Outcome, ToolCall
from tests.chaos.load import Tally
from tests.chaos.stage import Form, Stage

__all__ = ["SERVERS", "STUCK", "a_call_takes_several_leases", "clocks_are_wrong", "one_hangs"]

IN_FLIGHT = 64
STUCK = "stuck"
SERVERS = {**{f"well{number}": {} for number in range(4)}, STUCK: {"max_concurrency": 4}}
"""Five of them; the calls of the last one are never answered."""
_FOR_EVER_S = 1e6
_STUCK_DEADLINE_S = 6.0
_LATE_S = 1.5
_MEASURED_CALLS = 400
_SLOWER = 1.5


def clocks_are_wrong(stage: Stage, form: Form) -> Tally:
    """One worker's clock is ahead, the other's behind; calls take long enough for one to take the other's for lost."""
    load = stage.load("clock")
    load.start(2 * stage.cast.concurrency, wait_s=(1.5 * stage.lease_s, 1.5 * stage.lease_s))
    load.start(IN_FLIGHT - 2 * stage.cast.concurrency)
    return load.tally(repeats=False)


def a_call_takes_several_leases(stage: Stage, form: Form) -> Tally:
    load = stage.load("slow", timeout_s=form.slow_call_s + form.deadline_s)
    load.start(2 * stage.cast.concurrency, wait_s=(form.slow_call_s, form.slow_call_s))
    load.start(IN_FLIGHT - 2 * stage.cast.concurrency)
    return load.tally(repeats=False)


def one_hangs(stage: Stage, form: Form) -> Tally:
    _p95(stage)  # the first calls of a worker are slower
    before_s = _p95(stage)
    stuck = stage.load("stuck", STUCK, timeout_s=_STUCK_DEADLINE_S)
    stuck.start(IN_FLIGHT, wait_s=(_FOR_EVER_S, _FOR_EVER_S))
    stuck.wait_for_begun(1)
    meanwhile_s = _p95(stage)
    stuck.wait()
    tally = Tally(calls=IN_FLIGHT, longest_s=max(call.seconds or float("inf") for call in stuck.answers))
    begun = set(stuck.begun())
    for call in stuck.answers:
        outcome = call.result.outcome if call.result else type(call.error).__name__
        tally.outcomes[str(outcome)] += 1
        allowed = Outcome.TIMEOUT if call.key in begun else Outcome.UNAVAILABLE
        tally.expect(outcome == allowed, f"{call.key} is `{outcome}`, not `{allowed}`")
        tally.lost += call.is_lost
    tally.expect(tally.longest_s <= _STUCK_DEADLINE_S + _LATE_S, f"an answer came after {tally.longest_s:.1f} s")
    tally.notes.append(f"p95 of the other four: {before_s * 1e3:.1f} ms before, {meanwhile_s * 1e3:.1f} ms meanwhile")
    if form.judges_speed:
        tally.expect(meanwhile_s <= _SLOWER * before_s, f"the others got {meanwhile_s / before_s:.2f} times slower")
    return tally


def _p95(stage: Stage) -> float:
    """Of calls to the servers that are well, one after another."""
    tools = stage.tools(20)
    seconds: list[float] = []
    for number in range(_MEASURED_CALLS):
        call = ToolCall(id=str(number), name=f"well{number % 4}.look", arguments={"key": str(number)})
        begun_at = time.perf_counter()
        result = tools.execute(call)
        seconds.append(time.perf_counter() - begun_at)
        assert result.outcome is Outcome.OK, result.content
    return statistics.quantiles(seconds, n=20)[-1]
