"""The delayed messages: each is in one place, and comes into the queue where it was taken when it is due."""

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tests.processes import wait_until
from tests.unit.deliveries.table import LEASE_S, MESSAGE, QUEUE, pop, state_of, sweep, withdraw

FAR_S = 3600.0


def take(table: Deliveries, client: redis.Redis, tag: str = "a") -> Delivery:
    table.publish(QUEUE, tag, MESSAGE)
    pop(client)
    return table.take(QUEUE, tag, lambda: "")


def now(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6


def make_due(client: redis.Redis, *tags: str) -> None:
    for tag in tags:
        client.zadd(keys.DELAYED, {Delivery(tag, QUEUE).lease: 1.0})


def test_a_delayed_message_waits_for_its_time(table: Deliveries, client: redis.Redis) -> None:
    assert table.release_due() is None
    assert table.delay(take(table, client), due_at=now(client) + FAR_S)
    assert not client.exists(keys.LEASES, keys.waiting_key(QUEUE), QUEUE)
    due_in_s = table.release_due()
    assert due_in_s is not None
    assert FAR_S - 60 < due_in_s <= FAR_S
    make_due(client, "a")
    assert table.release_due() is None
    assert pop(client) == MESSAGE
    assert table.take(QUEUE, "a", lambda: "").count == 1, "being delayed is not a delivery"


def test_a_message_that_is_due_stays_with_its_worker(table: Deliveries, client: redis.Redis) -> None:
    delivery = take(table, client)
    assert not table.delay(delivery, due_at=now(client))
    assert client.zscore(keys.LEASES, delivery.lease)
    assert not client.exists(keys.DELAYED)


def test_a_message_is_delayed_once_though_it_is_sent_twice(table: Deliveries, client: redis.Redis) -> None:
    delivery = take(table, client)
    for _ in range(2):
        assert table.delay(delivery, wait_s=FAR_S)
    assert client.zcard(keys.DELAYED) == 1
    make_due(client, "a")
    table.release_due()
    assert table.delay(delivery, wait_s=FAR_S), "its lease is over: it is not his to delay"
    assert client.llen(QUEUE) == 1
    assert not client.exists(keys.DELAYED)


def test_what_waits_to_be_due_is_not_lost_nor_found_missing(table: Deliveries, client: redis.Redis) -> None:
    table.delay(take(table, client), wait_s=FAR_S)
    table.publish(QUEUE, "b", MESSAGE)
    pop(client)
    assert sweep(table, until="another one that is missing comes back").restored == ("b",)
    assert client.zcard(keys.DELAYED) == 1


def test_a_worker_that_is_lost_before_it_delays_loses_nothing(table: Deliveries, client: redis.Redis) -> None:
    take(table, client)
    assert sweep(table, until="its lease lapses").restored == ("a",)
    assert pop(client) == MESSAGE


def test_a_requeued_call_waits_first(table: Deliveries, client: redis.Redis) -> None:
    delivery = take(table, client)
    delivery.wait_s = LEASE_S
    table.requeue(delivery)
    assert not client.exists(QUEUE)

    def is_back() -> bool:
        table.release_due()
        return client.llen(QUEUE) == 1

    wait_until(is_back, "it is due", 5)


def test_a_delayed_call_that_is_withdrawn_leaves_nothing(table: Deliveries, client: redis.Redis) -> None:
    table.delay(take(table, client), wait_s=FAR_S)
    assert withdraw(client, "a") == (CallState.NONE, False)
    assert not client.exists(keys.DELAYED, keys.UNACKED, QUEUE)
    assert state_of(client, "a") is CallState.WITHDRAWN


def test_many_that_are_due_come_in_their_order_and_in_portions(table: Deliveries, client: redis.Redis) -> None:
    tags = [f"{number:03}" for number in range(450)]
    for tag in tags:
        client.hset(keys.UNACKED, tag, f"{QUEUE}\n\n{tag}")
    for number, tag in enumerate(tags):
        client.zadd(keys.DELAYED, {Delivery(tag, QUEUE).lease: 1.0 + number})
    portions = 0
    while (due_in_s := table.release_due()) is not None:
        assert due_in_s < 0
        portions += 1
    assert portions >= 2
    assert [pop(client) for _ in tags] == tags


def test_a_damaged_or_forged_entry_disturbs_no_other(table: Deliveries, client: redis.Redis) -> None:
    for tag, entry in (("damaged", "no line breaks"), ("forged", f"mcp.vault\n\n{MESSAGE}")):
        client.hset(keys.UNACKED, tag, entry)
    table.delay(take(table, client), wait_s=FAR_S)
    client.zadd(keys.DELAYED, {"no line break": 1.0})
    make_due(client, "damaged", "forged", "gone", "a")
    assert table.release_due() is None
    assert client.llen(QUEUE) == 2
    assert not client.exists("mcp.vault")
    assert sweep(table, until="the damaged one is a dead letter").dead_letters == ("damaged",)


@pytest.mark.parametrize("key", [keys.QUEUES, keys.waiting_key(QUEUE), QUEUE])
def test_a_key_of_another_type_stops_no_message(table: Deliveries, client: redis.Redis, key: str) -> None:
    table.delay(take(table, client), wait_s=FAR_S)
    client.hset(keys.UNACKED, "other", f"mcp.other\n\n{MESSAGE}")
    client.zadd(keys.DELAYED, {Delivery("other", "mcp.other").lease: 2.0})
    make_due(client, "a")
    client.delete(key)
    client.set(key, "another application's")
    assert table.release_due() is None
    assert client.llen("mcp.other") == 1
    if key == QUEUE:
        client.delete(key)
        assert sweep(table, until="it comes back when its queue is a queue again").restored == ("a",)
    assert client.llen(QUEUE) == 1


def test_what_has_no_place_to_go_is_kept_and_tried_again(table: Deliveries, client: redis.Redis) -> None:
    table.delay(take(table, client), wait_s=FAR_S)
    make_due(client, "a")
    for key in (QUEUE, keys.waiting_key(QUEUE)):
        client.set(key, "another application's")
    assert 50 < (table.release_due() or 0) <= 60
    assert client.zcard(keys.DELAYED) == 1


def test_delayed_messages_of_another_type_lose_no_call(table: Deliveries, client: redis.Redis) -> None:
    delivery = take(table, client)
    client.set(keys.DELAYED, "another application's")
    for act in (lambda: table.delay(delivery, wait_s=FAR_S), table.release_due):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            act()
    assert client.zscore(keys.LEASES, delivery.lease), "it stays leased"
    table.publish(QUEUE, "b", MESSAGE)
    assert withdraw(client, "b") == (CallState.NONE, False)
    assert sweep(table, until="the lease lapses").restored == ("a",)
