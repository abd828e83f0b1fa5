"""Servers that start on demand: they run while they are used, and are healthy while they do not."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.telemetry.health_records import HealthRecord, HealthStatus, ServerHealth, read_health
from tests.calls.deployment import DESK, Deployment
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until

IDLE_S = 1
ON_DEMAND: dict[str, Any] = {"start": "on_demand", "idle_stop_s": IDLE_S}
MANY = 40
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pinned": {"pin": "block"},
    "apart": {"session": "per_call"},
    "budgeted": {"error_budget": {"max_failure_rate": 0.5}},
    **({"boxed": {"sandbox": "no-network"}} if sys.platform == "linux" else {}),
}


class OnDemand:
    """A worker with many such servers, and the ledgers of some."""

    def __init__(self, start_worker: StartWorker, directory: Path, client: Any) -> None:
        self.client = client
        self.directory = directory
        self.ledgers = {name: Ledger(directory / name) for name in (*VARIANTS, "long", "listed", "checked", "crowd")}
        servers = {name: witness(self.ledgers[name], **ON_DEMAND, **more) for name, more in VARIANTS.items()}
        servers |= {name: witness(self.ledgers[name], **ON_DEMAND) for name in ("long", "listed", "checked")}
        servers |= {f"one-of-{n}": witness(self.ledgers["crowd"], **ON_DEMAND) for n in range(MANY)}
        missing = str(directory / "missing.py")
        servers["late"] = {"command": sys.executable, "args": [missing], **ON_DEMAND, "timeouts": {"recreate_s": 0.5}}
        self.worker = start_worker(servers)

    def health(self, server: str) -> ServerHealth:
        return read_health(self.client, [server])[server]

    def record(self, server: str) -> HealthRecord | None:
        return next(iter(self.health(server).workers.values()), None)

    def wait_until_idle(self, server: str) -> HealthRecord:
        def found() -> HealthRecord | None:
            record = self.record(server)
            return record if record is not None and record.is_idle else None

        return wait_until(found, f"{server} is idle: {self.record(server)}")

    def wait_until_stopped(self, server: str) -> None:
        path = str(self.ledgers[server].path)
        wait_until(lambda: not self.worker.find_children(path), f"the process of {server} has ended")
        self.wait_until_idle(server)


@pytest.fixture(scope="module")
def stage(start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnDemand]:
    with redis.Redis.from_url(redis_url) as client:
        yield OnDemand(start_worker, tmp_path_factory.mktemp("servers"), client)


@pytest.fixture(scope="module")
def tools(stage: OnDemand) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=40) as tools:
        yield tools


def call(tools: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(name=name, arguments=arguments))


def test_of_forty_servers_only_those_run_that_are_used(stage: OnDemand, tools: ToolExecutor) -> None:
    for n in range(MANY):
        assert stage.wait_until_idle(f"one-of-{n}").healthy
    assert not stage.ledgers["crowd"].starts
    used = [tools.submit(ToolCall(name=f"one-of-{n}.look", arguments={"key": str(n)})) for n in range(3)]
    assert {each.result().outcome for each in used} == {Outcome.OK}
    assert stage.ledgers["crowd"].starts == len(used)
    wait_until(lambda: not stage.worker.find_children(str(stage.ledgers["crowd"].path)), "they are stopped")


@pytest.mark.parametrize("server", VARIANTS)
def test_a_server_is_started_stopped_and_started_again(stage: OnDemand, tools: ToolExecutor, server: str) -> None:
    ledger = stage.ledgers[server]
    assert stage.wait_until_idle(server).tool_count is None
    assert call(tools, f"{server}.look", key="a").outcome is Outcome.OK
    stage.wait_until_stopped(server)
    starts = ledger.starts
    record = stage.wait_until_idle(server)
    assert (record.healthy, record.tool_count, record.error) == (True, 6, None)
    assert call(tools, f"{server}.look", key="b").outcome is Outcome.OK
    assert ledger.starts > starts
    assert ledger.runs() == {"a": 1, "b": 1}
    stage.wait_until_stopped(server)


def test_a_call_that_runs_keeps_its_server(stage: OnDemand, tools: ToolExecutor) -> None:
    found = call(tools, "long.add", key="long", wait_s=3 * IDLE_S)
    assert found.outcome is Outcome.OK
    assert found.attempts == 1
    assert stage.ledgers["long"].starts == 1
    stage.wait_until_stopped("long")


def test_a_list_of_tools_starts_a_server_only_once(stage: OnDemand) -> None:
    with ToolExecutor(["listed"], timeout_s=40) as tools:
        before = list(tools.list_tools())
        assert len(before) == 6
        stage.wait_until_stopped("listed")
        assert list(tools.list_tools()) == before
    assert stage.ledgers["listed"].starts == 1


def test_a_check_starts_no_server(stage: OnDemand, redis_url: str) -> None:
    stage.wait_until_idle("checked")
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        app.send_task(CHECK_SERVER, ("checked",), queue="mcp.checked.check")
    check = wait_until(lambda: stage.health("checked").check, "the check is answered")
    assert check.is_idle
    health = stage.health("checked")
    assert (health.status, health.is_idle, health.reason) == (HealthStatus.HEALTHY, True, "")
    assert not stage.ledgers["checked"].starts


def test_a_failed_start_is_reported_and_tried_again(stage: OnDemand, tools: ToolExecutor) -> None:
    stage.wait_until_idle("late")
    found = call(tools, "late.look", key="a")
    assert (found.outcome, found.error_code) == (Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)
    failed = wait_until(lambda: (each := stage.record("late")) and not each.healthy and each, "it is unhealthy")
    assert not failed.is_idle
    ledger = Ledger(stage.directory / "late")
    start = f"[sys.executable, *{witness(ledger)['args']!r}]"
    (stage.directory / "missing.py").write_text(f"import os, sys\nos.execv(sys.executable, {start})\n")
    assert stage.wait_until_idle("late").tool_count == 6, "a check started it, and nobody used it"
    assert call(tools, "late.look", key="b").outcome is Outcome.OK


def test_a_change_of_its_entry_is_taken(
    start_worker: StartWorker, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    with redis.Redis.from_url(redis_url) as client:
        deployment = Deployment(start_worker, tmp_path, client, [""])
        monkeypatch.setenv("TARSY_MCP_CONFIG", str(deployment.path))
        deployment.serve({**DESK, "books": witness(old, **ON_DEMAND)})
        deployment.wait_for(lambda record: record.is_idle, "books")
        with ToolExecutor(timeout_s=40) as tools:
            running = tools.submit(ToolCall(name="books.add", arguments={"key": "running", "wait_s": 6}))
            wait_until(lambda: old.lines("run"), "it runs")
            deployment.serve({**DESK, "books": witness(new, **ON_DEMAND)})
            assert call(tools, "books.look", key="later").outcome is Outcome.OK
            assert running.result().outcome is Outcome.OK
            assert (old.runs(), new.runs()) == ({"running": 1}, {"later": 1})
            deployment.serve({**DESK, "books": witness(new)})
            deployment.wait_for(lambda record: record.healthy and not record.is_idle, "books")
            deployment.serve(DESK)
        worker: Worker = deployment.workers[0]
        wait_until(lambda: not worker.find_children(str(new.path)), "its process has ended")
