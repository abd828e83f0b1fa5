"""Servers, workers and Redis are lost while resources are watched: each time the agent hears once that its resource may
have changed, and then of changes as before."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tarsy_tasks import BrokerUnavailable, OutcomeError, ResourceWatch, ToolExecutor
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker, run_workers
from tests.processes import Worker, environment_of, free_port, listening
from tests.servers import noticeboard
from tests.servers.noticeboard import NOTICE
from tests.valkey import Valkey
from tests.warm_start import warm_command

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
ERAS = {"new": (), "old": ("--handshake",)}


@pytest.fixture
def start_worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Workers of one test only: they hold what is watched."""
    yield from run_workers(redis_url, tmp_path_factory)


def boards(directory: Path) -> dict[str, Any]:
    return {name: warm_command(noticeboard.__file__, str(directory / name), *options) for name, options in ERAS.items()}


@contextmanager
def watching(tools: ToolExecutor, servers: tuple[str, ...] = ("new", "old")) -> Iterator[dict[str, ResourceWatch]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(tools.watch_resource(NOTICE, server=name)) for name in servers}


def hear_once(tools: ToolExecutor, watches: dict[str, ResourceWatch]) -> None:
    """They may have changed; the next one that each hears of is a real change."""
    assert {name: next(watch).is_certain for name, watch in watches.items()} == dict.fromkeys(watches, False)
    for name, watch in watches.items():
        assert tools.execute(f"{name}.pin", {"uri": NOTICE, "text": "after"}).content == "after"
        change = next(watch)
        assert (change.server, change.uri, change.is_certain) == (name, NOTICE, True)


def test_watches_survive_lost_sessions(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(boards(tmp_path), settings=SHORT_LEASE)
    with ToolExecutor(timeout_s=40) as tools, watching(tools) as watches:
        servers = [each for each in psutil.Process(worker.pid).children() if str(tmp_path) in " ".join(each.cmdline())]
        assert len(servers) == len(ERAS)
        for server in servers:
            server.kill()
        hear_once(tools, watches)


@pytest.mark.parametrize("era", ERAS)
def test_watches_survive_their_http_server(start_worker: StartWorker, tmp_path: Path, era: str) -> None:
    port = free_port()
    command = [sys.executable, noticeboard.__file__, str(tmp_path / "ledger"), "--http", str(port), *ERAS[era]]
    with ExitStack() as stack:
        with listening(command, port, tmp_path) as server:
            start_worker({era: {"url": f"http://127.0.0.1:{port}/mcp"}}, settings=SHORT_LEASE)
            tools = stack.enter_context(ToolExecutor(timeout_s=40))
            watches = stack.enter_context(watching(tools, (era,)))
            server.process.kill()
            server.process.wait()
        with listening(command, port, tmp_path):
            hear_once(tools, watches)


def test_watches_survive_lost_workers(start_worker: StartWorker, tmp_path: Path) -> None:
    """The first one is killed, and its successor stopped."""
    first = start_worker(boards(tmp_path), settings=SHORT_LEASE)
    with ToolExecutor(timeout_s=40) as tools, watching(tools) as watches:
        second = start_worker(boards(tmp_path), settings=SHORT_LEASE)
        first.process.kill()
        first.process.wait()
        hear_once(tools, watches)
        start_worker(boards(tmp_path), settings=SHORT_LEASE)
        second.stop()
        hear_once(tools, watches)


@pytest.mark.parametrize("keeps", [True, False], ids=["data kept", "data lost"])
def test_watches_survive_a_restart_of_redis(tmp_path: Path, *, keeps: bool) -> None:
    options: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"} if keeps else {"save": ""}
    with Valkey(**options) as valkey:
        url = f"{valkey.connection_url}/0"
        with Worker(tmp_path / "worker", boards(tmp_path), url, settings=SHORT_LEASE) as worker:
            worker.wait_until_ready()
            with environment_of(worker), ToolExecutor(timeout_s=40) as tools, watching(tools) as watches:
                valkey.terminate()
                valkey.start()
                hear_once(tools, watches)
            worker.stop()


def test_a_redis_that_is_full_begins_no_watch(tmp_path: Path) -> None:
    with Valkey() as valkey, Worker(tmp_path / "worker", boards(tmp_path), f"{valkey.connection_url}/0") as worker:
        worker.wait_until_ready()
        with environment_of(worker), ToolExecutor(timeout_s=10) as tools, watching(tools) as watches:
            with redis.Redis.from_url(valkey.connection_url) as client:
                client.config_set("maxmemory", "1")
                with pytest.raises((BrokerUnavailable, OutcomeError), match="maxmemory"):
                    tools.watch_resource("notice://board/other", server="old")
                client.config_set("maxmemory", "0")
                assert client.zcard(keys.WATCHES) == len(watches)
            assert tools.execute("old.pin", {"uri": NOTICE, "text": "room again"}).content == "room again"
            assert next(watches["old"]).is_certain
        worker.stop()
