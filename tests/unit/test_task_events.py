"""Events of tasks: sent in groups, by one thread only, and none is lost with a connection."""

import asyncio
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.worker.process.task_events import DISPATCHER, send_unsent
from tests.processes import wait_until

KINDS = ["task-received", "task-started", "task-succeeded"]


class Hub:
    """Of a consumer: it is woken to send events."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def build(url: str) -> TarsyApp:
    app = build_app({"broker_url": url, "result_backend": url})
    app.events.dispatcher_cls = DISPATCHER
    return app


def dispatcher(app: Any, connection: Any, hub: Hub) -> Any:
    """As `celery.worker.consumer.events` makes it, with `-E`."""
    return app.events.Dispatcher(connection, hostname="w@here", buffer_group=["task"], on_send_buffered=hub.wake)


def send(events: Any, task: str, *kinds: str) -> None:
    for kind in kinds:
        events.send(kind, uuid=task)


@pytest.fixture
def app(redis_url: str) -> TarsyApp:
    return build(redis_url)


class Listener:
    """Receives the events of tasks, as `celery events` and Flower do."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.events: list[tuple[str, str]] = []

    def add(self, event: dict[str, Any]) -> None:
        self.events.append((event["uuid"], event["type"]))

    def take(self) -> None:
        """What has arrived."""
        with suppress(TimeoutError):
            while True:
                self._connection.drain_events(timeout=0.1)

    def until(self, *expected: tuple[str, str]) -> None:
        def arrived() -> bool:
            self.take()
            return self.events == list(expected)

        wait_until(arrived, f"these events: {expected}; there are {self.events}")


@pytest.fixture(autouse=True)
def _nothing_is_left(app: TarsyApp) -> Iterator[None]:
    yield
    send_unsent(app)


@pytest.fixture
def seen(app: TarsyApp, client: Any) -> Iterator[Listener]:
    found: list[Listener] = []
    receiver = app.events.Receiver(
        app.connection_for_read(), handlers=dict.fromkeys(KINDS, lambda event: found[0].add(event))
    )
    with receiver.connection, receiver.consumer_context(wakeup=False) as (connection, _, _):
        found.append(Listener(connection))

        def is_subscribed() -> bool:
            found[0].take()
            return client.pubsub_numpat() > 0

        wait_until(is_subscribed, "it is subscribed")
        yield found[0]


def of(task: str, *kinds: str) -> list[tuple[str, str]]:
    return [(task, kind) for kind in kinds]


def test_no_thread_but_that_of_the_consumer_waits_for_redis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        app = build(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        hub = Hub()
        with app.connection_for_write() as connection:
            events = dispatcher(app, connection, hub)
            for number in range(100):
                send(events, f"t{number}", *KINDS)
        assert hub.woken
        assert select.select([silent], [], [], 0)[0] == [], "a thread that sent an event went to Redis"


def test_what_comes_up_in_one_turn_of_a_loop_is_sent_together(app: TarsyApp, seen: Listener) -> None:
    hub = Hub()

    async def turn(events: Any) -> int:
        for task in ("t1", "t2"):
            send(events, task, *KINDS)
        before = hub.woken
        await asyncio.sleep(0)
        return hub.woken - before

    with app.connection_for_write() as connection:
        events = dispatcher(app, connection, hub)
        assert asyncio.run(turn(events)) == hub.woken == 1
        events.flush()
        seen.until(*of("t1", *KINDS), *of("t2", *KINDS))


def test_no_event_is_lost_with_a_connection(app: TarsyApp, seen: Listener, client: Any) -> None:
    hub = Hub()
    with app.connection_for_write() as old, app.connection_for_write() as new:
        before = dispatcher(app, old, hub)
        send(before, "t1", "task-received", "task-started")
        # As `celery.worker.consumer.events` replaces it. The calls that run go on.
        old.close()
        before.disable()
        send(before, "t1", "task-succeeded")
        after = dispatcher(app, new, hub)
        after.extend_buffer(before)
        send(before, "t2", "task-received")
        after.flush()
        send(after, "t2", "task-started")
        after.flush()
        seen.until(*of("t1", *KINDS), *of("t2", "task-received", "task-started"))


def test_what_comes_up_after_the_consumer_has_stopped_is_sent(app: TarsyApp, seen: Listener) -> None:
    with app.connection_for_write() as connection:
        events = dispatcher(app, connection, Hub())
        events.disable()
        send(events, "t1", *KINDS)
    send_unsent(app)
    seen.until(*of("t1", *KINDS))
