"""A stdio server is stopped (SIGSTOP) with 64 calls in flight: its pipes stay open, but nothing is answered."""

import os
import signal
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolExecutor
from tests.conftest import StartWorker
from tests.faults.ledger import IN_FLIGHT, Ledger, check_answers, submit_calls, wait_for_runs, witness
from tests.processes import Worker, is_alive, wait_until

PROBES = {"new": "answers", "old": "refused"}
HALF = IN_FLIGHT // 2


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ledger]:
    directory: Path = tmp_path_factory.mktemp("ledgers")
    return {era: Ledger(directory / era) for era in PROBES}


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, ledgers: dict[str, Ledger]) -> Worker:
    return start_worker({era: witness(ledgers[era], "--probe", probe) for era, probe in PROBES.items()})


@pytest.mark.parametrize("era", PROBES)
def test_a_stopped_server_is_replaced(worker: Worker, ledgers: dict[str, Ledger], era: str) -> None:
    ledger, tools = ledgers[era], ToolExecutor(timeout_s=30)
    running = submit_calls(tools, era, [f"held{number}" for number in range(HALF)])
    wait_for_runs(ledger, HALF)
    [stopped] = worker.find_children(str(ledger.path))
    os.kill(stopped.pid, signal.SIGSTOP)
    unread = submit_calls(tools, era, [f"unread{number}" for number in range(HALF)])
    results = [call.result() for call in [*running, *unread]]
    # The worker cannot know that the server read nothing of what was written to it.
    check_answers(results, ledger, lost=[result.call_id for result in results if result.name.endswith(".add")])
    assert {result.attempts for result in results if result.outcome is Outcome.OK} == {2}
    assert not ledger.runs("add").keys() & {result.call_id for result in results[HALF:]}
    assert ledger.starts - 1 == 1
    wait_until(lambda: not is_alive(stopped), "the stopped server is gone")
