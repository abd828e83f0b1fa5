"""Redis can lose its keys while workers live: no run goes on without the state of its session, and unaware of that."""

from pathlib import Path
from typing import Any

import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import wait_until

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'


def test_a_run_is_told_that_redis_has_lost_its_session(
    start_worker: StartWorker, directory: Path, redis_url: str
) -> None:
    servers: dict[str, Any] = {
        "desk": witness(Ledger(directory / "desk")),
        "again": witness(Ledger(directory / "again"), isolated={"restart": True}),
    }
    worker = start_worker(servers, settings=SHORT_LEASE)
    with redis.Redis.from_url(redis_url) as store, ToolExecutor(session="run") as tools:
        for server in servers:
            assert [tools.execute(f"{server}.count").content for _ in range(2)] == ["1", "2"]
        assert store.delete(*store.keys("tarsy:session:*"), *store.keys("tarsy:sessions:*"))
        found: list[ToolResult] = []

        def is_asked_again(server: str) -> bool:
            """Whether the worker has asked Redis: it believes for a moment what that said before."""
            found.append(tools.execute(f"{server}.count"))
            return found[-1].outcome is not Outcome.OK or found[-1].content == "1"

        wait_until(lambda: is_asked_again("desk"), "the run learns of it")
        assert found[-1].error_code is ErrorCode.SESSION_LOST, found[-1].content
        assert "Redis has lost who holds it. This call was not sent" in found[-1].content
        assert [tools.execute("desk.count").content for _ in range(2)] == ["1", "2"]
        wait_until(lambda: is_asked_again("again"), "it is replaced")
        assert found[-1].outcome is Outcome.OK
        tools.close()
        wait_until(lambda: not store.keys("tarsy:session:*"), "all sessions are closed")
    # The next test's sessions are its own worker's: this one would take its calls, too.
    assert worker.stop() == 0


def test_another_worker_says_that_redis_has_lost_a_session(
    start_worker: StartWorker, directory: Path, redis_url: str
) -> None:
    """The worker that held it is gone, and Redis has forgotten that: only the run itself knows of its state."""
    servers: dict[str, Any] = {
        "desk": witness(Ledger(directory / "desk")),
        "again": witness(Ledger(directory / "again"), isolated={"restart": True}),
    }
    first = start_worker(servers, settings=SHORT_LEASE)
    with redis.Redis.from_url(redis_url) as store, ToolExecutor(session="run", run_id="r7") as tools:
        for server in servers:
            assert [tools.execute(f"{server}.count").content for _ in range(2)] == ["1", "2"]
        first.process.kill()
        first.process.wait()
        store.flushall()
        start_worker(servers, settings=SHORT_LEASE)
        with ToolExecutor(session="run", run_id="r7") as other:
            # This one has had no answer of the server yet: it knows of no state.
            assert other.execute("desk.count").content == "1"
            told = tools.execute("desk.count")
            assert (told.error_code, told.outcome) == (ErrorCode.SESSION_LOST, Outcome.UNKNOWN)
            assert "Redis has lost who holds it. This call was not sent" in told.content
            assert [each.execute("desk.count").content for each in (tools, other, tools)] == ["2", "3", "4"]
        assert tools.execute("again.count").content == "1", "it is replaced"
        assert tools.execute("again.count").content == "2"
        tools.close()
        assert tools.execute("desk.count").content == "1", "it has closed its session, and knows of none any more"
        tools.close()
        wait_until(lambda: not store.keys("tarsy:session:*"), "all sessions are closed")
