"""Large texts with secrets are masked in a process beside the worker: also when it is killed, and gone with it."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tarsy_tasks import Outcome, ToolExecutor, ToolResult
from tarsy_tasks.masking import process
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of, is_alive, wait_until
from tests.servers import heavy_stdio
from tests.servers.misbehaving_stdio import SECRET

ROOT = str(Path(__file__).parents[2])
HEAVY = {"command": sys.executable, "args": ["-m", heavy_stdio.__name__], "cwd": ROOT}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    return start_worker({"heavy": HEAVY})


def call(tools: ToolExecutor, server: str = "heavy") -> None:
    check(tools.submit(f"{server}.secrets", {"text": "x"}).result())


def check(result: ToolResult) -> None:
    assert result.outcome is Outcome.OK
    assert result.content.count("password: __MASKED__\n") > 2000
    assert SECRET not in result.content + repr(result.structured)


def masking_process_of(worker: Worker) -> psutil.Process:
    [found] = [child for child in worker.children() if child.name() == process.NAME]
    return found


def cpu_s(found: psutil.Process) -> float:
    times = found.cpu_times()
    return times.user + times.system


def test_large_answers_are_masked_beside_the_worker(worker: Worker) -> None:
    found = masking_process_of(worker)
    with ToolExecutor(timeout_s=60) as tools:
        began = cpu_s(found)

        def works() -> bool:
            call(tools)
            return cpu_s(found) > began + 1

        wait_until(works, "it masks", 60)


def test_it_is_older_than_the_servers(worker: Worker) -> None:
    with ToolExecutor(timeout_s=60) as tools:
        call(tools)
    [server] = worker.find_children(heavy_stdio.__name__)
    assert masking_process_of(worker).create_time() <= server.create_time()
    assert "large texts are masked in threads" not in worker.log


def test_what_it_was_killed_over_is_masked(start_worker: StartWorker) -> None:
    worker = start_worker({"killed": HEAVY})  # of no other worker
    found = masking_process_of(worker)
    with environment_of(worker), ToolExecutor(timeout_s=60) as tools:
        found.suspend()
        pending = tools.submit("killed.secrets", {"text": "x"})
        found.kill()
        check(pending.result())
        call(tools, "killed")
    worker.wait_for_log("the process that masks large texts")
    assert "has failed" in worker.log
    assert not [child for child in worker.children() if child.name() == process.NAME], "it is not started again"
    assert worker.stop() == 0


def test_a_worker_that_cannot_be_forked_says_so_and_masks(start_worker: StartWorker) -> None:
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    worker = start_worker({"threads": HEAVY}, settings=thread)
    assert "large texts are masked in threads, which delays other calls: threads run already" in worker.log
    with environment_of(worker), ToolExecutor(timeout_s=60) as tools:
        call(tools, "threads")
    assert not [child for child in worker.children() if child.name() == process.NAME]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_it_ends_when_its_worker_stops(start_worker: StartWorker, number: signal.Signals) -> None:
    worker = start_worker({})
    found = masking_process_of(worker)
    worker.stop(number)  # it fails when a child is left
    assert not is_alive(found)


def test_it_ends_with_its_worker_also_when_stopped(start_worker: StartWorker) -> None:
    worker = start_worker({})
    found = masking_process_of(worker)
    found.suspend()
    worker.process.kill()
    wait_until(lambda: not is_alive(found), "it is gone")
