"""The in-flight table: each step happens once, also if it is sent twice, and no message is lost."""

import asyncio

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.begun import Begun, read_begun
from tarsy_tasks.broker.deliveries import QUARANTINE_FROM_DELIVERY, Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.steps import ENDED_TTL_S
from tests.processes import wait_until
from tests.unit.deliveries.table import (
    LEASE_S,
    MESSAGE,
    QUEUE,
    RESULT,
    begin,
    is_clean,
    on_a_loop,
    pop,
    state_of,
    sweep,
    unbegin,
    withdraw,
)


def test_a_message_published_twice_is_in_the_queue_once(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    table.publish(QUEUE, "a", MESSAGE)
    assert client.lrange(QUEUE, 0, -1) == [MESSAGE.encode()]


def test_an_answer_removes_the_entry_of_the_call(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    delivery = table.take(QUEUE, "a", lambda: pop(client))
    pop(client)
    assert (delivery.count, delivery.state) == (1, CallState.NONE)
    assert begin(client, delivery, "me 1") is CallState.NONE
    assert begin(client, delivery, "me 1") is CallState.NONE, "a reply that was lost: the same owner asks again"
    table.answer(delivery, RESULT, "first", 60)
    table.answer(delivery, RESULT, "second", 60)
    assert client.get(RESULT) == b"first"
    assert client.ttl(RESULT) > 0
    assert client.ttl(keys.call_marker("a")) > 0
    assert is_clean(client)


def test_a_requeue_does_not_count_as_a_delivery(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    for _ in range(QUARANTINE_FROM_DELIVERY * 2):
        assert pop(client) == MESSAGE
        delivery = table.take(QUEUE, "a", lambda: "")
        assert delivery.count == 1
        table.requeue(delivery)
        table.requeue(delivery)
    assert client.llen(QUEUE) == 1


def test_what_goes_back_into_its_queue_is_recorded_by_its_agent(table: Deliveries, client: redis.Redis) -> None:
    """No worker has it any more: if it is withdrawn then, nobody else would."""
    for tag, requeue in (("a", True), ("b", False)):
        table.publish(QUEUE, tag, MESSAGE)
        pop(client)
        delivery = table.take(QUEUE, tag, lambda: "")
        if requeue:
            table.requeue(delivery)
        else:
            sweep(table, until="restored")
        assert withdraw(client, tag) == (CallState.NONE, False), tag
        assert is_clean(client)


def test_a_call_that_is_cancelled_and_requeued_is_withdrawn(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    begin(client, delivery, "me 1")
    assert withdraw(client, "a") == (CallState.BEGUN, True)
    unbegin(client, "a", "me 1")
    table.requeue(delivery)
    pop(client)
    assert table.take(QUEUE, "a", lambda: "").state is CallState.WITHDRAWN


def test_a_call_with_a_damaged_marker_may_have_run(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    client.hset(keys.call_marker("a"), "mark", "overwritten")
    assert state_of(client, "a") is CallState.BEGUN
    assert withdraw(client, "a")[0] is CallState.BEGUN


def test_what_another_began_is_begun_again_only_on_purpose(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    first = table.take(QUEUE, "a", lambda: "")
    begin(client, first, "dead 1")
    table.requeue(first)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    assert (delivery.state, delivery.owner) == (CallState.BEGUN, "dead 1")
    assert begin(client, delivery, "alive 2") is CallState.BEGUN
    assert delivery.owner == "dead 1"
    assert begin(client, delivery, "alive 2", after="another 7") is CallState.BEGUN
    assert begin(client, delivery, "alive 2", after="dead 1") is CallState.NONE
    assert begin(client, delivery, "dead 1") is CallState.BEGUN
    unbegin(client, "a", "dead 1")
    assert begin(client, delivery, "other 3") is CallState.BEGUN
    unbegin(client, "a", "alive 2")
    assert begin(client, delivery, "other 3") is CallState.NONE


def test_who_began_a_call_is_known_to_who_takes_it_next(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    owners = ("one@host#1a 1", "two@host#2b 2", "one@host#3c 3")
    for number, owner in enumerate(owners):
        pop(client)
        delivery = table.take(QUEUE, "a", lambda: "")
        assert delivery.begun_before == tuple(
            Begun(each.partition("#")[0], 1000.5 + place) for place, each in enumerate(owners[:number])
        )
        for _ in range(2):  # the second time because the reply was lost
            assert begin(client, delivery, owner, 1000.5 + number, after=delivery.owner) is CallState.NONE
        table.requeue(delivery)
    unbegin(client, "a", owners[2])  # it was not sent after all
    pop(client)
    assert [each.worker for each in table.take(QUEUE, "a", lambda: "").begun_before] == ["one@host", "two@host"]


def test_who_began_a_call_is_bounded_and_survives_damage() -> None:
    lines = "".join(f"w{number}@host#1 {number}:x\nw{number}@host#1 1 {number}\n" for number in range(30))
    found = read_begun(f"@host#1 1\n\n{lines}".encode() + b"\xff\n")
    assert found == tuple(Begun(f"w{number}@host", number) for number in range(20, 30))


def test_what_others_write_of_who_began_a_call_is_cut(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    client.hset(keys.call_marker("a"), "begun", b"one@host#1 1\n" * 100_000 + b"x" * 5000 + b"#1 2\n")
    begun_before = table.take(QUEUE, "a", lambda: "").begun_before
    assert [(len(each.worker), each.at) for each in begun_before] == [(4000 - len("#1 2\n"), 2.0)]
    assert table.dead_letter_of("a")[1] == begun_before


def test_what_others_write_does_not_make_redis_slow(table: Deliveries, client: redis.Redis) -> None:
    """Taking a begin marker back searches for the last line, which took Redis seconds for 50,000 characters."""
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    begin(client, table.take(QUEUE, "a", lambda: ""), "me 1")
    client.hset(keys.call_marker("a"), "begun", b"x" * 50_000)
    unbegin(client, "a", "me 1")
    assert client.hget(keys.call_marker("a"), "begun") == b"x" * 4000


def test_only_the_owner_that_runs_a_call_answers_it(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    cut_off = table.take(QUEUE, "a", lambda: "")
    runs_it = table.take(QUEUE, "a", lambda: "")
    begin(client, runs_it, "alive 2")
    table.answer(cut_off, RESULT, "did not run", 60)
    assert not client.exists(RESULT)
    assert client.hexists(keys.UNACKED, "a")
    table.answer(runs_it, RESULT, "ok", 60)
    assert client.get(RESULT) == b"ok"
    assert is_clean(client)


def test_a_call_that_ends_while_it_begins_is_answered(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")

    async def end_while_it_begins(loop_table: AsyncDeliveries) -> None:
        await loop_table.unbegin("a", "me 1")  # connected
        beginning = asyncio.create_task(loop_table.begin(delivery, "me 1", 1.0))
        for _ in range(2):  # it asks, and the question goes out
            await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait([beginning])
        assert beginning.cancelled()

    on_a_loop(client, end_while_it_begins)
    wait_until(lambda: client.hget(keys.call_marker("a"), "owner") == b"me 1", "Redis has begun it")
    table.answer(delivery, RESULT, "too late", 60)
    assert client.get(RESULT) == b"too late"
    assert is_clean(client)


def test_an_answer_stays_known_while_a_copy_of_its_call_may_wait(table: Deliveries, client: redis.Redis) -> None:
    for tag, is_lost in (("a", True), ("b", False)):
        table.publish(QUEUE, tag, MESSAGE)
        pop(client)
        delivery = table.take(QUEUE, tag, lambda: "")
        begin(client, delivery, "first")
        if is_lost:
            sweep(table, until="the lease lapses")
        table.answer(delivery, f"celery-task-meta-{tag}", "{}", 60)
        found = client.ttl(keys.call_marker(tag))
        assert isinstance(found, int)
        assert (found > ENDED_TTL_S) is is_lost
    pop(client)
    assert table.take(QUEUE, "a", lambda: "").state is CallState.ANSWERED


def test_that_a_call_has_begun_stays_known_until_it_is_answered(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    begin(client, delivery, "me 1")
    assert client.ttl(keys.call_marker("a")) > 24 * 3600, "it may wait for a whole day"
    table.answer(delivery, RESULT, "ok", 60)
    assert 60 < client.ttl(keys.call_marker("a")) <= 3600


def test_a_full_redis_takes_nothing_new_and_lets_calls_end(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            table.publish(QUEUE, "b", MESSAGE)
        delivery = table.take(QUEUE, "a", lambda: "")
        begin(client, delivery, "me 1")
        table.renew([delivery])
        table.sweep(LEASE_S, LEASE_S / 2)
        fleet.announce(table.exchange, "w1", ["desk"])
        table.answer(delivery, RESULT, "ok", 60)
    finally:
        client.config_set("maxmemory", 0)
    assert client.get(RESULT) == b"ok"


def test_a_waiting_call_can_be_withdrawn_and_a_begun_one_cannot(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "waits", MESSAGE)
    assert withdraw(client, "waits") == (CallState.NONE, False)
    assert is_clean(client)
    table.publish(QUEUE, "begun", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "begun", lambda: "")
    begin(client, delivery, "me 1")
    assert withdraw(client, "begun")[0] is CallState.BEGUN
    table.answer(delivery, RESULT, "answer", 60)
    assert withdraw(client, "begun")[0] is CallState.ANSWERED


def test_a_leased_call_that_was_withdrawn_never_begins(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    assert withdraw(client, "a") == (CallState.NONE, True)
    assert begin(client, delivery, "me 1") is CallState.WITHDRAWN


def test_a_withdrawn_call_stays_known_when_its_worker_drops_it(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    withdraw(client, "a")
    table.acknowledge(delivery)
    assert is_clean(client)
    assert state_of(client, "a") is CallState.WITHDRAWN, (
        "another agent that waits for it must not read that it may have run"
    )


def test_a_message_of_a_stock_producer_gets_an_entry_when_taken(table: Deliveries, client: redis.Redis) -> None:
    client.lpush(QUEUE, MESSAGE)
    popped = pop(client)
    assert table.take(QUEUE, "foreign", lambda: popped).count == 1
    assert sweep(table, until="its lease lapses").restored == ("foreign",)
    assert pop(client) == MESSAGE


def test_a_message_with_a_priority_belongs_to_its_queue(table: Deliveries, client: redis.Redis) -> None:
    urgent = f"{QUEUE}\x06\x163"
    table.publish(urgent, "a", MESSAGE)
    client.rpop(urgent)
    delivery = table.take(QUEUE, "a", lambda: "")
    assert delivery.queue == QUEUE
    table.acknowledge(delivery)
    assert is_clean(client)


def test_a_purged_queue_stays_empty(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "delayed", MESSAGE)
    pop(client)
    table.delay(table.take(QUEUE, "delayed", lambda: ""), wait_s=3600)
    for number in range(3):
        table.publish(QUEUE, str(number), f"message {number}")
    urgent = f"{QUEUE}\x06\x163"
    table.publish(urgent, "urgent", MESSAGE)
    for tag in ("kept", "put off"):
        table.publish("mcp.other", tag, MESSAGE)
    later = Delivery("put off", "mcp.other").lease
    client.zadd(keys.DELAYED, {later: 1e10})
    assert table.purge(QUEUE, [QUEUE, urgent]) == 5
    assert set(client.hkeys(keys.UNACKED)) == {b"kept", b"put off"}
    assert client.zrange(keys.DELAYED, 0, -1) == [later.encode()]
    assert not client.exists(QUEUE, urgent)
    client.set(keys.DELAYED, "another application's")
    assert table.purge("mcp.other", ["mcp.other"]) == 2


def test_scripts_survive_a_redis_that_forgot_them(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    client.script_flush()
    table.publish(QUEUE, "b", MESSAGE)
    assert client.llen(QUEUE) == 2


def test_a_silent_worker_is_removed(client: redis.Redis) -> None:
    exchange = RedisExchange(client.connection_pool)
    fleet.announce(exchange, "w1", ["desk", "files"])
    fleet.announce(exchange, "w2", ["desk"])
    assert fleet.serving_workers(client, ["desk", "files", "none"]) == {
        "desk": ["w1", "w2"],
        "files": ["w1"],
        "none": [],
    }
    assert fleet.is_alive(exchange.execute(*fleet.ask_alive("w1")))
    fleet.depart(exchange, "w2", ["desk"])
    assert fleet.serving_workers(client, ["desk"]) == {"desk": ["w1"]}
    assert fleet.is_alive(exchange.execute(*fleet.ask_alive("w2"))), "its own calls may still run"
    fleet.leave(exchange, "w2")
    assert not fleet.is_alive(exchange.execute(*fleet.ask_alive("w2")))
    client.zadd(keys.serving_key("desk"), {"w1": 1.0})
    assert fleet.serving_workers(client, ["desk"]) == {"desk": []}
    assert not fleet.is_alive(exchange.execute(*fleet.ask_alive("w1")), within_s=0.0)
