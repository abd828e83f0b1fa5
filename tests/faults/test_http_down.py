"""HTTP servers die with 64 calls each in flight or on their way, are away for 3 s, and are back on their ports."""

import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolExecutor, ToolResult
from tests.conftest import StartWorker
from tests.faults.ledger import IN_FLIGHT, Ledger, check_answers, submit_calls, wait_for_runs
from tests.processes import ServiceProcess, Worker, free_port, listening, wait_until
from tests.servers import either_era

DOWN_S = 3.0
HALF = IN_FLIGHT // 2
VARIANTS = {
    "new": (),
    "new-json": ("--json",),
    "old": ("--handshake",),
    "old-json": ("--handshake", "--json"),
    "sse-new": ("--sse",),
    "sse-old": ("--handshake", "--sse"),
}


@dataclass
class Server:
    """A server of the SDK, whose ledger outlives its processes, and what its calls came to."""

    name: str
    ledger: Ledger
    port: int = field(default_factory=free_port)
    results: list[ToolResult] = field(default_factory=list)

    def running(self) -> AbstractContextManager[ServiceProcess]:
        command = [sys.executable, either_era.__file__, *VARIANTS[self.name], "--ledger", str(self.ledger.path)]
        return listening([*command, "--http", str(self.port)], self.port, self.ledger.path.parent)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Server]:
    directory: Path = tmp_path_factory.mktemp("ledgers")
    return {name: Server(name, Ledger(directory / name)) for name in VARIANTS}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, servers: dict[str, Server]) -> Worker:
    def entry(server: Server) -> dict[str, object]:
        # A Python server needs seconds to start; those are not the outage that is asked about.
        timeouts = {"recreate_s": 25}
        if server.name.startswith("sse"):
            return {"transport": "sse", "url": f"http://127.0.0.1:{server.port}/sse", "timeouts": timeouts}
        return {"url": f"http://127.0.0.1:{server.port}/mcp", "timeouts": timeouts}

    return start_worker({name: entry(server) for name, server in servers.items()})


@pytest.fixture(scope="module", autouse=True)
def outage(worker: Worker, servers: dict[str, Server]) -> Iterator[None]:
    """All go through it at once, to save time; each test looks at one."""
    tools = ToolExecutor(timeout_s=45)
    with ExitStack() as stack, ThreadPoolExecutor() as at_once:

        def start() -> list[ServiceProcess]:
            return list(at_once.map(lambda server: stack.enter_context(server.running()), servers.values()))

        first = start()
        pending = {name: submit_calls(tools, name, [f"held{number}" for number in range(HALF)]) for name in servers}
        for server in servers.values():
            wait_for_runs(server.ledger, HALF)
        for process in first:
            process.process.send_signal(signal.SIGKILL)
            process.process.wait()
        back_at = time.monotonic() + DOWN_S
        for name in servers:
            pending[name] += submit_calls(tools, name, [f"new{number}" for number in range(HALF)])
        wait_until(lambda: time.monotonic() >= back_at, "the servers were down long enough")
        start()
        for name, server in servers.items():
            server.results = [call.result() for call in pending[name]]
        yield


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_outage_of_3_s_loses_no_call_that_may_be_repeated(
    worker: Worker, servers: dict[str, Server], variant: str
) -> None:
    server = servers[variant]
    in_flight, while_down = server.results[:HALF], server.results[HALF:]
    check_answers(in_flight, server.ledger, lost=[result.call_id for result in in_flight if "add" in result.name])
    failed = [result for result in while_down if result.outcome is not Outcome.OK]
    if variant.startswith("sse"):
        # The stream may end while the request of a call is on its way: then nobody can say whether it arrived.
        failed = [each for each in failed if "look" in each.name or each.outcome is not Outcome.UNKNOWN]
    assert [(each.name, each.content) for each in failed] == []
    assert set(server.ledger.runs("add").values()) == {1}
    assert server.ledger.starts == 2
    # Without a session, the new era does not even notice; else one replaces the one that was forgotten.
    assert worker.log.count(f"connected to MCP server {variant}:") - 1 <= 1
