"""Workers are killed, stopped and replaced."""

import os
import signal
from typing import Any

import psutil

from tarsy_tasks import ErrorCode, Outcome
from tests.chaos.load import Tally
from tests.chaos.stage import Form, Stage
from tests.faults.ledger import UNSAFE

__all__ = ["grace_is_over", "one_is_killed", "one_is_stopped", "they_are_restarted"]

IN_FLIGHT = 64
_ORPHAN_S = 5.0
_EXIT_S = 35.0


def one_is_killed(stage: Stage, form: Form) -> Tally:
    victim = stage.workers[0]
    load = stage.load("killed")
    load.start(IN_FLIGHT)
    load.wait_for_begun(stage.cast.concurrency, victim.pid)
    family = victim.children()
    begun = set(load.begun(victim.pid))
    cut_off = [answer for answer in load.unanswered() if answer.key in begun and answer.is_unsafe]
    stage.give_up(victim)
    os.kill(victim.pid, signal.SIGKILL)
    victim.process.wait()
    _, orphans = psutil.wait_procs(family, timeout=_ORPHAN_S)
    tally = load.tally(unknown=True)
    tally.expect(cut_off, "the fault hit nothing: no unsafe call was under way in the worker that was killed")
    tally.find(
        f"`{UNSAFE}` that had begun and are neither `unknown` nor were answered before",
        (call.key for call in cut_off if call.result and call.result.outcome not in (Outcome.UNKNOWN, Outcome.OK)),
    )
    tally.expect(tally.outcomes["unknown"], "no call that had begun is `unknown`")
    tally.expect(not orphans, f"children outlived their worker: {orphans}")
    tally.expect_answers_within(form.answered_s)
    return tally


def one_is_stopped(stage: Stage, form: Form) -> Tally:
    victim = stage.workers[0]
    load = stage.load("stopped")
    load.start(IN_FLIGHT)
    load.wait_for_begun(stage.cast.concurrency // 2, victim.pid)
    stage.give_up(victim)
    victim.ask_to_stop()
    tally = load.tally(repeats=False)
    _expect_exit(tally, victim)
    return tally


def they_are_restarted(stage: Stage, form: Form) -> Tally:
    load = stage.load("rolling")
    load.keep_going(IN_FLIGHT)
    tally = Tally()
    for worker in list(stage.workers):
        load.wait_for_begun(len(load.begun()) + IN_FLIGHT)
        stage.give_up(worker)
        worker.ask_to_stop()
        _expect_exit(tally, worker)
        stage.restore()
    replaced = [worker.pid for worker in stage.workers]
    for pid in replaced:
        load.wait_for_begun(stage.cast.concurrency, pid)
    findings = tally.findings
    tally = load.tally(repeats=False)
    tally.findings += findings
    return tally


def grace_is_over(stage: Stage, form: Form) -> Tally:
    """A worker is stopped whose calls take longer than it may."""
    grace_s, call_s = 1.0, 3.0
    hasty = stage.start_worker(TARSY_SHUTDOWN_GRACE_S=str(grace_s))
    hasty.wait_until_ready()
    load = stage.load("grace")
    load.start(IN_FLIGHT, wait_s=(call_s, call_s))
    load.wait_for_begun(stage.cast.concurrency, hasty.pid)
    begun = set(load.begun(hasty.pid))
    stage.give_up(hasty)
    hasty.ask_to_stop()
    tally = load.tally(unknown=True)
    stopped = [call for call in load.answers if call.result and call.result.error_code is ErrorCode.WORKER_STOPPED]
    unsafe = {call.key for call in load.answers if call.is_unsafe and call.key in begun}
    tally.find("unsafe that had begun and are not WORKER_STOPPED", unsafe - {call.key for call in stopped})
    tally.find("not under way, and WORKER_STOPPED all the same", {call.key for call in stopped} - begun)
    tally.expect(
        all((call.seconds or call_s) < call_s for call in stopped),
        "what cannot be finished was not answered as soon as the grace was over",
    )
    _expect_exit(tally, hasty)
    return tally


def _expect_exit(tally: Tally, worker: Any) -> None:
    try:
        code = worker.stop(timeout_s=_EXIT_S)
    except AssertionError as error:
        tally.findings.append(f"stopping a worker: {str(error)[:200]}")
    else:
        tally.expect(code == 0, f"the worker that was stopped ended with {code}")
