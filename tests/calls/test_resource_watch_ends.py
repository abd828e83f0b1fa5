"""Watches that cannot go on: they end with the error that a call would get, whatever their servers and workers do."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, ErrorCode, OutcomeError, ToolExecutor
from tarsy_tasks.broker import keys
from tests.calls.deployment import DESK, Deployment
from tests.conftest import StartWorker, run_workers
from tests.processes import DEMO_SERVER, free_port, listening, wait_until
from tests.servers import noticeboard
from tests.servers.noticeboard import NOTICE
from tests.warm_start import warm_command

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'


@pytest.fixture
def start_worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Workers of one test only: they hold what is watched."""
    yield from run_workers(redis_url, tmp_path_factory)


@pytest.fixture
def table(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


async def follow(server: str, begun: threading.Event) -> None:
    async with AsyncToolExecutor(timeout_s=30) as tools, await tools.watch_resource(NOTICE, server=server) as watch:
        begun.set()
        async for _ in watch:
            pass


def test_watches_of_a_removed_server_end(start_worker: StartWorker, table: Any, tmp_path: Path) -> None:
    """Also one that no worker holds, because its server is down."""
    deployment = Deployment(start_worker, tmp_path, table, of_workers=(SHORT_LEASE, SHORT_LEASE))
    port, begun = free_port(), threading.Event()
    far = [sys.executable, noticeboard.__file__, str(tmp_path / "far"), "--http", str(port)]
    with (
        ThreadPoolExecutor(1) as thread,
        listening(far, port, tmp_path) as server,
        ToolExecutor(timeout_s=30) as tools,
    ):
        board = warm_command(noticeboard.__file__, str(tmp_path / "board"))
        deployment.serve({**DESK, "board": board, "far": {"url": f"http://127.0.0.1:{port}/mcp"}})
        for name in ("board", "far"):
            deployment.wait_for(lambda record: record.healthy, name)
        held, waiting = (tools.watch_resource(NOTICE, server=name) for name in ("board", "far"))
        following = thread.submit(asyncio.run, follow("board", begun))
        assert begun.wait(60)
        server.process.kill()
        server.process.wait()

        def is_given_up() -> bool:
            return any(each.startswith(b"far:") and not score for each, score in table.zscan_iter(keys.WATCHES))

        wait_until(is_given_up, "no worker holds the watch of the server that is down")
        deployment.serve(DESK)
        for watch in (held, waiting):
            with pytest.raises(OutcomeError, match="was removed from this deployment") as ended:
                list(watch)
            assert ended.value.result.error_code is ErrorCode.SERVER_REMOVED
        with pytest.raises(OutcomeError, match="was removed from this deployment"):
            following.result(60)
    wait_until(lambda: not table.exists(keys.WATCHES), "nothing is watched")


def test_a_watch_that_no_worker_can_hold_is_asked_for_again(
    start_worker: StartWorker, table: Any, tmp_path: Path
) -> None:
    board = {"board": warm_command(noticeboard.__file__, str(tmp_path / "board"))}
    first = start_worker(board, settings=SHORT_LEASE)
    with ToolExecutor(timeout_s=20) as tools, tools.watch_resource(NOTICE, server="board") as watch:
        [record] = table.keys("tarsy:watch:*")
        start_worker({"desk": DEMO_SERVER}, settings=SHORT_LEASE)
        first.stop()
        wait_until(lambda: not table.exists(record), "the other worker has forgotten it", 90)
        start_worker(board, settings=SHORT_LEASE)
        assert not next(watch).is_certain
        assert tools.execute("board.pin", {"uri": NOTICE, "text": "again"}).content == "again"
        assert next(watch).is_certain
