"""Servers and clocks: calls that take long, a server that never answers, workers that do not know what time it is."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from tarsy_tasks import Outcome, ToolCall
from tarsy_tasks.broker import keys
from tests.chaos.load import Tally
from tests.chaos.stage import Form, Stage
from tests.processes import wait_until

__all__ = ["SERVERS", "STUCK", "a_call_takes_several_leases", "clocks_are_wrong", "one_hangs"]

IN_FLIGHT = 64
STUCK = "stuck"
SERVERS = {**{f"well{number}": {} for number in range(4)}, STUCK: {"max_concurrency": 4}}
"""Five of them; the calls of the last one are never answered."""
_FOR_EVER_S = 1e6
_LEFT_S = 3.0
_LATE_S = 1.5


def clocks_are_wrong(stage: Stage, form: Form) -> Tally:
    """One worker's clock is ahead, the other's behind; calls take long enough for one to take the other's for lost."""
    load = stage.load("clock")
    load.start(2 * stage.cast.concurrency, wait_s=(1.5 * stage.lease_s, 1.5 * stage.lease_s))
    load.start(IN_FLIGHT - 2 * stage.cast.concurrency)
    return load.tally(repeats=False)


def a_call_takes_several_leases(stage: Stage, form: Form) -> Tally:
    """Such calls take up all workers, so that one that is given back meanwhile would be seen in the queue."""
    load = stage.load("slow", timeout_s=form.slow_call_s + form.deadline_s)
    at_once = 2 * stage.cast.concurrency
    load.start(at_once, wait_s=(form.slow_call_s, form.slow_call_s))
    load.wait_for_begun(at_once)
    seen: list[int] = []

    def answered() -> bool:
        seen.append(stage.redis.llen(keys.queue("desk")))
        return len(load.unanswered()) < at_once

    wait_until(answered, "the first of them is answered", 2 * form.slow_call_s)
    load.start(IN_FLIGHT - at_once)
    tally = load.tally(repeats=False)
    tally.expect(not max(seen), f"{max(seen)} calls of workers that live were given back")
    return tally


def one_hangs(stage: Stage, form: Form) -> Tally:
    deadline_s = form.measured_s + _LEFT_S
    _p95(stage, form.measured_s / 2)  # the first calls of a worker are slower
    before_s = _p95(stage, form.measured_s)
    stuck = stage.load("stuck", STUCK, timeout_s=deadline_s)
    stuck.start(IN_FLIGHT, wait_s=(_FOR_EVER_S, _FOR_EVER_S))

    def all_are_sent() -> bool:
        return len(stuck.begun()) + stage.redis.llen(keys.queue(STUCK)) >= IN_FLIGHT

    wait_until(all_are_sent, "all calls of the server that hangs are sent", _LEFT_S)
    meanwhile_s = _p95(stage, form.measured_s)
    stuck.wait()
    tally = Tally(calls=IN_FLIGHT, longest_s=max(call.seconds or float("inf") for call in stuck.answers))
    begun = set(stuck.begun())
    for call in stuck.answers:
        outcome = call.result.outcome if call.result else type(call.error).__name__
        tally.outcomes[str(outcome)] += 1
        allowed = Outcome.TIMEOUT if call.key in begun else Outcome.UNAVAILABLE
        tally.expect(outcome == allowed, f"{call.key} is `{outcome}`, not `{allowed}`")
        tally.lost += call.is_lost
    tally.expect(tally.longest_s <= deadline_s + _LATE_S, f"an answer came after {tally.longest_s:.1f} s")
    tally.notes.append(f"p95 of the other four: {before_s * 1e3:.1f} ms before, {meanwhile_s * 1e3:.1f} ms meanwhile")
    tally.expect(meanwhile_s <= form.slower * before_s, f"the others got {meanwhile_s / before_s:.2f} times slower")
    return tally


def _p95(stage: Stage, seconds: float) -> float:
    """Of calls to the servers that are well, one after another at each. For a time and not a number of calls: where
    nothing moves there are few, and each of them counts.
    """
    tools = stage.tools(20)
    took_s: list[float] = []
    ends_at = time.monotonic() + seconds

    def call_on(server: str) -> None:
        while time.monotonic() < ends_at:
            begun_at = time.perf_counter()
            result = tools.execute(ToolCall(id="well", name=f"{server}.look", arguments={"key": "well"}))
            took_s.append(time.perf_counter() - begun_at)
            assert result.outcome is Outcome.OK, result.content

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(call_on, server) for server in SERVERS if server != STUCK]:
            done.result()
    return statistics.quantiles(took_s, n=20)[-1]
