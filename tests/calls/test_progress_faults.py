"""A worker or Redis is lost while an agent listens to the events of a call: the agent hears of it, and goes on."""

import sys
from pathlib import Path
from typing import Any

from tarsy_tasks import CallProgress, CallRestarted, Outcome, ToolExecutor
from tests.calls.test_lost_workers import SHORT_LEASE, kill
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of
from tests.servers import player_stdio
from tests.valkey import Valkey

SERVERS: dict[str, Any] = {"player": {"command": sys.executable, "args": ["-S", "-E", player_stdio.__file__]}}


def steps_around(path: Path) -> dict[str, Any]:
    """A call that waits for the path between its two halves."""
    return {"steps": [{"progress": {"progress": 5}}, {"wait_for": str(path)}, {"progress": {"progress": 9}}]}


def test_a_call_of_a_lost_worker_says_that_it_restarts(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(SERVERS, settings=SHORT_LEASE)
    with ToolExecutor(timeout_s=60) as tools:
        pending = tools.submit("player.replay", steps_around(tmp_path / "half"), events=True)
        events = pending.events()
        first = next(events)
        assert isinstance(first, CallProgress)
        kill(worker)
        start_worker(SERVERS, settings=SHORT_LEASE)
        restarted = next(events)
        assert isinstance(restarted, CallRestarted)
        assert restarted.is_other_worker
        (tmp_path / "half").touch()
        reached = [event.progress for event in events if isinstance(event, CallProgress)]
        assert (pending.result().outcome, reached[-1]) == (Outcome.OK, 9)


def test_events_go_on_when_redis_is_back(tmp_path: Path) -> None:
    with Valkey() as valkey, Worker(tmp_path / "w", SERVERS, f"{valkey.connection_url}/0") as worker:
        worker.wait_until_ready()
        with environment_of(worker), ToolExecutor(timeout_s=60) as tools:
            steps = [*steps_around(tmp_path / "half")["steps"], {"wait_for": str(tmp_path / "end")}]
            pending = tools.submit("player.play", {"steps": steps}, events=True)
            events = pending.events()
            assert isinstance(next(events), CallProgress)
            valkey.terminate()
            (tmp_path / "half").touch()
            valkey.start()
            last = next(events)
            assert isinstance(last, CallProgress)
            assert last.progress == 9
            (tmp_path / "end").touch()
            assert pending.result().outcome is Outcome.OK
        worker.stop()
