"""What a worker does about servers that are not there when it starts."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, free_port, is_alive, listening, wait_until
from tests.servers import misbehaving_stdio, witness_http

BROKEN = {"command": "/no/such/command"}
HANGING = {"command": sys.executable, "args": [misbehaving_stdio.__file__, "hangs"]}
WAITING = "waiting for MCP servers"


def _strict(timeout_s: float = 60) -> dict[str, str]:
    return {"TARSY_STARTUP": "strict", "TARSY_STARTUP_TIMEOUT_S": str(timeout_s)}


def _ended(worker: Worker) -> int:
    """The exit code of a worker that ends by itself, leaving no process behind."""
    children = worker.children()
    code = worker.process.wait(40)
    wait_until(lambda: not any(map(is_alive, children)), "no child is left", timeout_s=5)
    return code


def _refusals(worker: Worker) -> list[str]:
    return [line for line in worker.log.splitlines() if "cannot start" in line]


def test_a_strict_start_fails_and_names_each_missing_server(start_worker: StartWorker) -> None:
    servers = {"good": DEMO_SERVER, "absent": BROKEN, "mute": HANGING}
    worker = start_worker(servers, environment=_strict(6), wait=False)
    wait_until(lambda: len(worker.children()) >= 2, "the servers have been started")
    assert _ended(worker) == 3
    lines = _refusals(worker)
    assert len(lines) == 2
    assert "`absent`" in lines[0]
    assert "/no/such/command" in lines[0]
    assert "`mute` was not connected within 6 s" in lines[1]
    assert " ready." not in worker.log


def test_a_strict_start_does_not_wait_for_an_unset_variable(start_worker: StartWorker) -> None:
    unset: dict[str, Any] = {"command": "x", "env": {"TOKEN": "${TARSY_TEST_NEVER_SET}"}}
    worker = start_worker({"secretive": unset}, environment=_strict(), wait=False)
    assert _ended(worker) == 3
    (line,) = _refusals(worker)
    assert "TARSY_TEST_NEVER_SET" in line


def test_a_strict_start_asks_once_where_it_is_refused(start_worker: StartWorker, tmp_path: Path) -> None:
    port = free_port()
    refusing = {"url": f"http://127.0.0.1:{port}/new/json/connect-status-401"}
    with listening([sys.executable, witness_http.__file__, str(port), str(tmp_path)], port, tmp_path):
        worker = start_worker({"refusing": refusing}, environment=_strict(), wait=False)
        assert _ended(worker) == 3
    assert (tmp_path / "new-json-connect-status-401").read_text().count("request") == 1
    assert "401" in _refusals(worker)[0]


def test_a_strict_start_waits_for_a_server_that_comes_up_later(start_worker: StartWorker, tmp_path: Path) -> None:
    port = free_port()
    late = {"url": f"http://127.0.0.1:{port}/mcp", "timeouts": {"recreate_s": 1}}
    worker = start_worker({"late": late}, environment=_strict(), wait=False)
    worker.wait_for_log("`late` is not available")
    assert " ready." not in worker.log
    command = [sys.executable, "-m", "tarsy_tasks.demo.server", "--http", str(port)]
    with listening(command, port, tmp_path):
        worker.wait_until_ready()
        assert worker.log.index("connected to MCP server late") < worker.log.index(" ready.")
        assert worker.stop() == 0


def test_a_strict_start_warns_of_a_missing_optional_server(start_worker: StartWorker) -> None:
    servers = {"good": DEMO_SERVER, "spare": {**BROKEN, "required": False}}
    worker = start_worker(servers, environment=_strict())
    worker.wait_for_log("started without MCP servers: spare")
    assert worker.log.index("connected to MCP server good") < worker.log.index(" ready.")
    assert worker.stop() == 0


def test_a_strict_start_asks_only_for_the_servers_that_it_serves(start_worker: StartWorker) -> None:
    servers = {"good": DEMO_SERVER, "absent": BROKEN, "unused": {**BROKEN, "enabled": False}}
    worker = start_worker(servers, environment=_strict(), arguments=["-Q", "mcp.good"])
    assert "absent" not in worker.log
    assert worker.stop() == 0


def test_a_degraded_start_names_the_servers_that_are_missing(start_worker: StartWorker) -> None:
    worker = start_worker({"good": DEMO_SERVER, "absent": BROKEN}, environment={"TARSY_STARTUP": "degraded"})
    worker.wait_for_log("started without MCP servers: absent")
    worker.wait_for_log("connected to MCP server good")
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 1), (signal.SIGQUIT, 0)], ids=lambda value: str(value)
)
def test_a_strict_start_that_waits_is_ended_by_a_signal(
    start_worker: StartWorker, number: signal.Signals, code: int
) -> None:
    worker = start_worker({"mute": HANGING}, environment=_strict(), wait=False)
    worker.wait_for_log(WAITING)
    wait_until(worker.children, "the server has been started")
    assert worker.stop(number, timeout_s=8) == code
    assert "Traceback" not in worker.log
