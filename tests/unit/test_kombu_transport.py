"""The transport's bookkeeping of what a worker holds."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from kombu import Consumer, Queue
from kombu.asynchronous import Hub
from kombu.utils.json import dumps

from tarsy_tasks.broker.leases import leased
from tarsy_tasks.celery_app import build_app


def published(app: Any, channel: Any, call_id: str) -> Any:
    """A message as it would be delivered."""
    message = app.amqp.as_task_v2(call_id, "tarsy.call_tool", args=("desk", "echo"))
    payload = channel.prepare_message(dumps(message.body), 0, "application/json", "utf-8", message.headers, {})
    payload["properties"] |= {"delivery_tag": call_id, "delivery_info": {"exchange": "", "routing_key": "mcp.desk"}}
    return channel.message_to_python(payload)


def test_a_call_that_one_worker_took_twice_is_ended_once(redis_url: str) -> None:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    with app.connection_for_write() as connection:
        channel = connection.channel()
        connection.transport.delivers_from = channel.connection.delivers_from = "mcp.desk"
        first, second, other = (published(app, channel, call_id) for call_id in ("one", "one", "other"))
        for message in (first, second):
            channel.qos.append(message, message.delivery_tag)
        first.ack()
        channel.qos.append(other, other.delivery_tag)
        second.ack()
        other.reject()
        assert not leased.keys() & {"one", "other"}
        assert channel.deliveries.exchange.execute(("HLEN", "tarsy:unacked")) == [0]


def test_what_kombu_pops_after_a_cancel_goes_back_to_its_queue(redis_url: str) -> None:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    received: list[Any] = []
    with (
        app.connection_for_read() as connection,
        app.connection_for_write() as other,
        redis.from_url(redis_url) as client,
    ):
        channel = connection.channel()
        queues = [Queue(name, routing_key=name) for name in ("mcp.north", "mcp.south")]
        consumer = Consumer(channel, queues, on_message=received.append)
        consumer.consume()
        app.send_task("tarsy.call_tool", ["north", "echo"], queue=queues[0], connection=other)
        connection.drain_events(timeout=5)
        assert [message.delivery.queue for message in received] == ["mcp.north"]
        channel._brpop_start()
        consumer.cancel()
        app.send_task("tarsy.call_tool", ["south", "echo"], queue=queues[1], connection=other)
        channel.close()
        assert (client.llen("mcp.north"), client.llen("mcp.south")) == (0, 1)
        client.flushall()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what was left lying elsewhere is collected here, too
def test_a_channel_that_was_never_closed_leaves_nothing_behind(redis_url: str) -> None:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    connection = app.connection_for_read()
    channel = connection.channel()
    assert channel.qos.can_consume()  # as a consumer does, whose connection is then lost
    channel.pool.disconnect()
    gone = weakref.ref(channel)
    del channel, connection
    gc.collect()
    assert gone() is None


class CountingFetcher:
    """Counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def consume(self, queue: str, lists: Sequence[str]) -> None: ...

    def cancel(self, queue: str) -> None: ...

    def wake(self) -> None:
        self.woken += 1


def test_what_makes_room_for_a_message_wakes_the_fetcher(redis_url: str) -> None:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    with app.connection_for_write() as connection, redis.from_url(redis_url) as client:
        channel = connection.channel()
        fetcher = channel.fetcher = CountingFetcher()
        channel.basic_qos(0, 2, False)
        assert fetcher.woken == 1, "Celery raised its limit"
        connection.transport.delivers_from = channel.connection.delivers_from = "mcp.desk"
        for call_id, end in (("acknowledged", "ack"), ("rejected", "reject")):
            message = published(app, channel, call_id)
            channel.qos.append(message, message.delivery_tag)
            before = fetcher.woken
            getattr(message, end)()
            assert fetcher.woken == before + 1, f"a message was {call_id}"
        client.flushall()


def test_a_lost_connection_leaves_nothing_in_the_event_loop(redis_url: str) -> None:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    hub = Hub()
    try:
        others = len(hub.on_tick)
        connections = [app.connection_for_read() for _ in range(3)]
        for connection in connections:
            connection.connect()
            connection.transport.register_with_event_loop(connection.connection, hub)
        assert len(hub.on_tick) == others + 1
        for connection in connections:
            connection.close()
    finally:
        hub.close()
