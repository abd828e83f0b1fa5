"""Servers that take long to start, and one that does one thing at a time: that alone does not make them unhealthy."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.telemetry.health_records import HealthStatus, ServerHealth, read_health
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.gates import make_gate, open_gate
from tests.processes import Worker, wait_until
from tests.servers import misbehaving_stdio

PLACES = 1 + (os.cpu_count() or 1)
SLOW = [f"slow{number}" for number in range(PLACES + 2)]
WAITS = 'date +%s.%N >> "$1"; test -e "$0" && read -r line < "$0"; shift; exec "$@"'
"""A server that starts when the gate is open, and writes into a file when it was wanted."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("slow")
    make_gate(directory / "gate")
    return directory


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, directory: Path) -> Worker:
    kind = [misbehaving_stdio.__file__, "does-one-thing-at-a-time"]
    servers: dict[str, Any] = {"serial": {"command": sys.executable, "args": kind, "timeouts": {"list_s": 1}}}
    for name in SLOW:
        server = witness(Ledger(directory / f"{name}.ledger"))
        files = [str(directory / "gate"), str(directory / "starts")]
        servers[name] = {"command": "sh", "args": ["-c", WAITS, *files, server["command"], *server["args"]]}
    worker = start_worker(servers)
    worker.wait_for_log("connected to MCP server serial")
    return worker


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(scope="module")
def app(redis_url: str) -> Iterator[TarsyApp]:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    yield app
    app.close()


def starts(directory: Path) -> list[float]:
    file = directory / "starts"
    return sorted(map(float, file.read_text().split())) if file.exists() else []


def check(app: TarsyApp, client: Any, server: str) -> ServerHealth:
    """How a server is found by a check that begins now."""
    before = read_health(client, [server])[server].checked_at
    app.send_task(CHECK_SERVER, (server,))
    return wait_until(
        lambda: (found := read_health(client, [server])[server]).checked_at != before and found, "it is checked"
    )


def test_checks_keep_the_start_limit_and_find_nothing_unhealthy(
    worker: Worker, app: TarsyApp, client: Any, directory: Path
) -> None:
    for name in SLOW:
        app.send_task(CHECK_SERVER, (name,))
    wait_until(lambda: len(starts(directory)) == len(SLOW), "those that take long give way")
    began = starts(directory)
    assert began[PLACES] - began[0] > 3, "the others waited until then"
    found = read_health(client, SLOW)
    assert {each.status for each in found.values()} == {HealthStatus.UNKNOWN}, "their checks took 2.5 s"
    open_gate(directory / "gate")
    found = wait_until(
        lambda: all((found := read_health(client, SLOW))[name].healthy for name in SLOW) and found,
        "all are connected, and beat's checks are answered",
    )
    assert client.xrange(keys.ALERTS) == []


def test_a_slow_restart_is_unhealthy_but_raises_no_alert(
    worker: Worker, app: TarsyApp, client: Any, directory: Path
) -> None:
    make_gate(directory / "gate")
    (process,) = worker.find_children(str(directory / "slow0.ledger"))
    process.kill()
    process.wait(5)
    worker.wait_for_log("lost the session with MCP server slow0")
    first = check(app, client, "slow0")
    assert (first.status, "was not connected within 2.5 s" in first.reason) == (HealthStatus.UNHEALTHY, True)
    wait_until(
        lambda: (check(app, client, "slow0").checked_at or 0) > (first.checked_at or 0) + 5, "several checks later"
    )
    assert client.hget(keys.alert_state_key("slow0"), "said") == b"healthy"
    open_gate(directory / "gate")
    wait_until(lambda: read_health(client, ["slow0"])["slow0"].healthy, "it is well again")
    assert client.xrange(keys.ALERTS) == []


def test_a_server_that_is_busy_with_one_call_is_healthy(
    worker: Worker, app: TarsyApp, client: Any, directory: Path
) -> None:
    busy = make_gate(directory / "busy")
    with ToolExecutor(timeout_s=30) as tools:
        assert tools.execute(ToolCall(id="1", name="serial.echo", arguments={"text": "a"})).outcome is Outcome.OK
        pending = tools.submit(ToolCall(id="2", name="serial.act", arguments={"text": str(busy)}))
        wait_until(lambda: client.hget(keys.call_marker(pending.id), "mark") == b"begun", "it runs")
        app.send_task(CHECK_SERVER, ("serial",))
        worker.wait_for_log("MCP server serial did not list its tools within 1 s: it is busy with 1 calls")
        found = wait_until(lambda: read_health(client, ["serial"])["serial"].check, "the check is answered")
        assert (found.healthy, found.is_busy) == (True, False), "it answered a moment ago"
        open_gate(busy)
        assert pending.result().outcome is Outcome.OK
    assert "lost the session with MCP server serial" not in worker.log


def test_a_failed_refresh_is_reported_and_does_not_block_others(worker: Worker, app: TarsyApp, directory: Path) -> None:
    def ask(command: str, **arguments: str) -> dict[str, Any]:
        (reply,) = app.control.broadcast(command, arguments, reply=True, timeout=5, limit=1)
        (answer,) = reply.values()
        return answer

    busy = make_gate(directory / "busy")
    told = "MCP server `serial` failed to list its tools: it did not list its tools within 1 s"
    with ToolExecutor(timeout_s=30) as tools:
        pending = tools.submit(ToolCall(id="1", name="serial.act", arguments={"text": str(busy)}))
        wait_until(lambda: ask("mcp_sessions")["serial"]["in_flight"], "the call runs")
        assert ask("mcp_refresh", server="serial")["ok"]["done"] is False
        for _ in range(30):
            app.control.broadcast("mcp_refresh", {"server": "serial"})
        assert "pong" in str(ask("ping")), "within 5 s"
        worker.wait_for_log(told)
        assert told in ask("mcp_sessions")["serial"]["last_error"]
        open_gate(busy)
        assert pending.result().outcome is Outcome.OK
    wait_until(lambda: ask("mcp_refresh", server="serial")["ok"]["done"], "it lists them again")
