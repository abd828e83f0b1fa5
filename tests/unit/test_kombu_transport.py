"""The transport's bookkeeping of what a worker holds."""

import gc
import weakref
from typing import Any

import pytest
from kombu.asynchronous import Hub
from kombu.utils.json import dumps

from tarsy_tasks.broker import kombu_transport
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
        channel.popped_from = "mcp.desk"
        first, second, other = (published(app, channel, call_id) for call_id in ("one", "one", "other"))
        for message in (first, second):
            channel.qos.append(message, message.delivery_tag)
        first.ack()
        channel.qos.append(other, other.delivery_tag)
        second.ack()
        other.reject()
        assert not kombu_transport.leased.keys() & {"one", "other"}
        assert channel.deliveries.exchange.execute(("HLEN", "tarsy:unacked")) == [0]


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
