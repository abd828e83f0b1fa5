"""Two workers, beat, Flower and agents whose configuration is in Redis, each with a copy of its own, as on a machine of
its own: they follow an operator, and keep what they have while Redis has it no more."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tarsy_tasks.config.record import CONFIGURATION_KEY, HISTORY_KEY
from tarsy_tasks.telemetry.health_records import read_health
from tests.calls.deployment import DESK, TAKEN_S
from tests.calls.operated import Operated, change_servers_under_load, operate
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until


@pytest.fixture(scope="module")
def deployment(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    directory = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARSY_RUN_DIR", str(directory / "agent"))
        with operate(start_worker, redis_url, directory, is_recorded=True) as deployment:
            yield deployment
            deployment.client.delete(CONFIGURATION_KEY, HISTORY_KEY)


@pytest.fixture
def desk_only(deployment: Operated) -> None:
    deployment.save(DESK)
    wait_until(lambda: not deployment.records("busy"), "it is removed", TAKEN_S)
    deployment.wait_for(lambda record: not record.configuration_error)


def servers_of_an_agent() -> set[str]:
    with ToolExecutor(timeout_s=20) as tools:
        return {tool.server for tool in tools.list_tools()}


def test_all_parts_follow_an_operator_and_no_call_is_lost(deployment: Operated, tmp_path: Path) -> None:
    change_servers_under_load(deployment, tmp_path)
    assert "removed guest" in deployment.change("history")


@pytest.mark.usefixtures("desk_only")
def test_what_redis_has_lost_takes_no_server_from_anybody(deployment: Operated, tmp_path: Path) -> None:
    added = "add", "other", "--entry", json.dumps(witness(Ledger(tmp_path / "other")))
    deployment.client.delete(CONFIGURATION_KEY)
    deployment.wait_for(lambda record: "Redis has lost the configuration" in str(record.configuration_error))
    assert servers_of_an_agent() == {*DESK}
    for name in ("operator", "none"):  # a machine that knew it, and one that never did
        said = deployment.change(*added, code=2, run_dir=str(deployment.directory / name))
        assert "nothing was written" in said
        assert "servers publish" in said
    deployment.change("publish", str(deployment.path))
    deployment.wait_for(lambda record: not record.configuration_error)
    deployment.change(*added)
    deployment.wait_for(lambda record: record.healthy, "other")


@pytest.mark.usefixtures("desk_only")
def test_a_record_of_a_newer_version_is_refused_whole(deployment: Operated) -> None:
    before = json.loads(deployment.client.hget(CONFIGURATION_KEY, "version"))
    deployment.client.hset(CONFIGURATION_KEY, mapping={"digest": "new", "version": json.dumps({**before, "v": 2})})
    deployment.wait_for(lambda record: "written by a newer version" in str(record.configuration_error))
    assert servers_of_an_agent() == {*DESK}
    assert "update this one" in deployment.change("remove", "desk", code=2)
    deployment.client.hset(CONFIGURATION_KEY, mapping={"digest": before["digest"], "version": json.dumps(before)})
    deployment.wait_for(lambda record: not record.configuration_error)


@pytest.mark.usefixtures("desk_only")
def test_a_wrong_entry_that_got_into_redis_is_refused(deployment: Operated) -> None:
    assert deployment.record is not None
    text = json.dumps({"mcpServers": {**DESK, "bad": {"command": "x", "timeouts": {"call_s": "soon"}}}})
    record = deployment.record.record
    record.write(record.read(), text.encode(), who="a program", change="")
    deployment.wait_for(lambda record: "bad.timeouts.call_s" in str(record.configuration_error))
    assert servers_of_an_agent() == {*DESK}


@pytest.mark.usefixtures("desk_only")
def test_a_worker_that_starts_has_the_latest(deployment: Operated, tmp_path: Path) -> None:
    worker = deployment.workers[1]
    worker.stop()
    deployment.change("add", "late", "--entry", json.dumps(witness(Ledger(tmp_path / "late"))))
    with Worker(tmp_path / "again", {}, worker.environment["TARSY_REDIS_URL"], environment=worker.environment) as again:
        again.wait_for_log("connected to MCP server late")
        again.wait_until_ready()
        with ToolExecutor(timeout_s=20) as tools:
            call = ToolCall(name="late.look", arguments={"key": "a"})
            wait_until(lambda: tools.execute(call).outcome is Outcome.OK, "an agent knows it")
        # Or the message of its first check may be left in the queue.
        wait_until(lambda: read_health(deployment.client, ["late"])["late"].check, "beat has it checked", TAKEN_S)
        again.stop()
