"""A stdio server fails with 64 calls in flight: each is answered, one session replaces the old one, nothing unsafe runs
twice.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tests.conftest import StartWorker
from tests.faults.ledger import IN_FLIGHT, Ledger, check_answers, submit_calls, wait_for_runs, witness
from tests.processes import Worker


@dataclass(frozen=True)
class Fault:
    """A way to fail: the signal that makes the witness do so, in an era."""

    name: str
    signal: signal.Signals
    probe: str

    @property
    def server(self) -> str:
        return f"{self.name}-{'new' if self.probe == 'answers' else 'old'}"


FAULTS = [
    Fault(name, number, probe)
    for name, number in [
        ("is-killed", signal.SIGKILL),
        ("closes-stdout", signal.SIGUSR1),
        ("exits", signal.SIGUSR2),
    ]
    for probe in ("answers", "refused")
]


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ledger]:
    directory: Path = tmp_path_factory.mktemp("ledgers")
    return {fault.server: Ledger(directory / fault.server) for fault in FAULTS}


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, ledgers: dict[str, Ledger]) -> Worker:
    return start_worker({fault.server: witness(ledgers[fault.server], "--probe", fault.probe) for fault in FAULTS})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=30)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.server)
def test_64_calls_in_flight_survive_or_are_reported(
    tools: ToolExecutor, worker: Worker, ledgers: dict[str, Ledger], fault: Fault
) -> None:
    ledger = ledgers[fault.server]
    keys = [f"held{number}" for number in range(IN_FLIGHT)]
    pending = submit_calls(tools, fault.server, keys, kinds=("look", "add", "renew", "add"))
    wait_for_runs(ledger, IN_FLIGHT)
    os.kill(server_pid(worker, ledger), fault.signal)
    results = [call.result() for call in pending]
    check_answers(results, ledger, lost=[result.call_id for result in results if result.name.endswith(".add")])
    assert {result.attempts for result in results if result.outcome is Outcome.OK} == {2}
    assert ledger.starts - 1 == 1
    after = tools.execute(ToolCall(id="after", name=f"{fault.server}.add", arguments={"key": "after"}))
    assert (after.content, after.attempts) == ("after", 1)
    assert ledger.starts - 1 == 1


def server_pid(worker: Worker, ledger: Ledger) -> int:
    [process] = worker.find_children(str(ledger.path))
    return process.pid
