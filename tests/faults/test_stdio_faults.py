"""A stdio server fails with 64 calls in flight: each is answered, one session replaces the old one, nothing unsafe runs
twice.
"""

import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tests.chaos.faults import frozen
from tests.conftest import StartWorker
from tests.faults.ledger import IN_FLIGHT, Ledger, check_answers, submit_calls, wait_for_runs, witness
from tests.processes import Worker, is_alive, wait_until


@dataclass(frozen=True)
class Fault:
    """A way to fail: the signal that makes the witness do so, in an era."""

    name: str
    signal: signal.Signals
    probe: str

    @property
    def server(self) -> str:
        return f"{self.name}-{'new' if self.probe == 'answers' else 'old'}"


def in_both_eras(name: str, number: signal.Signals) -> list[Fault]:
    return [Fault(name, number, probe) for probe in ("answers", "refused")]


LOST = [
    *in_both_eras("is-killed", signal.SIGKILL),
    *in_both_eras("closes-stdout", signal.SIGUSR1),
    *in_both_eras("exits", signal.SIGUSR2),
]
STOPPED = in_both_eras("is-stopped", signal.SIGSTOP)
"""Its pipes stay open, but nothing is answered."""
FAULTS = [*LOST, *STOPPED]
HALF = IN_FLIGHT // 2


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ledger]:
    directory: Path = tmp_path_factory.mktemp("ledgers")
    return {fault.server: Ledger(directory / fault.server) for fault in FAULTS}


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, ledgers: dict[str, Ledger]) -> Worker:
    return start_worker({fault.server: witness(ledgers[fault.server], "--probe", fault.probe) for fault in FAULTS})


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.server)
def test_64_calls_in_flight_survive_or_are_reported(
    tools: ToolExecutor, worker: Worker, ledgers: dict[str, Ledger], fault: Fault
) -> None:
    ledger = ledgers[fault.server]
    keys = [f"held{number}" for number in range(IN_FLIGHT)]
    pending = submit_calls(tools, fault.server, keys, kinds=("look", "add", "renew", "add"))
    wait_for_runs(ledger, IN_FLIGHT)
    server_process(worker, ledger).send_signal(fault.signal)
    results = [call.result() for call in pending]
    check_answers(results, ledger, lost=[result.call_id for result in results if result.name.endswith(".add")])
    assert {result.attempts for result in results if result.outcome is Outcome.OK} == {2}
    assert ledger.starts - 1 == 1
    after = tools.execute(ToolCall(id="after", name=f"{fault.server}.add", arguments={"key": "after"}))
    assert (after.content, after.attempts) == ("after", 1)
    assert ledger.starts - 1 == 1


@pytest.mark.parametrize("fault", STOPPED, ids=lambda fault: fault.server)
def test_a_stopped_server_is_replaced(
    tools: ToolExecutor, worker: Worker, ledgers: dict[str, Ledger], fault: Fault
) -> None:
    ledger = ledgers[fault.server]
    running = submit_calls(tools, fault.server, [f"held{number}" for number in range(HALF)])
    wait_for_runs(ledger, HALF)
    stopped = server_process(worker, ledger)
    with frozen(worker.pid):  # they are written as soon as it goes on, before it notices
        unread = submit_calls(tools, fault.server, [f"unread{number}" for number in range(HALF)])
        stopped.send_signal(fault.signal)
    results = [call.result() for call in [*running, *unread]]
    # The worker cannot know that the server read nothing of what was written to it.
    check_answers(results, ledger, lost=[result.call_id for result in results if result.name.endswith(".add")])
    assert {result.attempts for result in results if result.outcome is Outcome.OK} == {2}
    assert not ledger.runs("add").keys() & {result.call_id for result in results[HALF:]}
    assert ledger.starts - 1 == 1
    wait_until(lambda: not is_alive(stopped), "the stopped server is gone")


def server_process(worker: Worker, ledger: Ledger) -> psutil.Process:
    [process] = worker.find_children(str(ledger.path))
    return process
