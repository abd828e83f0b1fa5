"""Who shares Redis with the workers: agents that die, and other applications."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from celery import Celery

from tests.chaos.load import Tally
from tests.chaos.stage import Form, Stage
from tests.processes import ServiceProcess, wait_until

__all__ = ["an_agent_is_killed", "another_application_is_left_alone"]

IN_FLIGHT = 64
_HERE = Path(__file__).parent
_SOON_S = 15.0


def an_agent_is_killed(stage: Stage, form: Form) -> Tally:
    connections, patterns = _connections(stage), stage.redis.pubsub_numpat()
    process = ServiceProcess(
        [sys.executable, str(_HERE / "agent.py"), stage.url, "desk", "orphan", str(IN_FLIGHT), "1"],
        stage.directory / "agent.log",
        {**os.environ},
        stage.directory,
    )
    process.wait_for_log("all are sent")
    during = _connections(stage)
    process.process.kill()
    process.process.wait()
    wait_until(lambda: len(_runs(stage)) >= IN_FLIGHT, "its calls are executed all the same", _SOON_S)
    tally = Tally(calls=IN_FLIGHT)
    tally.doubled = sum(count > 1 for count in stage.ledger.runs().values() if count)
    runs = _runs(stage)
    tally.expect(len(runs) == len(set(runs)) == IN_FLIGHT, f"{len(runs)} executions of {len(set(runs))} calls")
    tally.outcomes["ok"] = len(set(runs))
    tally.expect(during > connections, "the fault hit nothing: the agent held no connection")
    for what, gone in {
        "its connections are gone": lambda: _connections(stage) <= connections,
        "its subscription is gone": lambda: stage.redis.pubsub_numpat() <= patterns,
        "the queue is empty": lambda: not stage.redis.llen("mcp.desk"),
    }.items():
        _expect_soon(tally, gone, what)
    return tally


def another_application_is_left_alone(stage: Stage, form: Form) -> Tally:
    """Its task takes longer than our leases, while a worker of ours is killed and its calls are taken over."""
    ledger = stage.directory / "other.ledger"
    process = ServiceProcess(
        [sys.executable, "-m", "celery", "-A", "other_application", "worker", "--pool", "threads", "-c", "2"],
        stage.directory / "other.log",
        {**os.environ, "OTHER_REDIS_URL": stage.url},
        _HERE,
    )
    try:
        process.wait_for_log(" ready.")
        app = Celery(broker=stage.url, backend=stage.url, set_as_current=False)
        result = app.send_task("other.long", [2.5 * stage.lease_s, str(ledger)])
        wait_until(ledger.exists, "the task of the other application runs", _SOON_S)
        kept = _unacked(stage)
        load = stage.load("other")
        load.start(IN_FLIGHT)
        victim = stage.workers[0]
        load.wait_for_begun(stage.cast.concurrency, victim.pid)
        stage.give_up(victim)
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()
        tally = load.tally(unknown=True)
        tally.expect(kept, "the fault hit nothing: the other application kept nothing unacknowledged")
        tally.expect(_unacked(stage) == kept, "the unacknowledged tasks of the other application were touched")
        tally.expect(result.get(timeout=3 * stage.lease_s + _SOON_S) == "done", "the other task has another result")
        runs = len(ledger.read_text().splitlines())
        tally.expect(runs == 1, f"the task of the other application ran {runs} times")
        app.close()
    finally:
        process.stop()
    stage.redis.delete(*stage.redis.keys("_kombu.binding*celery*"))
    return tally


def _unacked(stage: Stage) -> tuple[Any, Any]:
    """Where stock Celery keeps what it has not acknowledged: messages and when they were taken."""
    return stage.redis.hgetall("unacked"), stage.redis.zrange("unacked_index", 0, -1, withscores=True)


def _runs(stage: Stage) -> list[str]:
    return [line[2] for line in stage.ledger.lines("run") if line[2].startswith("orphan-")]


def _connections(stage: Stage) -> int:
    return len(stage.redis.client_list())


def _expect_soon(tally: Tally, holds: Any, what: str) -> None:
    try:
        wait_until(holds, what, _SOON_S)
    except AssertionError as error:
        tally.findings.append(str(error))
