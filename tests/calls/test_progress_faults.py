"""A worker or Redis is lost while an agent listens to the events of a call: the agent hears of it, and goes on."""

import sys
from pathlib import Path
from typing import Any

from tarsy_tasks import CallProgress, CallRestarted, Outcome, ToolExecutor
from tests.calls.test_lost_workers import SHORT_LEASE, kill
from tests.conftest import StartWorker
from tests.gates import make_gate, open_gate
from tests.processes import Worker, environment_of
from tests.servers import player_stdio
from tests.valkey import Valkey

SERVERS: dict[str, Any] = {"player": {"command": sys.executable, "args": ["-S", "-E", player_stdio.__file__]}}


def steps_around(gate: Path) -> dict[str, Any]:
    """A call that waits at a gate between its two halves."""
    return {"steps": [{"progress": {"progress": 5}}, {"wait_for": str(gate)}, {"progress": {"progress": 9}}]}


def test_a_call_of_a_lost_worker_says_that_it_restarts(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(SERVERS, settings=SHORT_LEASE)
    with ToolExecutor(timeout_s=60) as tools:
        half = make_gate(tmp_path / "half")
        pending = tools.submit("player.replay", steps_around(half), events=True)
        events = pending.events()
        first = next(events)
        assert isinstance(first, CallProgress)
        kill(worker)
        start_worker(SERVERS, settings=SHORT_LEASE)
        restarted = next(events)
        assert isinstance(restarted, CallRestarted)
        assert restarted.is_other_worker
        open_gate(half)
        reached = [event.progress for event in events if isinstance(event, CallProgress)]
        assert (pending.result().outcome, reached[-1]) == (Outcome.OK, 9)


def test_events_go_on_when_redis_is_back(tmp_path: Path) -> None:
    with Valkey() as valkey, Worker(tmp_path / "w", SERVERS, f"{valkey.connection_url}/0") as worker:
        worker.wait_until_ready()
        with environment_of(worker), ToolExecutor(timeout_s=60) as tools:
            half, end = make_gate(tmp_path / "half"), make_gate(tmp_path / "end")
            steps = [*steps_around(half)["steps"], {"wait_for": str(end)}]
            pending = tools.submit("player.play", {"steps": steps}, events=True)
            events = pending.events()
            assert isinstance(next(events), CallProgress)
            valkey.terminate()
            open_gate(half)
            valkey.start()
            last = next(events)
            assert isinstance(last, CallProgress)
            assert last.progress == 9
            open_gate(end)
            assert pending.result().outcome is Outcome.OK
        worker.stop()
