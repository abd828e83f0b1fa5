"""A worker that was stopped for longer than a lease, and gives back what another worker has meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.parked_calls import Parking
from tarsy_tasks.broker.session_handover import forward
from tests.unit.deliveries.table import MESSAGE, QUEUE, on_a_loop, pop, sweep

SESSION = keys.session_key("desk:run")
GiveBack = Callable[[Deliveries, redis.Redis, Delivery], object]


def requeue(table: Deliveries, _: redis.Redis, delivery: Delivery) -> None:
    table.requeue(delivery)


def requeue_on_a_loop(_: Deliveries, client: redis.Redis, delivery: Delivery) -> None:
    on_a_loop(client, lambda table: table.requeue(delivery))


def delay(table: Deliveries, _: redis.Redis, delivery: Delivery) -> None:
    table.delay(delivery, wait_s=60)


def park(table: Deliveries, client: redis.Redis, delivery: Delivery) -> None:
    record: dict[str, Any] = {"reason": "approval", "digest": "d", "needs": 1, "about": "{}", "allowance_s": 30.0}
    delivery.parking = Parking(record, client.time()[0] + 60, "")
    table.requeue(delivery)


def pass_on(table: Deliveries, client: redis.Redis, delivery: Delivery) -> None:
    client.hset(SESSION, mapping={"principal": "sre", "holder": "w2"})
    forward(table.exchange, delivery, SESSION, "w2")


WAYS = [requeue, requeue_on_a_loop, delay, park, pass_on]


def take(table: Deliveries, client: redis.Redis) -> Delivery:
    assert pop(client) == MESSAGE
    return table.take(QUEUE, "a", lambda: "")


def is_leased(client: redis.Redis, delivery: Delivery) -> bool:
    """Whether this delivery has the message, and nobody else can take it."""
    places = (keys.waiting_key(QUEUE), keys.DELAYED, keys.PARKED, keys.waiting_key(keys.affinity_queue(QUEUE, "w2")))
    count = client.hget(keys.call_marker("a"), "deliveries")
    return (
        client.zscore(keys.LEASES, delivery.lease) is not None
        and not client.exists(QUEUE, *places)
        and count == str(delivery.count).encode()
    )


@pytest.mark.parametrize("give_back", WAYS)
def test_a_message_that_another_worker_has_is_not_given_back(
    table: Deliveries, client: redis.Redis, give_back: GiveBack
) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    lost = take(table, client)
    sweep(table, until="its lease has lapsed")
    taken = take(table, client)
    give_back(table, client, lost)
    assert is_leased(client, taken)
    give_back(table, client, taken)
    assert not client.exists(keys.LEASES), "the one that has it gives it back"


@pytest.mark.parametrize("give_back", WAYS)
def test_what_was_given_back_and_taken_again_stays(table: Deliveries, client: redis.Redis, give_back: GiveBack) -> None:
    """The reply was lost, so the step is sent again."""
    table.publish(QUEUE, "a", MESSAGE)
    first = take(table, client)
    table.requeue(first)
    again = take(table, client)
    assert (first.count, again.count) == (1, 1)
    assert first.name != again.name, "the leases that a worker renews are listed by this name"
    give_back(table, client, first)
    assert is_leased(client, again)
