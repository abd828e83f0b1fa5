"""The processes of stdio servers: however a worker ends, they end with it; and one that is stopped is replaced."""

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.worker.transport import watchdog
from tests.conftest import StartWorker
from tests.npm import npx_server
from tests.processes import DEMO_SERVER, Worker, environment_of, is_alive, read_command, wait_until
from tests.servers import misbehaving_stdio

_SCRIPT = Path(misbehaving_stdio.__file__)
_GONE_S = 15.0

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here")


def _server(kind: str, *more: str) -> dict[str, Any]:
    """More arguments only tell its process from others."""
    return {"command": sys.executable, "args": [str(_SCRIPT), kind, *more]}


FAMILIES = {
    "ordinary": DEMO_SERVER,
    "deaf": _server("ignores-termination"),
    "parent": _server("starts-grandchild"),
    "detached": _server("starts-detached-grandchild"),
}


LAUNCHED = f"'{sys.executable}' '{_SCRIPT}' server launched; exit"
FREEZING = {
    "itself": _server("server", "itself"),
    "launched": {"command": "sh", "args": ["-c", LAUNCHED]},
    "unread": _server("server", "unread"),
}


@pytest.fixture(scope="module")
def lasting_worker(start_worker: StartWorker) -> Worker:
    """For the tests that end servers of it, and not the worker."""
    worker = start_worker({"parent": FAMILIES["parent"], **FREEZING})
    _list_tools(worker)
    return worker


@pytest.fixture
def worker(start_worker: StartWorker) -> Worker:
    """A worker whose servers are connected and have started all that they start."""
    worker = start_worker(FAMILIES)
    wait_until(
        lambda: len(worker.find_children(misbehaving_stdio.GRANDCHILD)) == 2,
        "the grandchildren run",
    )
    _list_tools(worker)
    return worker


def _list_tools(worker: Worker) -> None:
    with environment_of(worker), ToolExecutor(timeout_s=30) as tools:
        assert tools.list_tools().failed_servers == {}


def _kill_and_see_all_gone(worker: Worker, *others: psutil.Process) -> None:
    children = [*worker.children(), *others]
    worker.process.kill()
    deadline = time.monotonic() + _GONE_S
    worker.process.wait()
    try:
        wait_until(lambda: not any(map(is_alive, children)), "no child is left", deadline - time.monotonic())
    finally:
        for child in filter(is_alive, children):
            child.kill()


def test_nothing_is_left_of_a_worker_that_is_killed(worker: Worker) -> None:
    _kill_and_see_all_gone(worker)


def test_nothing_is_left_of_npx_and_node(start_worker: StartWorker) -> None:
    worker = start_worker({"everything": npx_server("server-everything")})
    _list_tools(worker)
    commands = filter(None, map(read_command, worker.children()))
    assert {"node"} < {Path(command[0]).name for command in commands}
    _kill_and_see_all_gone(worker)


def test_nothing_is_left_of_a_worker_that_stops(worker: Worker) -> None:
    (dog,) = worker.find_children(watchdog.__file__)
    assert worker.stop(signal.SIGTERM) == 0  # it fails when a child is left
    assert not is_alive(dog)


def test_a_killed_watchdog_is_replaced_and_protects_as_before(worker: Worker) -> None:
    (dog,) = worker.find_children(watchdog.__file__)
    dog.kill()
    wait_until(lambda: set(worker.find_children(watchdog.__file__)) - {dog}, "there is a new watchdog")
    assert "the watchdog of the MCP servers ended" in worker.log
    _kill_and_see_all_gone(worker)


@needs_proc
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_daemon_that_a_server_started_ends_with_the_worker(start_worker: StartWorker, end: str) -> None:
    worker = start_worker({"daemon": _server("starts-daemon")})
    with environment_of(worker), ToolExecutor(timeout_s=30) as tools:
        told = tools.execute(ToolCall(id="c", name="daemon.act", arguments={}))
    daemon = psutil.Process(int(told.content))
    assert daemon not in worker.children()
    assert daemon.is_running()
    if end == "killed":
        _kill_and_see_all_gone(worker, daemon)
    else:
        assert worker.stop(signal.SIGTERM) == 0
        assert not is_alive(daemon)


@needs_proc
def test_no_server_holds_the_pipe_whose_end_wakes_the_watchdog(lasting_worker: Worker) -> None:
    (dog,) = lasting_worker.find_children(watchdog.__file__)
    pipe = Path(f"/proc/{dog.pid}/fd/0").readlink()

    def holds_it(process: psutil.Process) -> bool:
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed just now
                if link.readlink() == pipe:
                    return True
        return False

    processes = [psutil.Process(lasting_worker.pid), *lasting_worker.children()]
    holders = [each.pid for each in processes if holds_it(each)]
    assert sorted(holders) == sorted([lasting_worker.pid, dog.pid])


@needs_proc
@pytest.mark.parametrize("server", ["itself", "launched"])
def test_a_server_that_is_stopped_is_noticed_and_replaced(lasting_worker: Worker, server: str) -> None:
    with environment_of(lasting_worker), ToolExecutor(timeout_s=30) as tools:
        echo = ToolCall(id="c", name=f"{server}.echo", arguments={"text": "again"})
        assert tools.execute(echo).content == "again"
        (process,) = lasting_worker.find_children(server)
        process.suspend()
        lost = tools.execute(echo)
        assert (lost.outcome, lost.error_code) == (Outcome.UNKNOWN, ErrorCode.SESSION_LOST), lost.content
        assert "its process is stopped" in lost.content
        assert tools.execute(echo).content == "again"
        wait_until(lambda: not is_alive(process), "the stopped process is gone", timeout_s=5)


@needs_proc
def test_a_stopped_server_that_reads_nothing_is_noticed(lasting_worker: Worker) -> None:
    with environment_of(lasting_worker), ToolExecutor(timeout_s=30) as tools:
        assert tools.execute(ToolCall(id="c", name="unread.echo", arguments={"text": "hello"})).content == "hello"
        (process,) = lasting_worker.find_children("unread")
        process.suspend()
        lost = tools.execute(ToolCall(id="d", name="unread.echo", arguments={"text": "x" * 2_000_000}))
        assert (lost.outcome, lost.error_code) == (Outcome.UNKNOWN, ErrorCode.SESSION_LOST), lost.content


@needs_proc
def test_a_worker_that_replaced_its_servers_stops_clean(lasting_worker: Worker) -> None:
    assert lasting_worker.stop() == 0
