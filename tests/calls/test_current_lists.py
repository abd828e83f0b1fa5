"""`list_tools` while servers change, fail and come back, and workers go: from the catalogue, or by asking a worker."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolExecutor, ToolList
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, environment_of, wait_until
from tests.servers import witness_stdio


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a server that can be deleted."""
    return Path(shutil.copy(witness_stdio.__file__, tmp_path_factory.mktemp("fragile") / "fragile.py"))


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, fragile: Path, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    directory = tmp_path_factory.mktemp("ledgers")
    servers = {
        "shop": witness(Ledger(directory / "shop"), instructions="Look first."),
        "broken": {"command": "no-such-program-here"},
        "later": witness(Ledger(directory / "later"), start="on_demand", idle_stop_s=1),
        "fragile": {
            "command": sys.executable,
            "args": ["-S", "-E", str(fragile), str(directory / "fragile")],
            "timeouts": {"recreate_s": 1},
        },
    }
    return start_worker(servers)


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(["shop"], timeout_s=30) as tools:
        yield tools


def is_known(tools: ToolExecutor) -> ToolList | None:
    """The list, if it needed no worker: then its definitions are those of the list before."""
    before, now = tools.list_tools(), tools.list_tools()
    return now if len(now) and now[0] is before[0] else None


def test_a_change_is_listed_without_asking(tools: ToolExecutor) -> None:
    listed = wait_until(lambda: is_known(tools), "the list is current")
    assert "shop.grown" not in [tool.name for tool in listed]
    assert listed.instructions == {"shop": "Look first."}
    assert tools.execute("shop.grow", {"key": "a"}).outcome is Outcome.OK
    wait_until(lambda: "shop.grown" in [tool.name for tool in tools.list_tools()], "the new tool is listed")
    grown = wait_until(lambda: is_known(tools), "the new list is current")
    assert [tool.name for tool in grown] == [*(tool.name for tool in listed), "shop.grown"]


def test_a_server_that_never_started_says_why(worker: Worker) -> None:
    with ToolExecutor(["broken", "shop"], timeout_s=30) as tools:
        listed = wait_until(lambda: is_known(tools), "the list of the other one is current")
        assert "no-such-program-here" in listed.failed_servers["broken"]
        assert {tool.server for tool in listed} == {"shop"}


def test_an_idle_server_is_listed_and_stays_idle(worker: Worker) -> None:
    with ToolExecutor(["later"], timeout_s=30) as tools:
        assert len(tools.list_tools()) == 6  # which starts it
        wait_until(lambda: (found := tools.server("later")).state == "idle" and found.tools, "it is idle, and written")
        assert is_known(tools)
        assert tools.server("later").state == "idle"


def test_a_server_that_is_gone_says_why(worker: Worker, fragile: Path) -> None:
    with ToolExecutor(["fragile", "shop"], timeout_s=30) as tools:
        assert wait_until(lambda: is_known(tools), "both are current")[0].server == "fragile"
        [child] = worker.find_children(str(fragile))
        fragile.unlink()
        os.kill(child.pid, signal.SIGKILL)
        assert tools.execute("fragile.look", {"key": "a"}).outcome is not Outcome.OK  # which notices it
        listed = wait_until(lambda: (each := tools.list_tools()).failed_servers and each, "it is gone", 40)
        assert set(listed.failed_servers) == {"fragile"}
        assert {tool.server for tool in listed} == {"shop"}


@pytest.mark.usefixtures("worker")
def test_nothing_is_listed_once_the_last_worker_has_stopped(start_worker: StartWorker, tmp_path: Path) -> None:
    other = start_worker({"alone": witness(Ledger(tmp_path / "alone"))})
    with environment_of(other), ToolExecutor(["alone"], timeout_s=1) as tools:
        wait_until(lambda: is_known(tools), "the list is current")
        other.stop()
        assert "no worker answered within 1 s" in tools.list_tools().failed_servers["alone"]
