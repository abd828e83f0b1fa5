"""Changes of watched resources reach the agent, in both eras of MCP."""

from pathlib import Path

import pytest

from tarsy_tasks import ToolExecutor
from tests.conftest import StartWorker
from tests.processes import Worker
from tests.servers import noticeboard
from tests.servers.noticeboard import NOTICE
from tests.warm_start import warm_command

eras = pytest.mark.parametrize("server", ["new", "old"])


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    ledgers: Path = tmp_path_factory.mktemp("ledgers")
    servers = {
        "new": warm_command(noticeboard.__file__, str(ledgers / "new")),
        "old": warm_command(noticeboard.__file__, str(ledgers / "old"), "--handshake"),
    }
    return start_worker(servers)


@pytest.fixture
def tools() -> ToolExecutor:
    return ToolExecutor(timeout_s=20)


@eras
def test_a_change_reaches_who_watches(server: str, tools: ToolExecutor) -> None:
    with tools.watch_resource(NOTICE, server=server) as watch:
        assert tools.execute(f"{server}.pin", {"uri": NOTICE, "text": "open"}).content == "open"
        change = next(watch)
        assert (change.server, change.uri, change.is_certain) == (server, NOTICE, True)
