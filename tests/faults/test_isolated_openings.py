"""A worker that goes while it opens a session of a run, before Redis knows of anything in it: the call runs elsewhere,
and no loss is reported."""

import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.gates import make_gate, open_gate
from tests.processes import Worker, wait_until

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
WAITS = 'test -e "$0" && read -r line < "$0"; exec "$@"'


@pytest.fixture(scope="module")
def gate(directory: Path) -> Path:
    """While it is closed, no session is opened."""
    return directory / "gate"


@pytest.fixture(scope="module")
def start(start_worker: StartWorker, directory: Path, gate: Path) -> Any:
    entry = witness(Ledger(directory / "slow"), start="on_demand")
    command = ["-c", WAITS, str(gate), entry.pop("command"), *entry.pop("args")]
    servers = {"slow": {"command": "sh", "args": command, **entry}}
    return lambda: start_worker(servers, settings=SHORT_LEASE)


def holder_of_new(client: Any, workers: list[Worker]) -> Worker:
    """The worker that has claimed the only session."""

    def find() -> Worker | None:
        names = [client.hget(key, "holder").decode() for key in client.keys("tarsy:session:*")]
        found = (worker for worker in workers for name in names if name.startswith(f"{worker.log_path.stem}@"))
        return next(found, None)

    return wait_until(find, "a worker has claimed the session", 60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_goes_while_it_opens_loses_nothing(
    start: Any, gate: Path, redis_url: str, number: signal.Signals
) -> None:
    make_gate(gate)
    workers = [start(), start()]
    with redis.Redis.from_url(redis_url) as client, ToolExecutor(session="run", timeout_s=90) as tools:
        first = tools.submit("slow.count")
        holder = holder_of_new(client, workers)
        assert not client.hget(client.keys("tarsy:session:*")[0], "open")
        holder.ask_to_stop(number)
        open_gate(gate)
        counted = [first.result(), *(tools.execute("slow.count") for _ in range(2))]
        if number is signal.SIGTERM and counted[1].error_code is ErrorCode.SESSION_LOST:
            # It finished the call while it stopped; then the state is gone, which is said once.
            assert [each.content for each in (counted[0], counted[2])] == ["1", "1"]
        else:
            assert [each.content for each in counted] == ["1", "2", "3"]
        assert all(each.outcome is Outcome.OK for each in (counted[0], counted[2]))
    with redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: not client.hlen(keys.UNACKED), "the session is closed", 60)
    for worker in workers:
        worker.ask_to_stop()
        worker.process.wait(60)
