"""Large texts with secrets are masked in a process beside the worker: also when it is killed, and gone with it."""

import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tarsy_tasks import Outcome, ToolExecutor, ToolResult
from tarsy_tasks.masking import process as program
from tests.conftest import StartWorker
from tests.processes import Worker, is_alive, read_command, wait_until
from tests.servers import heavy_stdio
from tests.servers.misbehaving_stdio import SECRET

ROOT = str(Path(__file__).parents[2])
CONFIGURED = "configured-and-kept-5512"
HEAVY = {
    "command": sys.executable,
    "args": ["-m", heavy_stdio.__name__],
    "cwd": ROOT,
    "env": {"SERVICE_TOKEN": CONFIGURED},
}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    return start_worker({"heavy": HEAVY})


def call(tools: ToolExecutor) -> None:
    check(tools.submit("heavy.secrets", {"text": "x"}).result())


def check(result: ToolResult) -> None:
    assert result.outcome is Outcome.OK
    assert result.content.count("password: __MASKED__\n") > 2000
    assert SECRET not in result.content + repr(result.structured)


def masking_process_of(worker: Worker, tools: ToolExecutor) -> psutil.Process:
    """It is started by the first large text, and works for a later one."""

    def find() -> psutil.Process | None:
        call(tools)
        found = worker.find_children(program.__name__)
        return found[0] if found and is_alive(found[0]) else None

    return wait_until(find, "the process is started")


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_large_answers_are_masked_beside_the_worker(worker: Worker) -> None:
    with ToolExecutor(timeout_s=60) as tools:
        process = masking_process_of(worker, tools)
        began = cpu_s(process)

        def works() -> bool:
            call(tools)
            return cpu_s(process) > began + 1

        wait_until(works, "it masks", 60)
    shown = " ".join(read_command(process))
    with suppress(psutil.AccessDenied):  # which only root is not
        shown += repr(process.environ())
    assert CONFIGURED not in shown
    assert "redis" not in shown.lower().replace("site-packages", "")
    assert process.nice() > psutil.Process(worker.pid).nice()


def test_what_it_was_killed_over_is_masked(worker: Worker) -> None:
    with ToolExecutor(timeout_s=60) as tools:
        process = masking_process_of(worker, tools)
        process.send_signal(signal.SIGSTOP)
        pending = tools.submit("heavy.secrets", {"text": "x"})
        process.kill()
        check(pending.result())
        assert masking_process_of(worker, tools).pid != process.pid


def test_it_ends_with_its_worker(worker: Worker) -> None:
    with ToolExecutor(timeout_s=60) as tools:
        process = masking_process_of(worker, tools)
        worker.process.kill()
        wait_until(lambda: not is_alive(process), "it is gone")
