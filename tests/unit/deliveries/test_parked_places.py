"""How many calls of one agent are parked at once, which of them people see, and what is left of those that wait no
more."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.parked_calls import decide, load, load_waiting, wake_due
from tests.unit.deliveries.table import MESSAGE, QUEUE, begin, is_clean, pop, withdraw
from tests.unit.deliveries.test_parked_calls import approve, build, park, record_of, take

MOST = 3
OWN = keys.parked_by_key("anonymous")


def park_bounded(table: Deliveries, client: redis.Redis, tag: str, **options: object) -> Delivery:
    table.publish(QUEUE, tag, MESSAGE)
    pop(client)
    delivery = take(table, client, tag)
    delivery.parking = replace(build(client, **options), most=MOST)
    table.requeue(delivery)
    return delivery


def is_parked(client: redis.Redis, tag: str) -> bool:
    return client.zscore(keys.PARKED, f"{QUEUE}\n{tag}") is not None


def listed(client: redis.Redis) -> set[str]:
    """The calls in any of the sets of places."""
    sets = [OWN, keys.parked_by_key("sre"), keys.PARKED, keys.inbox_key("people"), keys.inbox_key("task")]
    return {place.decode().partition("\n")[2] for name in sets for place in client.zrange(name, 0, -1)}


def test_one_too_many_goes_back_as_refused(table: Deliveries, client: redis.Redis) -> None:
    for number in range(MOST):
        assert park_bounded(table, client, str(number)).parking is not None
    refused = park_bounded(table, client, "more")
    assert refused.parking is None, "so no agent hears that it waits"
    assert listed(client) == {"0", "1", "2"}
    assert (record_of(client, "more").decision, load(client, "more")) == ("refused", None), "nothing of it is kept"
    assert 0 < client.ttl(keys.parked_key("more")) <= 600
    assert pop(client) == MESSAGE
    assert take(table, client, "more").count == 1, "that delivery did not count"
    assert not client.exists(keys.result_key("more"))


def decide_it(table: Deliveries, client: redis.Redis) -> None:
    view = load(client, "0")
    assert view is not None
    decide(client, view, is_approved=False, by="ann")


def expire_it(table: Deliveries, client: redis.Redis) -> None:
    client.zadd(keys.PARKED, {f"{QUEUE}\n0": 1.0})
    wake_due(table.exchange)


def withdraw_it(table: Deliveries, client: redis.Redis) -> None:
    withdraw(client, "0")


@pytest.mark.parametrize("end", [decide_it, expire_it, withdraw_it])
def test_a_call_that_waits_no_more_gives_its_place_back(
    table: Deliveries, client: redis.Redis, end: Callable[[Deliveries, redis.Redis], None]
) -> None:
    for number in range(MOST):
        park_bounded(table, client, str(number))
    end(table, client)
    park_bounded(table, client, "next")
    assert is_parked(client, "next")
    wake_due(table.exchange)
    assert listed(client) == {"1", "2", "next"}
    park_bounded(table, client, "more")
    assert not is_parked(client, "more")


def test_the_places_of_a_principal_are_its_own(table: Deliveries, client: redis.Redis) -> None:
    for number in range(MOST):
        park_bounded(table, client, str(number))
    for number in range(MOST + 1):
        park_bounded(table, client, f"sre {number}", principal="sre")
    assert [is_parked(client, f"sre {number}") for number in range(MOST + 1)] == [True] * MOST + [False]


def test_a_call_that_was_parked_is_parked_again(table: Deliveries, client: redis.Redis) -> None:
    """Meanwhile another one may have taken its place."""
    park_bounded(table, client, "a")
    approve(client)
    for number in range(MOST):
        park_bounded(table, client, str(number))
    assert client.lrange(QUEUE, 0, -1) == [MESSAGE.encode()], "the one that was approved"
    pop(client)
    delivery = take(table, client)
    delivery.parking = replace(build(client, digest="asked"), most=MOST)
    table.requeue(delivery)
    assert is_parked(client, "a")


def test_parking_twice_takes_one_place(table: Deliveries, client: redis.Redis) -> None:
    delivery = park_bounded(table, client, "0")
    table.requeue(delivery)
    assert client.zcard(OWN) == 1
    assert is_parked(client, "0")


def test_a_refused_task_stays_known(table: Deliveries, client: redis.Redis) -> None:
    for number in range(MOST):
        park_bounded(table, client, str(number))
    table.publish(QUEUE, "task", MESSAGE)
    pop(client)
    delivery = take(table, client, "task")
    begin(client, delivery, "me 1")
    delivery.parking = replace(build(client, reason="task", task="t-1"), most=MOST)
    client.hset(keys.parked_key("task"), mapping=delivery.parking.record)  # as `server_tasks.keep` does
    table.requeue(delivery)
    found = record_of(client, "task")
    assert (found.decision, found.task) == ("refused", "t-1")
    assert client.llen(QUEUE) == 1


def test_places_without_a_call_do_not_count(table: Deliveries, client: redis.Redis) -> None:
    """As after a restart of a Redis that has lost some of its keys."""
    client.zadd(OWN, {f"{QUEUE}\ngone {number}": 9e9 for number in range(MOST)})
    park_bounded(table, client, "0")
    assert listed(client) == {"0"}


def test_a_set_of_another_type_keeps_no_call_from_going_on(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    client.delete(OWN)
    client.set(OWN, "something else")
    approve(client)
    assert client.llen(QUEUE) == 1
    pop(client)
    delivery = take(table, client)
    delivery.parking = replace(build(client, digest="asked"), most=MOST)
    with pytest.raises(ResponseError):
        table.requeue(delivery)
    assert client.zcard(keys.LEASES) == 1, "it is delivered again"


def test_all_that_is_kept_of_withdrawn_calls_is_deleted(table: Deliveries, client: redis.Redis) -> None:
    """Whichever of many it is, long before its deadline."""
    tags = [str(number) for number in range(1000)]
    for tag in tags:
        park(table, client, tag, lasts_s=600)
    client.hset(keys.input_key("0"), "asked", "[]")
    client.expire(keys.input_key("0"), 600)
    for tag in tags[::2]:
        withdraw(client, tag)
    for look in range(20):
        wake_due(table.exchange, look)
    kept = {"0": [keys.input_key("0")]}
    for tag in tags[::2]:
        assert not client.exists(keys.parked_key(tag), keys.result_key(tag), *kept.get(tag, []))
    assert listed(client) == set(tags[1::2])
    for tag in tags[1::2]:
        approve_one(client, tag)
    assert client.llen(QUEUE) == 500


def approve_one(client: redis.Redis, tag: str) -> None:
    view = load(client, tag)
    assert view is not None
    decide(client, view, is_approved=True, by="ann")


def test_the_answer_of_a_withdrawn_call_is_left(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    withdraw(client, "a")
    client.set(keys.result_key("a"), '{"status": "REVOKED"}', ex=60)
    wake_due(table.exchange)
    assert client.get(keys.result_key("a")) == b'{"status": "REVOKED"}'
    assert is_clean(client)


@pytest.mark.parametrize("queue", [QUEUE, "mcp.desk:a:dev"])
def test_another_message_with_its_id_is_not_taken(table: Deliveries, client: redis.Redis, queue: str) -> None:
    park(table, client)
    entry, record = client.hget(keys.UNACKED, "a"), client.hgetall(keys.parked_key("a"))
    client.zadd(keys.waiting_key(queue), {"a": 1.0})
    marker = client.hgetall(keys.call_marker("a"))
    found = table.take(queue, "a", lambda: "another text")
    assert found.state is CallState.PARKED
    assert not client.exists(keys.LEASES, keys.waiting_key(queue))
    assert client.hgetall(keys.call_marker("a")) == marker
    assert (client.hget(keys.UNACKED, "a"), client.hgetall(keys.parked_key("a"))) == (entry, record)
    approve(client)
    assert pop(client) == MESSAGE
    assert take(table, client).state is CallState.NONE


def test_a_withdrawn_id_can_be_used_again(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    withdraw(client, "a")
    wake_due(table.exchange)
    client.delete(keys.withdrawn_key("a"))  # as after some days
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    assert take(table, client).state is CallState.NONE


def test_those_of_older_workers_are_listed_part_by_part(table: Deliveries, client: redis.Redis) -> None:
    """They listed them in one set only."""
    for number in range(400):
        park(table, client, f"call {number}", lasts_s=1000 + number)
    park(table, client, "task", reason="task", task="t", lasts_s=2000, principal="sre")
    lists = [OWN, keys.parked_by_key("sre"), keys.inbox_key("people"), keys.inbox_key("task")]
    was = [client.zrange(name, 0, -1, withscores=True) for name in lists]
    client.delete(*lists)
    wake_due(table.exchange, 0)
    assert (client.zcard(OWN), client.zcard(keys.inbox_key("people"))) == (300, 300), "so many in one step"
    assert load_waiting(client, 1)[1] == 300
    wake_due(table.exchange, 1)
    wake_due(table.exchange, 2)
    assert [client.zrange(name, 0, -1, withscores=True) for name in lists] == was
    assert all(client.ttl(name) > 0 for name in lists)
    park_bounded(table, client, "more")
    assert not is_parked(client, "more"), "they count"


def test_a_place_that_an_older_worker_left_is_deleted(table: Deliveries, client: redis.Redis) -> None:
    client.zadd(keys.inbox_key("people"), {f"{QUEUE}\nwoken": 1.0})
    wake_due(table.exchange)
    assert not client.exists(keys.inbox_key("people"))


@pytest.mark.parametrize("name", [OWN, keys.inbox_key("people")])
def test_a_list_of_another_type_stops_no_listing(table: Deliveries, client: redis.Redis, name: str) -> None:
    park(table, client)
    park(table, client, "task", reason="task", task="t", principal="sre")
    client.delete(keys.inbox_key("task"), name)
    client.set(name, "something else")
    wake_due(table.exchange)
    assert client.zcard(keys.inbox_key("task")) == 1


def test_who_looks_hears_of_withdrawn_calls(table: Deliveries, client: redis.Redis) -> None:
    """Of those, too, that made room for others, or that were found when they were woken."""
    heard: list[str] = []
    for number in range(MOST):
        park_bounded(table, client, str(number))
    withdraw(client, "0")
    park_bounded(table, client, "next")
    withdraw(client, "next")
    client.zadd(keys.PARKED, {f"{QUEUE}\nnext": 1.0})
    wake_due(table.exchange, 0, heard.extend)
    assert sorted(heard) == ["0", "next"]
    wake_due(table.exchange, 1, heard.extend)
    assert len(heard) == 2
    assert listed(client) == {"1", "2"}


def test_only_what_is_shown_is_read(table: Deliveries, client: redis.Redis) -> None:
    for number in range(300):
        park(table, client, f"task {number}", reason="task", task="t")
    for number in range(30):
        park(table, client, f"call {number}", lasts_s=100 + number)
    for tag in ("call 0", "call 4"):
        withdraw(client, tag)
    client.config_resetstat()
    found, total = load_waiting(client, 5)
    assert [view.id for view in found] == [f"call {number}" for number in (1, 2, 3, 5, 6)]
    assert total == 30, "those that were withdrawn are found later"
    assert client.info("commandstats")["cmdstat_hgetall"]["calls"] < 10
    found, total = load_waiting(client, 1000, for_tasks=True)
    assert (len(found), total, {view.reason for view in found}) == (300, 300, {"task"})
