"""Storing results while Redis is away: calls wait for it, whoever holds up others does not."""

import threading
from collections.abc import Iterator

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from tarsy_tasks.broker.result_backend import ResultBackend
from tarsy_tasks.celery_app import build_app
from tests.processes import free_port, wait_until


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
            backend.be_patient()
        try:
            backend.mark_as_done("a task", "its result")
        except (RedisError, OperationalError, OSError, RuntimeError) as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def test_the_thread_that_consumes_messages_does_not_wait_for_redis(backend: ResultBackend) -> None:
    thread, raised = store(backend, patiently=False)
    wait_until(lambda: not thread.is_alive(), "it gives up", 30)
    assert raised


def test_a_call_waits_for_redis_until_the_worker_stops(backend: ResultBackend) -> None:
    impatient, _ = store(backend, patiently=False)
    thread, raised = store(backend, patiently=True)
    wait_until(lambda: not impatient.is_alive(), "whoever does not wait has given up", 30)
    assert thread.is_alive()
    assert backend.stopping is not None
    backend.stopping.set()
    wait_until(lambda: not thread.is_alive(), "it gives up")
    assert raised
