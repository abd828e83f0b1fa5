"""A worker that is killed while it replaces a server: the other one answers what it had."""

import signal
from pathlib import Path

import redis

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tests.calls.deployment import DESK, Deployment
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import wait_until


def test_a_worker_killed_during_a_swap_loses_no_call(start_worker: StartWorker, redis_url: str, tmp_path: Path) -> None:
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    with redis.Redis.from_url(redis_url) as client:
        deployment = Deployment(start_worker, tmp_path, client)
        deployment.serve({**DESK, "books": witness(old)})
        deployment.wait_for(lambda record: record.healthy, "books")
        with ToolExecutor(["desk"], timeout_s=60) as tools, ToolExecutor(timeout_s=60) as books:
            calls = [
                books.submit(ToolCall(name="books.look", arguments={"key": str(n), "wait_s": 6})) for n in range(12)
            ]
            wait_until(lambda: len(old.lines("run")) == len(calls), "the calls run")
            deployment.save({**DESK, "books": witness(new)})
            wait_until(lambda: new.starts, "a worker makes the new session")
            deployment.workers[0].process.send_signal(signal.SIGKILL)
            assert {each.result().outcome for each in calls} == {Outcome.OK}
            assert set(old.runs()) | set(new.runs()) == {str(n) for n in range(12)}
            later = books.execute(ToolCall(name="books.look", arguments={"key": "later"}))
            assert later.outcome is Outcome.OK
            assert new.runs()["later"] == 1
            assert tools.execute(ToolCall(name="desk.echo", arguments={"text": "here"})).outcome is Outcome.OK
