"""A deployment of two workers, beat and Flower, whose servers an operator adds, changes, disables, enables and removes
under load: every part follows, and no call is lost. `test_configuration_in_redis` does the same with one in Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import ErrorCode, ToolCall, ToolExecutor
from tests.calls.deployment import DESK
from tests.calls.operated import Operated, change_servers_under_load, operate
from tests.conftest import StartWorker


@pytest.fixture(scope="module")
def deployment(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    with operate(start_worker, redis_url, tmp_path_factory.mktemp("shared")) as deployment:
        yield deployment


def test_all_parts_follow_an_operator_and_no_call_is_lost(deployment: Operated, tmp_path: Path) -> None:
    change_servers_under_load(deployment, tmp_path)


def test_an_agent_keeps_what_it_knows_while_the_file_is_wrong(deployment: Operated) -> None:
    with ToolExecutor(["desk"], timeout_s=20) as only_desk, ToolExecutor(timeout_s=20) as tools:
        servers = {tool.server for tool in tools.list_tools()}
        text = deployment.path.read_text()
        deployment.path.write_text(text[:-5])
        assert {tool.server for tool in tools.list_tools()} == servers
        deployment.save(DESK)
        assert {tool.server for tool in tools.list_tools()} == {*DESK}
        busy = ToolCall(name="busy.look", arguments={"key": "a"})
        assert only_desk.execute(busy).error_code is ErrorCode.UNKNOWN_SERVER
