"""Time limits, revoke and shutdown reach the call in the MCP server, and its answer reaches the agent."""

import asyncio
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.task_names import CALL_TOOL
from tarsy_tasks.celery_app import agent_app
from tests.calls.audit_entries import only_entry
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.warm_start import warm_command

RECORDING_SERVER = Path(__file__).parent.parent / "servers" / "recording.py"


def recording_server(directory: Path) -> dict[str, object]:
    """A server whose `hold` writes `begun`, and `cancelled` or `finished`, into files."""
    return warm_command(str(RECORDING_SERVER), str(directory))


def hold(tools: ToolExecutor, directory: Path, name: str, seconds: float = 20):
    """A call that runs, begun for certain; connecting takes nothing of its time."""
    wait_until(tools.list_tools, "the server is connected")
    pending = tools.submit(ToolCall(id=name, name="recorder.hold", arguments={"name": name, "seconds": seconds}))
    wait_until(lambda: (directory / f"{name}.begun").exists() or pending.done(), f"{name} has begun")
    return pending


def ended_as(redis_url: str, task_id: str, code: ErrorCode) -> None:
    """The audit says so, once."""
    with redis.Redis.from_url(redis_url) as client:
        assert only_entry(client, task_id).error_code == code


def was_cancelled(directory: Path, name: str) -> None:
    wait_until(lambda: (directory / f"{name}.cancelled").exists(), f"{name} was cancelled on the MCP server")


@pytest.fixture
def limited_worker(start_worker: StartWorker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = start_worker({"recorder": recording_server(tmp_path)}, **request.param)
    yield worker
    if worker.process.poll() is None:
        worker.stop()


@pytest.mark.parametrize(
    "limited_worker",
    [{"arguments": ["--soft-time-limit", "3"]}, {"arguments": ["--time-limit", "3"]}],
    ids=["soft", "hard"],
    indirect=True,
)
def test_a_time_limit_cancels_the_call(limited_worker: Worker, tmp_path: Path, redis_url: str) -> None:
    pending = hold(ToolExecutor(timeout_s=20), tmp_path, "limited")
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.TIME_LIMIT)
    ended_as(redis_url, pending.id, ErrorCode.TIME_LIMIT)
    was_cancelled(tmp_path, "limited")
    assert limited_worker.stop() == 0


def test_the_soft_time_limit_keeps_that_a_call_may_have_run(start_worker: StartWorker, redis_url: str) -> None:
    mute = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    worker = start_worker({"mute": mute}, arguments=["--soft-time-limit", "1"])
    signature = agent_app().signature(CALL_TOOL, args=("mute", "act", {}))
    fresh, begun = str(uuid.uuid4()), str(uuid.uuid4())
    with redis.Redis.from_url(redis_url) as client:
        client.hset(keys.call_marker(begun), mapping={"mark": "begun", "owner": "a worker that is gone 1"})
    # The configuration of this process may be that of another worker.
    queue = keys.queue("mute")
    answers = {task_id: signature.apply_async(task_id=task_id, queue=queue) for task_id in (fresh, begun)}
    codes = {task_id: ToolResult.model_validate(answer.get(20)).error_code for task_id, answer in answers.items()}
    assert codes == {fresh: ErrorCode.SERVER_UNAVAILABLE, begun: ErrorCode.WORKER_LOST}
    assert worker.stop() == 0


@pytest.mark.parametrize("limited_worker", [{"arguments": ["-c", "1"]}], indirect=True)
def test_revoke_cancels_what_runs_and_what_waits(limited_worker: Worker, tmp_path: Path, redis_url: str) -> None:
    tools = ToolExecutor(timeout_s=20)
    running = hold(tools, tmp_path, "running")
    waiting = tools.submit(ToolCall(id="w", name="recorder.hold", arguments={"name": "waiting", "seconds": 20}))
    waiting.cancel()
    running.cancel()
    assert running.result().outcome is Outcome.CANCELLED
    was_cancelled(tmp_path, "running")
    assert waiting.result().outcome is Outcome.CANCELLED
    for each in (running, waiting):
        ended_as(redis_url, each.id, ErrorCode.CANCELLED)
    assert not (tmp_path / "waiting.begun").exists()
    assert hold(tools, tmp_path, "next", seconds=0.01).result().outcome is Outcome.OK
    assert limited_worker.stop() == 0


@pytest.mark.parametrize("limited_worker", [{}], indirect=True)
def test_an_asyncio_task_that_is_cancelled_cancels_its_call(limited_worker: Worker, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncToolExecutor(timeout_s=20) as tools:
            call = ToolCall(id="a", name="recorder.hold", arguments={"name": "awaited", "seconds": 20})
            task = asyncio.create_task(tools.execute(call))
            await asyncio.to_thread(wait_until, (tmp_path / "awaited.begun").exists, "the call has begun")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    was_cancelled(tmp_path, "awaited")


@pytest.mark.parametrize("limited_worker", [{"environment": {"TARSY_SHUTDOWN_GRACE_S": "100"}}], indirect=True)
def test_a_warm_shutdown_lets_running_calls_finish(limited_worker: Worker, tmp_path: Path, redis_url: str) -> None:
    tools = ToolExecutor(timeout_s=60)
    pending = hold(tools, tmp_path, "warm", seconds=1.5)
    cancelled = hold(tools, tmp_path, "cancelled-late", seconds=50)
    limited_worker.process.send_signal(signal.SIGTERM)
    with redis.Redis.from_url(redis_url) as client:
        own = f"{limited_worker.log_path.stem}@".encode()
        wait_until(
            lambda: not any(each.startswith(own) for each in client.zrange(keys.serving_key("recorder"), 0, -1)),
            "the worker takes no more calls",
        )
    cancelled.cancel()
    was_cancelled(tmp_path, "cancelled-late")
    assert cancelled.result().outcome is Outcome.CANCELLED
    assert limited_worker.process.wait(30) == 0
    assert pending.result().outcome is Outcome.OK
    assert (tmp_path / "warm.finished").exists()


@pytest.mark.parametrize("limited_worker", [{"settings": "worker_soft_shutdown_timeout = 30\n"}], indirect=True)
def test_a_soft_shutdown_cancels_calls_and_takes_none(limited_worker: Worker, tmp_path: Path, redis_url: str) -> None:
    tools = ToolExecutor(timeout_s=60)
    pending = hold(tools, tmp_path, "cancelled-early", seconds=50)
    limited_worker.process.send_signal(signal.SIGQUIT)
    limited_worker.wait_for_log("Initiating Soft Shutdown")
    late = tools.submit(ToolCall(id="l", name="recorder.hold", arguments={"name": "late", "seconds": 0}))
    pending.cancel()
    was_cancelled(tmp_path, "cancelled-early")
    assert pending.result(timeout_s=10).outcome is Outcome.CANCELLED
    late.cancel()
    assert late.result().outcome is Outcome.CANCELLED
    assert not (tmp_path / "late.begun").exists()
    ended_as(redis_url, pending.id, ErrorCode.CANCELLED)
    limited_worker.process.kill()
    limited_worker.process.wait()


@pytest.mark.parametrize("limited_worker", [{"settings": "worker_soft_shutdown_timeout = 2\n"}], indirect=True)
def test_a_soft_shutdown_ends_what_outlasts_its_grace(
    start_worker: StartWorker, limited_worker: Worker, tmp_path: Path, redis_url: str
) -> None:
    tools = ToolExecutor(timeout_s=60)
    pending = hold(tools, tmp_path, "outlasting", seconds=50)
    limited_worker.stop(signal.SIGQUIT)
    result = pending.result(timeout_s=5)
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.WORKER_STOPPED)
    ended_as(redis_url, pending.id, ErrorCode.WORKER_STOPPED)
    was_cancelled(tmp_path, "outlasting")
    assert "Traceback" not in limited_worker.log


LONG_ITERATIONS = """
import itertools
from celery import signals

def _do_nothing_for_long(sender, **_):
    timer, idle = sender.hub.timer, itertools.count(1)

    def look():
        if len(timer.queue) == 1:
            print(f"iteration without work: {next(idle)}")
        else:
            timer.clear()
            timer.call_after(3600, str)

    sender.hub.on_tick.add(look)

signals.worker_ready.connect(_do_nothing_for_long, weak=False)
"""
"""Without timers, an iteration of Celery's event loop in which nothing happens takes 10 s."""


def test_an_idle_worker_notices_at_once_that_it_has_to_stop(start_worker: StartWorker) -> None:
    worker = start_worker({"desk": DEMO_SERVER}, settings=LONG_ITERATIONS)
    worker.wait_for_log("iteration without work: 2")  # the first one still ends with a timer of before
    worker.ask_to_stop()
    assert worker.process.wait(9) == 0


def test_another_pool_is_refused_with_the_reason(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker({"recorder": recording_server(tmp_path)}, arguments=["-P", "threads"], wait=False)
    assert worker.process.wait(30) == 2
    assert "Omit -P" in worker.log


def test_a_queue_of_no_server_is_refused(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker({"recorder": recording_server(tmp_path)}, arguments=["-Q", "mcp.recoder"], wait=False)
    assert worker.process.wait(30) == 2
    assert "mcp.recorder" in worker.log
