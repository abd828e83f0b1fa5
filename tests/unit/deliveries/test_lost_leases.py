"""A worker that was paused for longer than a lease, and gives back what another worker has taken since."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.fetch import fetch, read_fetched
from tarsy_tasks.broker.parked_calls import Parking
from tests.unit.deliveries.table import MESSAGE, QUEUE, RESULT, begin, on_a_loop, pop, state_of, sweep
from tests.unit.deliveries.test_forged_entries import expire, pass_on, requeue

GiveBack = Callable[[Deliveries, redis.Redis, Delivery], object]


def requeue_on_a_loop(_: Deliveries, client: redis.Redis, delivery: Delivery) -> None:
    on_a_loop(client, lambda table: table.requeue(delivery))


def delay(table: Deliveries, _: redis.Redis, delivery: Delivery) -> None:
    table.delay(delivery, wait_s=60)


def park(table: Deliveries, client: redis.Redis, delivery: Delivery, owner: str = "") -> None:
    record: dict[str, Any] = {"reason": "approval", "digest": "d", "needs": 1, "about": "{}", "allowance_s": 30.0}
    delivery.parking = Parking(record, client.time()[0] + 60, "", owner=owner)
    table.requeue(delivery)


WAYS = [requeue, requeue_on_a_loop, delay, park, pass_on]


def take(table: Deliveries, client: redis.Redis) -> Delivery:
    assert pop(client) == MESSAGE
    return table.take(QUEUE, "a", lambda: "")


def lose(table: Deliveries, client: redis.Redis, *, owner: str = "") -> tuple[Delivery, Delivery]:
    """A message that one worker takes, and begins if it has a name, and then another one: both deliveries."""
    table.publish(QUEUE, "a", MESSAGE)
    lost = take(table, client)
    if owner:
        begin(client, lost, owner)
    sweep(table, until="its lease has lapsed")
    return lost, take(table, client)


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
    lost, taken = lose(table, client)
    give_back(table, client, lost)
    assert is_leased(client, taken)
    assert lost.parking is None, "it is not reported as parked"
    give_back(table, client, taken)
    assert not client.exists(keys.LEASES), "the one that has it gives it back"


@pytest.mark.parametrize("give_back", WAYS)
def test_a_worker_that_waits_for_one_that_gives_back_goes_on(
    table: Deliveries, client: redis.Redis, give_back: GiveBack
) -> None:
    lost, taken = lose(table, client, owner="w1 1")
    give_back(table, client, lost)
    assert begin(client, taken, "w2 2") is CallState.BEGUN
    lost.unbegins = True
    give_back(table, client, lost)
    assert begin(client, taken, "w2 2") is CallState.NONE


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


def test_no_two_deliveries_begin_a_call_as_the_same_owner(table: Deliveries, client: redis.Redis) -> None:
    """Giving it back takes its count back, so the next delivery has the same count."""
    lost, taken = lose(table, client)
    assert begin(client, taken, f"w2 {taken.number}") is CallState.NONE
    table.requeue(taken)
    again = take(table, client)
    assert begin(client, again, f"w2 {again.number}") is CallState.BEGUN
    assert len({each.number for each in (lost, taken, again)}) == 3


@pytest.mark.parametrize("unbegins", [False, True])
def test_who_has_begun_a_call_parks_it_though_another_waits(
    table: Deliveries, client: redis.Redis, *, unbegins: bool
) -> None:
    lost, taken = lose(table, client, owner="w1 1")
    assert begin(client, taken, "w2 2") is CallState.BEGUN
    lost.unbegins = unbegins
    park(table, client, lost, "w1 1")
    assert lost.parking is not None
    assert begin(client, taken, "w2 2") is CallState.PARKED
    assert state_of(client, "a") is (CallState.NONE if unbegins else CallState.BEGUN)
    table.acknowledge(taken)
    table.answer(taken, RESULT, "lost", 60)
    assert client.exists(keys.PARKED), "what the other one makes of it does not count"
    assert client.hget(keys.UNACKED, "a")
    assert not client.exists(RESULT)


def test_a_result_in_another_redis_is_stored_by_who_has_the_call(table: Deliveries, client: redis.Redis) -> None:
    lost, taken = lose(table, client)
    assert table.may_answer(lost), "nobody has begun it"
    begin(client, taken, "w2 2")
    assert not table.may_answer(lost)
    table.acknowledge(lost)
    assert is_leased(client, taken), "nor does it take the call from the other one, which may be lost, too"
    assert client.hexists(keys.UNACKED, "a")
    assert table.may_answer(taken)
    sweep(table, until="its lease has lapsed")
    last = take(table, client)
    assert last.owner == "w2 2"
    assert table.may_answer(last), "that the one that has begun it is lost"
    table.acknowledge(last)
    assert not client.hexists(keys.UNACKED, "a")
    assert not table.may_answer(taken)


def test_a_parked_call_has_no_result_in_another_redis(table: Deliveries, client: redis.Redis) -> None:
    lost, taken = lose(table, client)
    park(table, client, taken)
    assert not table.may_answer(lost)


def test_what_was_parked_by_another_worker_is_not_ended(table: Deliveries, client: redis.Redis) -> None:
    lost, taken = lose(table, client)
    park(table, client, taken)
    assert begin(client, lost, "w1 1") is CallState.PARKED
    table.answer(lost, RESULT, "its deadline has passed", 60)
    assert client.hget(keys.UNACKED, "a")
    assert not client.exists(RESULT)


def test_a_question_is_taken_back_though_nobody_has_the_call(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    lost = take(table, client)
    begin(client, lost, "w1 1")
    sweep(table, until="its lease has lapsed")
    lost.unbegins = True
    park(table, client, lost, "w1 1")
    assert (state_of(client, "a"), client.zcard(keys.PARKED)) == (CallState.NONE, 1)
    client.rpop(QUEUE)
    assert table.take(QUEUE, "a", lambda: "").state is CallState.PARKED, "its message was still in the queue"


@pytest.mark.parametrize("is_woken_first", [False, True])
def test_the_owner_of_a_call_parks_it_once(table: Deliveries, client: redis.Redis, *, is_woken_first: bool) -> None:
    """With a task of its server, a call stays begun; the reply was lost, so the step is sent again."""
    if is_woken_first:
        table.publish(QUEUE, "a", MESSAGE)
        park(table, client, first := take(table, client))
        expire(table, client, first)
        lost = take(table, client)
        begin(client, lost, "w1 1.1")
        sweep(table, until="its lease has lapsed")
        take(table, client)
    else:
        lost, _ = lose(table, client, owner="w1 1")
    owner = f"w1 {lost.number}"
    for _ in range(2):
        park(table, client, lost, owner)
        assert lost.parking is not None
        assert client.hget(keys.call_marker("a"), "deliveries") == b"1"
    expire(table, client, lost)
    park(table, client, lost, owner)
    assert lost.parking is None
    taken = take(table, client)
    assert is_leased(client, taken)
    table.answer(taken, RESULT, "done", 60)
    assert client.get(RESULT) == b"done"


def test_a_call_whose_place_is_lost_can_end(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    park(table, client, take(table, client))
    client.delete(keys.PARKED)
    taken = table.take(QUEUE, "a", lambda: "")
    assert begin(client, taken, "w1 1.1") is CallState.NONE
    table.answer(taken, RESULT, "done", 60)
    assert client.get(RESULT) == b"done"


def test_a_call_that_was_fetched_again_can_be_given_back(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    for given_back in range(3):
        (found,) = fetch.run(table.exchange, QUEUE, limits="1", checks=0, room=1, kept=0, instance="w1")
        delivery = read_fetched(found).delivery
        assert (delivery.count, delivery.given_back) == (1, given_back)
        table.requeue(delivery)


def test_a_message_of_another_worker_is_not_due(table: Deliveries, client: redis.Redis) -> None:
    """What is due is run at once by the worker that has it."""
    lost, taken = lose(table, client)
    assert table.delay(lost, due_at=1.0)
    assert not table.delay(taken, due_at=1.0)
