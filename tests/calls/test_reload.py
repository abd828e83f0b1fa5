"""Servers and policies that change while workers run: every worker takes them, and no call is lost."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.health_records import HealthRecord, read_health
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import DEMO_SERVER, Worker, is_alive, wait_until

GRACE_S = 2
TAKEN_S = 5.0
"""How long a worker may take to go by a changed file."""
DESK = {"desk": DEMO_SERVER}


class Deployment:
    """Two workers on one configuration file, of which the second lets kombu fetch its messages."""

    def __init__(self, start_worker: StartWorker, directory: Path, client: Any) -> None:
        self.path = directory / "mcp.json"
        self.directory = directory
        self.client = client
        self.save(DESK)
        environment = {"TARSY_MCP_CONFIG": str(self.path), "TARSY_SHUTDOWN_GRACE_S": str(GRACE_S)}
        fetch_by_kombu = "broker_transport_options = {'queue_order_strategy': 'round_robin'}"
        self.workers = [
            start_worker(DESK, environment=environment, wait=False, settings=settings)
            for settings in ("", fetch_by_kombu)
        ]
        for worker in self.workers:
            worker.wait_until_ready()

    def save(self, servers: dict[str, Any], **more: Any) -> None:
        """As an editor does: whole, or not at all."""
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({"mcpServers": servers, **more}))
        written.replace(self.path)

    def records(self, server: str) -> list[HealthRecord]:
        return [*read_health(self.client, [server])[server].workers.values()]

    def wait_for(self, found: Callable[[HealthRecord], bool], server: str = "desk") -> None:
        """Until both workers report it."""

        def holds() -> bool:
            records = self.records(server)
            return len(records) == len(self.workers) and all(map(found, records))

        wait_until(holds, f"both workers report it of {server}: {self.records(server)}", TAKEN_S)

    def serve(self, servers: dict[str, Any], **more: Any) -> None:
        """Save a configuration, and wait until both workers have it."""
        before = {record.configuration for record in self.records("desk")}
        self.save(servers, **more)
        self.wait_for(lambda record: record.configuration not in before)


@pytest.fixture(scope="module")
def deployment(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    with redis.Redis.from_url(redis_url) as client:
        yield Deployment(start_worker, tmp_path_factory.mktemp("shared"), client)


@pytest.fixture(autouse=True)
def _begins_with_the_desk(deployment: Deployment) -> Iterator[None]:
    yield
    deployment.save(DESK)


def call(tools: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(id="1", name=name, arguments=arguments))


def test_a_server_that_is_added_is_served_by_all_workers(deployment: Deployment, tmp_path: Path) -> None:
    deployment.serve({**DESK, "new": witness(Ledger(tmp_path / "new"))})
    deployment.wait_for(lambda record: record.healthy, "new")
    with ToolExecutor(timeout_s=20) as tools:
        assert {tool.server for tool in tools.list_tools()} == {"desk", "new"}
        calls = [tools.submit(ToolCall(name="new.look", arguments={"key": str(n), "wait_s": 0.2})) for n in range(40)]
        assert {each.result().outcome for each in calls} == {Outcome.OK}
