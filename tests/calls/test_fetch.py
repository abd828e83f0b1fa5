"""How workers take messages: none is lost or delayed, whichever worker is killed, stopped or told to change queues."""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import SIGSTOP
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from tarsy_tasks import Outcome, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.fetch import fetch
from tarsy_tasks.celery_app import build_app
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.redis_proxy import RedisProxy, through

SERVERS = {"desk": DEMO_SERVER, "shop": DEMO_SERVER}
LOAD = [("desk.echo", {"text": "here"}), ("shop.echo", {"text": "here"})] * 8


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    return start_worker(SERVERS, arguments=["-c", "16"])


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=40) as found:
        yield found


@pytest.fixture
def foreign(redis_url: str) -> Iterator[Celery]:
    """A producer that writes no entries into the in-flight table."""
    with Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False) as found:
        yield found


@pytest.fixture
def queues(redis_url: str, worker: Worker) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@contextmanager
def load(tools: ToolExecutor) -> Iterator[list[ToolResult]]:
    """Calls from several threads, again and again, and their results."""
    results: list[ToolResult] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            results.extend(tools.execute_many(LOAD))

    with ThreadPoolExecutor() as threads:
        calling = [threads.submit(call) for _ in range(4)]
        try:
            yield results
        finally:
            over.set()
        for each in calling:
            each.result()


def goes_on(results: list[ToolResult], count: int = len(LOAD)) -> None:
    before = len(results)
    wait_until(lambda: len(results) > before + count, "calls are answered")


def counts(results: list[ToolResult]) -> Counter[str]:
    return Counter(f"{each.outcome} {each.error_code or ''}".strip() for each in results)


def test_rolling_restarts_reject_no_call(tools: ToolExecutor, start_worker: StartWorker, worker: Worker) -> None:
    older = start_worker(SERVERS, arguments=["-c", "16"])
    with load(tools) as results:
        for _ in range(4):
            newer = start_worker(SERVERS, arguments=["-c", "16"])
            goes_on(results)
            assert older.stop() == 0
            older = newer
    older.stop()
    assert set(counts(results)) == {"ok"}, counts(results)


def test_queues_that_come_and_go_lose_no_call(tools: ToolExecutor, worker: Worker, queues: Any) -> None:
    with load(tools) as results, build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]}) as app:
        for _ in range(5):
            app.control.cancel_consumer("mcp.shop", reply=True)
            wait_until(lambda: queues.llen("mcp.shop"), "calls of `shop` wait")
            app.control.add_consumer("mcp.shop", reply=True)
            goes_on(results)
    assert set(counts(results)) == {"ok"}, counts(results)


def test_a_full_queue_does_not_delay_another(tools: ToolExecutor, redis_url: str, queues: Any) -> None:
    with Celery("mass", broker=redis_url, set_as_current=False) as mass:
        for _ in range(400):
            mass.send_task("tarsy.call_tool", ["desk", "wait", {"seconds": 0.2}], queue="mcp.desk")
    for _ in range(5):
        assert tools.execute("shop.echo", {"text": "here"}).outcome is Outcome.OK
    assert queues.llen("mcp.desk") > 0, "the small queue had its turn"
    queues.delete("mcp.desk")
    wait_until(lambda: not queues.zcard(keys.LEASES), "what was taken is answered")


def is_frozen(pid: int) -> bool:
    try:
        return all(") T " in (each / "stat").read_text() for each in Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # a thread has ended meanwhile
        return False


def test_what_comes_to_a_worker_that_is_killed_stays_queued(
    start_worker: StartWorker, foreign: Celery, queues: Any
) -> None:
    servers = {"frozen": DEMO_SERVER}
    frozen = start_worker(servers)
    frozen.process.send_signal(SIGSTOP)
    wait_until(partial(is_frozen, frozen.pid), "all its threads are frozen")
    for _ in range(2):
        queues.ping()  # Redis answers the second one only after all that the worker sent before it was frozen
    sent = foreign.send_task("tarsy.call_tool", ["frozen", "echo", {"text": "here"}], queue="mcp.frozen")
    frozen.process.kill()
    frozen.process.wait()
    assert queues.llen("mcp.frozen") == 1
    other = start_worker(servers)
    assert sent.get(timeout=20)["content"] == "here"
    other.stop()


def test_a_passing_refusal_does_not_change_the_way_of_fetching(
    tmp_path: Path, worker: Worker, foreign: Celery, redis_url: str
) -> None:
    _, script, *_ = fetch.command("a queue", limits="1", checks=0, room=1, kept=0, instance="")
    is_refused = threading.Event()

    def refuse() -> bytes:
        is_refused.set()
        return b"-BUSY Redis is busy running a script.\r\n"

    with RedisProxy(urlsplit(redis_url).port or 0).running() as proxy:
        proxy.step_in(hashlib.sha1(script.encode()).hexdigest().encode(), refuse)
        with Worker(tmp_path, {"late": DEMO_SERVER}, through(proxy, redis_url)) as late:
            late.wait_until_ready()
            sent = foreign.send_task("tarsy.call_tool", ["late", "echo", {"text": "here"}], queue="mcp.late")
            assert sent.get(timeout=20)["content"] == "here"
            assert is_refused.is_set()
            assert "kombu fetches the messages" not in late.log


def test_a_user_without_the_rights_fetches_as_kombu_does(
    start_worker: StartWorker, worker: Worker, queues: Any, foreign: Celery
) -> None:
    queues.execute_command("ACL", "SETUSER", "worker", "-client|tracking")
    try:
        limited = start_worker({"limited": DEMO_SERVER}, arguments=["-c", "2"])
        send = partial(foreign.send_task, "tarsy.call_tool", queue="mcp.limited")
        sent = [send(["limited", "echo", {"text": "here"}]) for _ in range(20)]
        assert {each.get(timeout=20)["outcome"] for each in sent} == {"ok"}
        assert "kombu fetches the messages" in limited.log
        assert limited.stop() == 0
    finally:
        queues.execute_command("ACL", "SETUSER", "worker", "+client|tracking")
        queues.acl_log_reset()
