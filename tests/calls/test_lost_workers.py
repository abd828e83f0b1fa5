"""A call whose worker was lost: whether it may have run depends on whether it had begun, and on nothing else."""

from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.utils.nodenames import gethostname

from tarsy_tasks import ErrorCode, Outcome, ToolResult
from tarsy_tasks.telemetry.audit import StepName
from tests.calls.audit_entries import only_entry
from tests.conftest import StartWorker
from tests.faults.ledger import UNSAFE, Ledger, wait_for_runs, witness
from tests.processes import Worker, wait_until

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
TIMEOUT_S = 30
HOST = gethostname()


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
        harmless = foreign.send_task("tarsy.call_tool", ["desk", "look", {"key": "held twice"}], queue="mcp.desk")
        wait_for_runs(ledger, 2)
        kill(worker)
        wait_until(lambda: client.time()[0] > deadline, "the deadline has passed")
        start_worker(server, settings=SHORT_LEASE)
        result = ToolResult.model_validate(sent.get(timeout=TIMEOUT_S))
        assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.WORKER_LOST)
        assert "may have run" in result.content
        entry = only_entry(client, sent.id)
        assert entry.error_code == ErrorCode.WORKER_LOST
        assert ToolResult.model_validate(harmless.get(timeout=TIMEOUT_S)).outcome is Outcome.OK
        repeated = only_entry(client, harmless.id)
    for each, further in ((entry, []), (repeated, [(StepName.SENT, None)])):
        (_, lost), *others = [(step.name, step.worker) for step in each.steps]
        assert (each.steps[0].name, lost, each.worker) == (StepName.SENT, f"w0@{HOST}", f"w1@{HOST}")
        assert others == [(StepName.PICKED_UP, None), *further, (StepName.ANSWERED, None)]
        assert each.steps[0].at < each.steps[1].at - 1, "before its lease had lapsed"
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
