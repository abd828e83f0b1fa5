"""Who shares Redis with the workers: agents that die, and other applications."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from tarsy_tasks.broker import keys
from tests.chaos.load import Tally
from tests.chaos.stage import Form, Stage
from tests.processes import ServiceProcess, wait_until
from tests.redis_users import as_user

__all__ = ["an_agent_is_killed", "another_application_is_left_alone"]

IN_FLIGHT = 64
_HERE = Path(__file__).parent
_SOON_S = 15.0


def an_agent_is_killed(stage: Stage, form: Form) -> Tally:
    def subscribed() -> int:
        return len(stage.redis.pubsub_channels(f"{keys.REPLIES}*"))

    before = subscribed()
    process = ServiceProcess(
        [sys.executable, str(_HERE / "agent.py"), as_user(stage.url, "agent"), "desk", "orphan", str(IN_FLIGHT), "1"],
        stage.directory / "agent.log",
        {**os.environ},
        stage.directory,
    )
    process.wait_for_log("all are sent")
    ports = {each.laddr.port for each in psutil.Process(process.pid).net_connections()}
    held = _connections(stage, ports)
    process.process.kill()
    process.process.wait()
    wait_until(lambda: len(_runs(stage)) >= IN_FLIGHT, "its calls are executed all the same", _SOON_S)
    tally = Tally(calls=IN_FLIGHT)
    runs = _runs(stage)
    tally.doubled = len(runs) - len(set(runs))
    tally.expect(not tally.doubled, f"{len(runs)} executions of {len(set(runs))} calls")
    tally.outcomes["ok"] = len(set(runs))
    tally.expect(held, "the fault hit nothing: the agent held no connection")
    for what, gone in {
        "its connections are gone": lambda: not _connections(stage, ports),
        "its subscription is gone": lambda: subscribed() <= before,
        "the queue is empty": lambda: not stage.redis.llen("mcp.desk"),
    }.items():
        tally.expect_soon(gone, what)
    return tally


def another_application_is_left_alone(stage: Stage, form: Form) -> Tally:
    """Its task takes longer than leases of ours, while a worker of ours is killed and its calls are taken over."""
    ledger, may_end = stage.directory / "other.ledger", stage.directory / "other.may-end"
    process = ServiceProcess(
        [sys.executable, "-m", "celery", "-A", "other_application", "worker", "-l", "INFO", "-P", "threads"],
        stage.directory / "other.log",
        {**os.environ, "OTHER_REDIS_URL": stage.url},
        _HERE,
    )
    try:
        process.wait_for_log(" ready.")
        app = Celery(broker=stage.url, backend=stage.url, set_as_current=False)
        result = app.send_task("other.long", [str(ledger), str(may_end)])
        wait_until(ledger.exists, "the task of the other application runs", _SOON_S)
        kept = _unacked(stage)
        load = stage.load("other")
        load.start(IN_FLIGHT, wait_s=(0.5, 1.2 * stage.lease_s))
        victim = stage.workers[0]
        load.wait_for_begun(1, victim.pid)
        stage.give_up(victim)
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()
        tally = load.tally(unknown=True)
        tally.expect(kept, "the fault hit nothing: the other application kept nothing unacknowledged")
        tally.expect(_unacked(stage) == kept, "the unacknowledged tasks of the other application were touched")
        may_end.touch()
        tally.expect(result.get(timeout=_SOON_S) == "done", "the other task has another result")
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


def _connections(stage: Stage, ports: set[int]) -> int:
    """How many of Redis are from these ports."""
    return sum(int(client["addr"].rpartition(":")[2]) in ports for client in stage.redis.client_list())
