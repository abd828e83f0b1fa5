"""Changes of watched resources reach the agent, in both eras of MCP."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tarsy_tasks import ToolExecutor
from tests.conftest import StartWorker
from tests.processes import Worker
from tests.servers import noticeboard
from tests.servers.noticeboard import NOTICE
from tests.warm_start import warm_command


@pytest.fixture(scope="module")
def start(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Worker]:
    ledgers: Path = tmp_path_factory.mktemp("ledgers")
    servers = {
        "new": warm_command(noticeboard.__file__, str(ledgers / "new")),
        "old": warm_command(noticeboard.__file__, str(ledgers / "old"), "--handshake"),
    }
    return lambda: start_worker(servers)


@pytest.fixture(scope="module", autouse=True)
def worker(start: Callable[[], Worker]) -> Worker:
    return start()


@pytest.mark.parametrize("server", ["new", "old"])
def test_a_change_reaches_who_watches(server: str) -> None:
    tools = ToolExecutor(timeout_s=20)
    with tools.watch_resource(NOTICE, server=server) as watch:
        assert tools.execute(f"{server}.pin", {"uri": NOTICE, "text": "open"}).content == "open"
        change = next(watch)
        assert (change.server, change.uri, change.is_certain) == (server, NOTICE, True)


def test_after_a_lost_worker_a_resource_may_have_changed(worker: Worker, start: Callable[[], Worker]) -> None:
    """The last test: the first worker, which subscribes, is lost, and another one takes over."""
    tools = ToolExecutor(timeout_s=20)
    with tools.watch_resource(NOTICE, server="new") as new, tools.watch_resource(NOTICE, server="old") as old:
        start()
        os.kill(worker.pid, signal.SIGKILL)
        worker.process.wait()
        for watch in (new, old):
            assert next(watch).is_certain is False
