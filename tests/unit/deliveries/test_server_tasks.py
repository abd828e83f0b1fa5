"""Which worker asks a server about a task of a call, when there are several."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.server_tasks import DueTask, take_due, take_revoked
from tests.unit.deliveries.table import MESSAGE, QUEUE, begin, on_a_loop, pop, withdraw
from tests.unit.deliveries.test_parked_calls import build, now

LEASE_S = 30.0


def park(table: Deliveries, client: redis.Redis, tag: str = "a", server: str = "desk", **more: Any) -> None:
    queue = keys.queue(server)
    table.publish(queue, tag, MESSAGE)
    client.rpop(queue)
    delivery = table.take(queue, tag, lambda: "")
    begin(client, delivery, "me 1")
    parking = build(client, reason="task", task=f"task of {tag}", **more)
    delivery.parking = replace(parking, polled=keys.polled_key(server), poll_s=LEASE_S)
    table.requeue(delivery)
    assert client.zcard(keys.polled_key(server))


def due(client: redis.Redis, worker: str, servers: Mapping[str, int]) -> list[DueTask]:
    return on_a_loop(client, lambda table: take_due(table.exchange, servers, worker, LEASE_S, 0))[0]


def revoke(client: redis.Redis, worker: str, servers: Sequence[str]) -> list[DueTask]:
    return on_a_loop(client, lambda table: take_revoked(table.exchange, ["a"], servers, worker, LEASE_S))


def test_a_worker_without_its_server_leaves_a_revoked_call(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    assert revoke(client, "other", ["shop"]) == []
    [found] = due(client, "one", {"desk": 9})
    assert (found.tag, found.is_cancelled) == ("a", True)
    assert revoke(client, "one", ["desk"]) == [], "it is cancelled once"


@pytest.mark.parametrize("is_revoked", [True, False])
def test_the_worker_with_its_process_cancels_a_task(table: Deliveries, client: redis.Redis, is_revoked: bool) -> None:
    park(table, client, holder="one")
    client.zadd(keys.WORKERS, {"one": now(client)})
    if is_revoked:
        assert revoke(client, "other", ["desk"]) == []
    else:
        withdraw(client, "a")
    assert due(client, "other", {"desk": 9}) == []
    [found] = due(client, "one", {"desk": 9})
    assert found.is_cancelled


def test_a_worker_that_is_lost_leaves_it_to_others(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    assert [each.is_cancelled for each in revoke(client, "lost", ["desk"])] == [True]
    assert due(client, "other", {"desk": 9}) == []
    client.zadd(keys.polled_key("desk"), {f"{QUEUE}\na": 1.0})  # as after the lease
    [found] = due(client, "other", {"desk": 9})
    assert found.is_cancelled


def test_a_worker_takes_as_many_as_it_can_of_each_server(table: Deliveries, client: redis.Redis) -> None:
    for number in range(6):
        server = "desk" if number % 2 else "shop"
        park(table, client, str(number), server)
        client.zadd(keys.polled_key(server), {f"{keys.queue(server)}\n{number}": 1.0})
    assert {each.server for each in due(client, "one", {"desk": 9})} == {"desk"}
    assert [each.server for each in due(client, "one", {"shop": 2, "desk": 9})] == ["shop", "shop"]


def test_a_call_is_parked_so_that_its_task_is_cancelled(table: Deliveries, client: redis.Redis) -> None:
    """It was cancelled, and went back to its queue because its worker stopped."""
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    begin(client, delivery, "me 1")
    withdraw(client, "a")
    table.requeue(delivery)
    pop(client)
    assert client.exists(keys.withdrawn_key("a"))
    again = table.take(QUEUE, "a", lambda: "")
    again.parking = replace(build(client, reason="task", task="its"), polled=keys.polled_key("desk"), poll_s=LEASE_S)
    table.requeue(again)
    assert (client.llen(QUEUE), client.zcard(keys.PARKED)) == (0, 1)
    [found] = due(client, "one", {"desk": 9})
    assert found.is_cancelled
