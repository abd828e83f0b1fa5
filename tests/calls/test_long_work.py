"""Answers as heavy as the limits allow: the calls of another server go on meanwhile, as if there were none."""

import subprocess
import sys
from pathlib import Path

import pytest

from tarsy_tasks import ToolExecutor
from tests.calls.neighbour import HEALTHY, call_neighbour
from tests.conftest import StartWorker
from tests.processes import Worker
from tests.servers import heavy_stdio

STALL_S = 6.0
"""No call takes so long, even on a busy machine; half a million values stopped all calls for twice that time."""
MAX_BYTES = 1_000_000_000
HEAVY_CALLS = 4
AGENT = f"""
import sys
from tarsy_tasks import ToolExecutor
with ToolExecutor(timeout_s=100) as tools:
    outcomes = {{tools.execute("heavy." + sys.argv[1], {{"text": "x"}}).outcome for _ in range({HEAVY_CALLS})}}
print(*outcomes)
"""
"""An agent in a process of its own: to read the heavy answers takes time, too."""


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    root = str(Path(__file__).parents[2])
    heavy = {"command": sys.executable, "args": ["-m", heavy_stdio.__name__], "cwd": root}
    return start_worker({**HEALTHY, "heavy": heavy})


@pytest.mark.parametrize("kind", heavy_stdio.KINDS)
def test_heavy_answers_delay_no_other_call(worker: Worker, kind: str) -> None:
    with ToolExecutor(timeout_s=60) as tools:
        tools.execute("neighbour.echo", {"text": "connect"})
        with subprocess.Popen(
            [sys.executable, "-c", AGENT, kind],
            stdout=subprocess.PIPE,
            text=True,
            env=worker.environment_of("agent"),
        ) as agent:
            beside_s: list[float] = []
            while agent.poll() is None:
                beside_s.append(call_neighbour(tools, STALL_S))
            assert agent.stdout is not None
            assert agent.stdout.read().split() == ["tool_error" if kind == "too_many_values" else "ok"]
    assert max(beside_s) < STALL_S
    assert _peak_bytes(worker) < MAX_BYTES


def _peak_bytes(worker: Worker) -> int:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
