"""Servers that do not get over the probe for the new era, and connections that a proxy closes while they are idle."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.agent.pending_call import PendingCall
from tests.conftest import StartWorker
from tests.faults.closing_proxy import ClosingProxy
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, is_alive, wait_until

PROXIED = [f"{era}-{reply}-none" for era in ("new", "old") for reply in ("json", "sse")]
PROBE_MS = 9_000
"""The SDK waits 10 s for an answer to its probe."""


@pytest.fixture(scope="module")
def proxy(witness_url: str) -> Iterator[ClosingProxy]:
    with ClosingProxy(int(witness_url.rpartition(":")[2])).running() as proxy:
        yield proxy


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, proxy: ClosingProxy, directory: Path) -> Worker:
    stdio = {kind: witness(Ledger(directory / kind), "--probe", kind) for kind in ("kills", "ignored")}
    proxied = {name: {"url": f"http://127.0.0.1:{proxy.port}/{name.replace('-', '/')}"} for name in PROXIED}
    return start_worker({**stdio, **proxied})


@pytest.fixture(scope="module", autouse=True)
def first_of_ignored(tools: ToolExecutor) -> PendingCall:
    """Takes 10 s, in which the other tests go on."""
    return tools.submit(ToolCall(id="first", name="ignored.add", arguments={"key": "first"}))


def add(tools: ToolExecutor, server: str, key: str) -> ToolResult:
    return tools.execute(ToolCall(id=key, name=f"{server}.add", arguments={"key": key}))


def look(tools: ToolExecutor, server: str, key: str) -> ToolResult:
    """Harmless to repeat: the worker may not have noticed yet that the server is gone."""
    return tools.execute(ToolCall(id=key, name=f"{server}.look", arguments={"key": key}))


@pytest.mark.parametrize("server", PROXIED)
def test_a_connection_closed_while_idle_loses_no_call(
    tools: ToolExecutor, proxy: ClosingProxy, directory: Path, server: str
) -> None:
    assert add(tools, server, "before").outcome is Outcome.OK
    proxy.close_connections()
    result = add(tools, server, "after")
    assert (result.outcome, result.content) == (Outcome.OK, "after")
    assert Ledger(directory / server).runs() == {"before": 1, "after": 1}


# The SDK closes a connection once the answer has come as an event stream; only the others are ever idle.
@pytest.mark.parametrize("server", [name for name in PROXIED if "json" in name])
def test_a_connection_closed_at_sending_loses_unsafe_calls_only(
    tools: ToolExecutor, proxy: ClosingProxy, directory: Path, server: str
) -> None:
    assert add(tools, server, "first").outcome is Outcome.OK
    proxy.hangs_up_on_next = True
    result = add(tools, server, "unsafe")
    assert not proxy.hangs_up_on_next
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.SESSION_LOST)
    assert Ledger(directory / server).runs("add")["unsafe"] == 0
    assert add(tools, server, "second").outcome is Outcome.OK
    proxy.hangs_up_on_next = True
    harmless = look(tools, server, "harmless")
    assert (harmless.outcome, harmless.attempts) == (Outcome.OK, 2), harmless.content


def test_a_server_killed_by_the_probe_is_restarted_without_it(
    tools: ToolExecutor, worker: Worker, directory: Path
) -> None:
    ledger = Ledger(directory / "kills")
    assert add(tools, "kills", "first").outcome is Outcome.OK
    assert ledger.starts == 2
    kill_server(worker, ledger)
    assert look(tools, "kills", "second").outcome is Outcome.OK
    assert ledger.starts == 3


def test_a_server_that_ignores_the_probe_is_waited_for_once(
    tools: ToolExecutor, worker: Worker, directory: Path, first_of_ignored: PendingCall
) -> None:
    ledger = Ledger(directory / "ignored")
    assert first_of_ignored.result().outcome is Outcome.OK
    kill_server(worker, ledger)
    assert look(tools, "ignored", "second").outcome is Outcome.OK
    assert ledger.runs() == {"first": 1, "second": 1}
    lines = [line for line in worker.log.splitlines() if "connected to MCP server ignored:" in line]
    first_ms, second_ms = (int(line.split()[-2]) for line in lines)
    assert second_ms < PROBE_MS <= first_ms


def kill_server(worker: Worker, ledger: Ledger) -> None:
    [process] = worker.find_children(str(ledger.path))
    process.kill()
    wait_until(lambda: not is_alive(process), "the server is gone")
