"""Reads whose server or worker is killed in the middle: they are sent again, because reading is harmless."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tarsy_tasks import Outcome, ResourceResult, ToolExecutor
from tests.conftest import StartWorker, run_workers
from tests.gates import make_gate, open_gate
from tests.processes import Worker, free_port, listening, wait_until
from tests.servers import library, noticeboard

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'


@pytest.fixture
def start_worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Workers of one test only: another test's worker would take the read to a server that does not hold it."""
    yield from run_workers(redis_url, tmp_path_factory)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def serve(ledger: Path) -> dict[str, Any]:
    """`replay: never` is about tools only."""
    return {"command": sys.executable, "args": [library.__file__, "--ledger", str(ledger)], "replay": "never"}


def reads_of(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


@contextmanager
def reading(ledger: Path) -> Iterator["Future[ResourceResult]"]:
    """A read that its server holds."""
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(ToolExecutor(["library"], timeout_s=40).read_resource, library.HELD)
        wait_until(lambda: reads_of(ledger), "the server has the read")
        yield read


def test_a_read_survives_its_server(start_worker: StartWorker, ledger: Path) -> None:
    worker = start_worker({"library": serve(ledger)})
    with reading(ledger) as read:
        children = psutil.Process(worker.pid).children(recursive=True)
        [server] = [each for each in children if str(ledger) in each.cmdline()]
        server.kill()
        result = read.result(40)
    assert (result.outcome, result.content, result.attempts) == (Outcome.OK, library.HELD, 2)
    assert reads_of(ledger) == [library.HELD] * 2


def test_a_read_survives_its_worker(start_worker: StartWorker, ledger: Path) -> None:
    servers = {"library": serve(ledger)}
    worker = start_worker(servers, settings=SHORT_LEASE)
    with reading(ledger) as read:
        kill(worker)
        start_worker(servers, settings=SHORT_LEASE)
        result = read.result(40)
    assert (result.outcome, result.content) == (Outcome.OK, library.HELD)


@pytest.mark.parametrize("options", [(), ("--handshake",)], ids=["2026", "handshake"])
def test_a_read_survives_its_http_server(
    start_worker: StartWorker, tmp_path: Path, ledger: Path, options: tuple[str, ...]
) -> None:
    port = free_port()
    command = [sys.executable, noticeboard.__file__, str(ledger), "--http", str(port), *options]
    gate = make_gate(ledger.with_name(f"{ledger.name}.gate"))
    with ThreadPoolExecutor(1) as thread:
        with listening(command, port, tmp_path) as server:
            start_worker({"board": {"url": f"http://127.0.0.1:{port}/mcp", "replay": "never"}})
            read = thread.submit(ToolExecutor(["board"], timeout_s=40).read_resource, noticeboard.HELD)
            wait_until(lambda: reads_of(ledger), "the server has the read")
            server.process.kill()
            server.process.wait()
        open_gate(gate)
        with listening(command, port, tmp_path):
            result = read.result(40)
    assert (result.outcome, result.content) == (Outcome.OK, noticeboard.HELD)
    assert reads_of(ledger) == [f"read {noticeboard.HELD}"] * 2


def kill(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()
