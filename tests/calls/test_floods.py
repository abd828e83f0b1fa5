"""Servers that say more than anybody can read: the others' calls do not notice, and their own answers still come."""

import sys
from collections.abc import Iterator

import psutil
import pytest

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tests.calls.neighbour import HEALTHY, call_neighbour
from tests.conftest import StartWorker
from tests.processes import Worker, free_port, listening
from tests.servers import misbehaving_stdio, misbehaving_web

FLOODING = ["floods-stdio", "floods-http", "floods-sse"]
CALLS = 100


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    port = free_port()
    stdio = [misbehaving_stdio.__file__, "floods-notifications"]
    with listening([sys.executable, misbehaving_web.__file__, str(port)], port, tmp_path_factory.mktemp("web")):
        yield start_worker(
            {
                **HEALTHY,
                "floods-stdio": {"command": sys.executable, "args": stdio},
                "floods-http": {"url": f"http://127.0.0.1:{port}/http/call/floods"},
                "floods-sse": {"type": "sse", "url": f"http://127.0.0.1:{port}/sse/call/floods"},
            }
        )


def test_floods_cost_little_and_all_servers_are_answered(worker: Worker) -> None:
    tools = ToolExecutor(timeout_s=30)
    tools.execute("neighbour.echo", {"text": "connect"})
    quiet_s = _cpu_of_calls(tools, worker)
    for server in FLOODING:
        assert _call(tools, server, "act") is Outcome.OK
    for server in FLOODING:
        worker.wait_for_log(f"MCP server {server} sends too much beside its answers")

    flooded_s = _cpu_of_calls(tools, worker)

    assert flooded_s < 4 * quiet_s  # 27 times as much if nothing slows the reading
    for server in ("floods-stdio", "floods-http"):  # on SSE all that the kernel has buffered comes first
        assert _call(tools, server, "echo") is Outcome.OK
    assert [worker.log.count(f"MCP server {server} sends too much beside its answers") for server in FLOODING] == [
        1,
        1,
        1,
    ]


def _call(tools: ToolExecutor, server: str, tool: str) -> Outcome:
    return tools.execute(ToolCall(id="c", name=f"{server}.{tool}", arguments={"text": "again"})).outcome


def _cpu_of_calls(tools: ToolExecutor, worker: Worker) -> float:
    """Seconds of the worker's CPU time while the healthy server answers, one call after the other."""
    process = psutil.Process(worker.pid)
    before = process.cpu_times()
    for _ in range(CALLS):
        call_neighbour(tools, 6)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system
