"""A call whose worker was lost: whether it may have run depends on whether it had begun, and on nothing else."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM

import pytest
import redis
from celery import Celery
from celery.utils.nodenames import gethostname

from tarsy_tasks import ErrorCode, Outcome, ToolResult
from tarsy_tasks.telemetry.audit import StepName
from tests.calls.audit_entries import only_entry
from tests.conftest import StartWorker
from tests.faults.ledger import UNSAFE, Ledger, wait_for_runs, witness
from tests.gates import make_gate, open_gate
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


def test_a_worker_that_was_paused_takes_no_call_away(
    start_worker: StartWorker, foreign: Celery, ledger: Ledger, tmp_path: Path
) -> None:
    """It has taken a call, is paused, and is stopped when it goes on: then another worker runs the call."""
    paused = start_worker(
        {"mall": witness(ledger, "--mute", "2", session="per_call")},
        settings=SHORT_LEASE,
        environment={"TARSY_SHUTDOWN_GRACE_S": "0"},
    )
    wait_until(lambda: ledger.starts == 1, "the session that lists the tools")
    sent = foreign.send_task("tarsy.call_tool", ["mall", "meet", {"key": "once"}], queue="mcp.mall")
    wait_until(lambda: ledger.starts == 2, "the session of the call is being opened")
    paused.process.send_signal(SIGSTOP)
    gate = make_gate(tmp_path / "gate")
    start_worker({"mall": witness(ledger, "--gate", str(gate), session="per_call")}, settings=SHORT_LEASE)
    wait_for_runs(ledger, 1)
    paused.process.send_signal(SIGTERM)
    paused.process.send_signal(SIGCONT)
    assert paused.process.wait(TIMEOUT_S) == 0
    for key in ("next", "later", "last"):  # what is given back would come first
        assert foreign.send_task("tarsy.call_tool", ["mall", "look", {"key": key}], queue="mcp.mall").get(TIMEOUT_S)
    open_gate(gate)
    assert ToolResult.model_validate(sent.get(timeout=TIMEOUT_S)).outcome is Outcome.OK
    assert ledger.runs()["once"] == 1


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
