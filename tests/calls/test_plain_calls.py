"""Calls that run without a thread, and what Celery's commands and events make of them."""

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import agent_app
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.warm_start import warm_command

RECORDING = Path(__file__).parents[1] / "servers" / "recording.py"


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    directory = tmp_path_factory.mktemp("recorder")
    recorder = warm_command(str(RECORDING), str(directory))
    servers = {"desk": DEMO_SERVER, "recorder": recorder, "single": {**DEMO_SERVER, "max_concurrency": 1}}
    return start_worker(servers, arguments=["-E", "-c", "16"])


@pytest.fixture(scope="module")
def operator(worker: Worker) -> Iterator[Any]:
    """Celery's commands, as an operator."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TARSY_REDIS_URL", worker.environment["TARSY_REDIS_URL"])
        from tarsy_tasks.celery_app import build_app

        yield build_app({})


def test_a_call_wakes_no_thread_of_the_pool(worker: Worker) -> None:
    tools = ToolExecutor(timeout_s=20)
    tools.execute("desk.echo", {"text": "connect"})
    before = set(Path(f"/proc/{worker.pid}/task").iterdir())
    results = tools.execute_many([("desk.echo", {"text": str(number)}) for number in range(20)])
    assert {result.outcome for result in results} == {Outcome.OK}
    assert set(Path(f"/proc/{worker.pid}/task").iterdir()) <= before


def test_what_runs_is_listed_and_can_be_revoked(worker: Worker, operator: Any) -> None:
    tools = ToolExecutor(timeout_s=20)
    pending = tools.submit("recorder.hold", {"name": "revoked", "seconds": 20})
    inspect = operator.control.inspect(timeout=20, limit=1)

    def active() -> list[dict[str, Any]]:
        return [task for tasks in inspect.active().values() for task in tasks]

    (listed,) = wait_until(active, "the call is listed")
    assert (listed["id"], listed["args"], listed["acknowledged"]) == (pending.id, "recorder.hold", False)
    (found,) = inspect.query_task(pending.id).values()
    assert found[pending.id][0] == "active"
    operator.control.revoke(pending.id, terminate=True)
    assert pending.result().outcome is Outcome.CANCELLED
    with environment_of(worker):
        assert agent_app().AsyncResult(pending.id).state == "REVOKED"
    wait_until(lambda: not active(), "it is no longer listed")


def test_commands_are_answered_while_calls_come_and_go(worker: Worker, operator: Any) -> None:
    tools = ToolExecutor(timeout_s=40)
    is_over = threading.Event()
    results: list[ToolResult] = []

    def call() -> None:
        while not is_over.is_set():
            results.extend(tools.execute_many([("desk.echo", {"text": "here"})] * 16))

    held = ToolExecutor(timeout_s=110).submit("recorder.hold", {"name": "held", "seconds": 110})
    with ThreadPoolExecutor() as threads:
        calling = [threads.submit(call) for _ in range(2)]
        try:
            for _ in range(20):
                inspect = operator.control.inspect(timeout=20, limit=1)
                (active,) = inspect.active().values()
                assert {"tarsy.call_tool"} == {each["name"] for each in active}
                assert held.id in {each["id"] for each in active}
                (reserved,) = inspect.reserved().values()
                assert isinstance(reserved, list)
                (found,) = inspect.query_task(held.id).values()
                state, info = found[held.id]
                assert (state, info["args"], info["acknowledged"]) == ("active", "recorder.hold", False)
                assert info["delivery_info"]["routing_key"] == "mcp.recorder"
                (stats,) = inspect.stats().values()
                assert stats["total"]["tarsy.call_tool"]
            operator.control.revoke(held.id, terminate=True)
            assert held.result().outcome is Outcome.CANCELLED
        finally:
            is_over.set()
        for each in calling:
            each.result()
    assert {result.outcome for result in results} == {Outcome.OK}
    assert "changed size" not in worker.log


def test_a_message_that_kombu_reads_otherwise_keeps_no_slot(worker: Worker, operator: Any, redis_url: str) -> None:
    """Its call runs, and how it ends is stored by Celery, with kombu's reader: it would make another object of it."""
    odd = {"__type__": "decimal", "__value__": "no number"}
    body = json.dumps([["single", "wait", {"seconds": 60}, {"v": 1, "odd": odd}], {}, {}])
    message = {
        "body": base64.b64encode(body.replace("__type__", "\\u005f_type__").encode()).decode(),
        "headers": {"task": "tarsy.call_tool", "id": "odd"},
        "properties": {"delivery_tag": "odd", "body_encoding": "base64", "delivery_info": {}},
        "content-type": "application/json",
        "content-encoding": "utf-8",
    }

    def active() -> list[str]:
        (found,) = operator.control.inspect(timeout=20, limit=1).active().values()
        return [each["id"] for each in found]

    with redis.Redis.from_url(redis_url) as client:
        client.lpush("mcp.single", json.dumps(message))
        wait_until(lambda: "odd" in active(), "it runs")
        operator.control.revoke("odd", terminate=True)
        result = ToolExecutor(timeout_s=15).execute("single.echo", {"text": "here"})
        assert (result.outcome, result.content) == (Outcome.OK, "here")
        wait_until(lambda: not client.hexists(keys.UNACKED, "odd"), "it has ended")
        assert client.zscore(keys.LEASES, "mcp.single\nodd") is None
        assert json.loads(client.get(keys.result_key("odd")))["status"] == "REVOKED"
    assert "odd" not in active()


def test_its_events_are_those_of_a_task(worker: Worker, operator: Any) -> None:
    seen: list[dict[str, Any]] = []

    def complete() -> list[list[str]]:
        calls = {event["uuid"]: [] for event in seen if event["type"] == "task-received"}
        for event in seen:
            calls.get(event.get("uuid"), []).append(event["type"])
        return [kinds for kinds in calls.values() if kinds[-1] == "task-succeeded"]

    with operator.connection_for_read() as connection:
        receiver = operator.events.Receiver(connection, handlers={"*": seen.append})
        ready = threading.Event()

        def listen() -> None:
            consumer = receiver.itercapture(limit=None, timeout=20, wakeup=False)
            ready.set()
            for _ in consumer:
                if complete():
                    return

        listening = threading.Thread(target=listen)
        listening.start()
        ready.wait(10)
        tools = ToolExecutor(timeout_s=20)
        while listening.is_alive():
            tools.execute("desk.echo", {"text": "hello"})
    assert complete()[0] == ["task-received", "task-started", "task-succeeded"]
    assert "hello" not in str(seen)
