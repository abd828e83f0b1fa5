"""Beat, Flower and agents that run already go by a changed configuration, too."""

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.health_records import read_health
from tests.calls.deployment import DESK, Deployment
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Flower, ServiceProcess, wait_until


@pytest.fixture(scope="module")
def deployment(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    with redis.Redis.from_url(redis_url) as client:
        yield Deployment(start_worker, tmp_path_factory.mktemp("shared"), client, [""])


@pytest.fixture(scope="module")
def flower(deployment: Deployment, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    worker, directory = deployment.workers[0], tmp_path_factory.mktemp("others")
    beat = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "-l", "INFO"]
    environment = {"TARSY_MCP_CONFIG": str(deployment.path), "FLOWER_UNAUTHENTICATED_API": "true"}
    with ExitStack() as stack:
        log = directory / "beat.log"
        stack.enter_context(ServiceProcess(beat, log, worker.environment_of("beat"), directory))
        yield stack.enter_context(Flower(directory, redis_url, (), environment))


def servers_of(flower: Flower) -> set[str]:
    with urllib.request.urlopen(f"{flower.url}/mcp/api/servers", timeout=10) as response:
        found: list[dict[str, Any]] = json.load(response)["servers"]
    return {each["server"] for each in found}


def test_beat_flower_and_agents_follow_the_file(deployment: Deployment, flower: Flower, tmp_path: Any) -> None:
    client = deployment.client
    with ToolExecutor(timeout_s=20) as tools, ToolExecutor(["desk"], timeout_s=20) as only_desk:
        assert {tool.server for tool in tools.list_tools()} == {"desk"}
        deployment.serve({**DESK, "new": witness(Ledger(tmp_path / "new"))})
        look = ToolCall(name="new.look", arguments={"key": "a"})
        assert tools.execute(look).outcome is Outcome.OK, "before it lists the tools again"
        assert only_desk.execute(look).error_code is ErrorCode.UNKNOWN_SERVER
        assert {tool.server for tool in tools.list_tools()} == {"desk", "new"}
        wait_until(lambda: read_health(client, ["new"])["new"].check, "beat has it checked")
        wait_until(lambda: "new" in servers_of(flower), "Flower shows it")

        deployment.save(DESK)
        assert {tool.server for tool in tools.list_tools()} == {"desk"}
        assert tools.execute(look).error_code is ErrorCode.UNKNOWN_SERVER
    wait_until(lambda: not deployment.records("new"), "it is removed")
    wait_until(lambda: not client.exists(keys.check_sent_key("new")), "beat sends no more checks")
    assert not client.llen(keys.check_queue("new"))


def test_an_agent_keeps_what_it_knows_while_the_file_is_wrong(deployment: Deployment) -> None:
    with ToolExecutor(timeout_s=20) as tools:
        text = deployment.path.read_text()
        deployment.path.write_text(text[:-5])
        assert {tool.server for tool in tools.list_tools()} == {"desk"}
        deployment.save(DESK)
        assert {tool.server for tool in tools.list_tools()} == {"desk"}
