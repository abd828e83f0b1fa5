"""Workers and agents whose configuration is in Redis: they follow an operator, and keep it over a restart."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tarsy_tasks.telemetry.health_records import read_health
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until

TAKEN_S = 20.0


def is_served(client: Any, server: str) -> bool:
    records = read_health(client, [server])[server].workers.values()
    return bool(records) and all(record.healthy for record in records)


@pytest.mark.keeps_keys
def test_servers_in_redis_come_and_go(
    start_worker: StartWorker, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARSY_RUN_DIR", str(tmp_path / "agent"))
    worker = start_worker({}, environment={"TARSY_MCP_CONFIG": "redis"})
    environment = {**worker.environment, "TARSY_RUN_DIR": str(tmp_path / "operator")}

    def change(*words: str, code: int = 0) -> str:
        done = run_command("servers", *words, environment=environment)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    first, second = Ledger(tmp_path / "first"), Ledger(tmp_path / "second")
    with ToolExecutor(timeout_s=20) as tools:
        assert not tools.list_tools(), "Redis was empty"
        change("add", "one", "--entry", json.dumps(witness(first)))
        wait_until(lambda: is_served(client, "one"), "it is served", TAKEN_S)
        look = ToolCall(id="1", name="one.look", arguments={"key": "a"})
        wait_until(lambda: tools.execute(look).outcome is Outcome.OK, "the agent knows it", TAKEN_S)
        assert "must not contain secrets" in change(
            "add", "bad", "--entry", '{"command": "x", "env": {"API_TOKEN": "s3cr3t-0123456789"}}', code=2
        )
        assert "added one" in change("history")

        worker.stop()
        change("add", "two", "--entry", json.dumps(witness(second)))
        again = Worker(
            worker.config_path.parent, {}, worker.environment["TARSY_REDIS_URL"], environment=worker.environment
        )
        with again:
            again.wait_until_ready()
            wait_until(lambda: is_served(client, "one") and is_served(client, "two"), "both are served", TAKEN_S)
            wait_until(lambda: {each.server for each in tools.list_tools()} == {"one", "two"}, "both are listed")
            change("remove", "one")
            wait_until(lambda: {each.server for each in tools.list_tools()} == {"two"}, "one is left", TAKEN_S)
