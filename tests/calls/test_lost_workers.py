"""A call whose worker was lost: whether it may have run depends on whether it had begun, and on nothing else."""

from pathlib import Path

import pytest
import redis
from celery import Celery

from tarsy_tasks import ErrorCode, Outcome, ToolResult
from tests.calls.audit_entries import only_entry
from tests.conftest import StartWorker
from tests.faults.ledger import UNSAFE, Ledger, wait_for_runs, witness
from tests.processes import Worker, wait_until

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
TIMEOUT_S = 30


@pytest.fixture
def foreign(redis_url: str) -> Celery:
    """A producer that withdraws nothing at the deadline."""
    return Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def kill(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()


def test_a_begun_call_is_unknown_also_past_its_deadline(
    start_worker: StartWorker, foreign: Celery, ledger: Ledger, redis_url: str
) -> None:
    server = {"desk": witness(ledger)}
    worker = start_worker(server, settings=SHORT_LEASE)
    with redis.Redis.from_url(redis_url) as client:
        deadline = client.time()[0] + 5
        arguments = ["desk", UNSAFE, {"key": "held"}, {"deadline": deadline}]
        sent = foreign.send_task("tarsy.call_tool", arguments, queue="mcp.desk")
        wait_for_runs(ledger, 1)
        kill(worker)
        wait_until(lambda: client.time()[0] > deadline, "the deadline has passed")
        start_worker(server, settings=SHORT_LEASE)
        result = ToolResult.model_validate(sent.get(timeout=TIMEOUT_S))
        assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.WORKER_LOST)
        assert "may have run" in result.content
        assert only_entry(client, sent.id).error_code == ErrorCode.WORKER_LOST
    assert ledger.runs(UNSAFE)["held"] == 1


def test_a_call_whose_session_was_being_opened_runs(start_worker: StartWorker, foreign: Celery, ledger: Ledger) -> None:
    server = {"shop": witness(ledger, "--mute", "2", session="per_call")}
    worker = start_worker(server, settings=SHORT_LEASE)
    wait_until(lambda: ledger.starts == 1, "the session that lists the tools")
    sent = foreign.send_task("tarsy.call_tool", ["shop", UNSAFE, {"key": "unsent"}], queue="mcp.shop")
    wait_until(lambda: ledger.starts == 2, "the session of the call is being opened")
    kill(worker)
    start_worker(server, settings=SHORT_LEASE)
    result = ToolResult.model_validate(sent.get(timeout=TIMEOUT_S))
    assert (result.outcome, result.content) == (Outcome.OK, "unsent")
    assert ledger.runs(UNSAFE)["unsent"] == 1
