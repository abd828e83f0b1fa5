"""A running call is cancelled by a key that its worker looks for: on the MCP server, whichever way it came."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tarsy_tasks import AsyncToolExecutor, Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.warm_start import warm_command

RECORDING = Path(__file__).parents[1] / "servers" / "recording.py"
HOLD_S = 60
"""Longer than any test waits."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorder")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, directory: Path) -> Worker:
    recorder = warm_command(str(RECORDING), str(directory)) | {"max_concurrency": 32}
    return start_worker({"desk": DEMO_SERVER, "recorder": recorder}, arguments=["-c", "40"])


@pytest.fixture
def queues(redis_url: str, worker: Worker) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def foreign(redis_url: str) -> Iterator[Celery]:
    with Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False) as found:
        yield found


def send(app: Celery, name: str, **options: Any) -> Any:
    arguments = ["recorder", "hold", {"name": name, "seconds": HOLD_S}]
    return app.send_task("tarsy.call_tool", arguments, queue="mcp.recorder", **options)


def has_begun(directory: Path, name: str) -> None:
    wait_until((directory / f"{name}.begun").exists, f"{name} has begun")


def was_cancelled(directory: Path, name: str) -> None:
    wait_until((directory / f"{name}.cancelled").exists, f"{name} was cancelled on the MCP server")


def count_looks(queues: Any) -> int:
    return queues.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]


@pytest.mark.parametrize("options", [{}, {"expires": 600}], ids=["without a thread", "by Celery's tracer"])
def test_a_key_cancels_a_call_that_runs(
    foreign: Celery, queues: Any, directory: Path, options: dict[str, Any], worker: Worker
) -> None:
    name = uuid.uuid4().hex
    sent = send(foreign, name, **options)
    has_begun(directory, name)
    queues.set(keys.cancelled_key(sent.id), 1, ex=60)
    was_cancelled(directory, name)
    wait_until(lambda: sent.state == "REVOKED", "the call is answered")
    wait_until(lambda: not queues.zcard(keys.LEASES), "and acknowledged")
    assert worker.log.count(f"Terminating {sent.id}") == 1


def test_executors_cancel_what_runs_and_the_key_expires(worker: Worker, queues: Any, directory: Path) -> None:
    async def run() -> str:
        async with AsyncToolExecutor(timeout_s=600) as tools:
            pending = await tools.submit("recorder.hold", {"name": "awaited", "seconds": HOLD_S})
            await asyncio.to_thread(has_begun, directory, "awaited")
            await pending.cancel()
            assert (await pending.result()).outcome is Outcome.CANCELLED
            return pending.id

    cancelled = asyncio.run(run())
    was_cancelled(directory, "awaited")
    assert 500 < queues.ttl(keys.cancelled_key(cancelled)) <= 600
    with ToolExecutor(timeout_s=600) as tools:
        pending = tools.submit("recorder.hold", {"name": "blocking", "seconds": HOLD_S})
        has_begun(directory, "blocking")
        pending.cancel()
        assert pending.result().outcome is Outcome.CANCELLED
    was_cancelled(directory, "blocking")


def test_all_running_calls_take_one_command_and_short_ones_none(
    foreign: Celery, queues: Any, directory: Path, worker: Worker
) -> None:
    before = count_looks(queues)
    for _ in range(30):
        foreign.send_task("tarsy.call_tool", ["desk", "echo", {"text": "here"}], queue="mcp.desk").get(timeout=20)
    assert count_looks(queues) == before
    started = time.monotonic()
    calls = [send(foreign, f"many-{number}") for number in range(16)]
    for number in range(16):
        has_begun(directory, f"many-{number}")
    wait_until(lambda: count_looks(queues) >= before + 3, "the worker looks")
    assert count_looks(queues) - before <= (time.monotonic() - started) / 0.5 + 1
    for call in calls:
        queues.set(keys.cancelled_key(call.id), 1, ex=60)
    for number in range(16):
        was_cancelled(directory, f"many-{number}")
