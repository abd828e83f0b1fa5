"""What the sweep finds: lost messages, dead letters, garbage, and entries that somebody forged."""

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import QUARANTINE_FROM_DELIVERY, Deliveries
from tarsy_tasks.broker.delivery import AuditWrite, Delivery
from tarsy_tasks.broker.sweep import Swept
from tests.processes import wait_until
from tests.unit.deliveries.table import LEASE_S, MESSAGE, QUEUE, is_clean, pop, sweep, withdraw


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
    for count in range(1, QUARANTINE_FROM_DELIVERY + 1):
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


def test_a_dead_letter_has_a_name_that_people_can_read(table: Deliveries, client: redis.Redis) -> None:
    tag = "x" * 100_000
    client.hset(keys.UNACKED, tag, "no line breaks")
    client.zadd(keys.waiting_key(QUEUE), {tag: 1.0})
    wait_until(lambda: table.sweep(LEASE_S, LEASE_S / 2, [QUEUE]).dead_letters, "it is a dead letter", 5)
    [name] = client.zrange(keys.DEAD_LETTERS, 0, -1)
    assert len(name) == 40
    assert client.get(keys.dead_letter_key(name.decode())) == b"no line breaks"
    assert not client.hlen(keys.UNACKED)


def test_a_call_is_not_blamed_for_what_another_call_did(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    for count in range(1, QUARANTINE_FROM_DELIVERY + 2):
        pop(client)
        assert table.take(QUEUE, "a", lambda: "", is_quarantined=False).count == count
        assert sweep(table, until="its lease lapses").restored == ("a",)
    pop(client)
    table.take(QUEUE, "a", lambda: "", is_quarantined=False)
    table.mark_quarantined("a")
    assert sweep(table, until="it was lost when it ran alone").dead_letters == ("a",)


def test_a_call_that_kills_before_isolation_is_a_dead_letter(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    aside: list[str] = []
    deliveries = 0
    while not aside:
        pop(client)
        deliveries = table.take(QUEUE, "a", lambda: "", is_quarantined=False).count
        assert deliveries < 20
        aside += sweep(table, until="its lease lapses").dead_letters
    assert deliveries > QUARANTINE_FROM_DELIVERY


def test_garbage_is_found_with_its_true_queue(table: Deliveries, client: redis.Redis) -> None:
    client.hset(keys.UNACKED, "a", f"mcp.vault\n1\n{MESSAGE}")
    assert table.entry_of("a", QUEUE) == f"{QUEUE}\n1\n{MESSAGE}".encode()


def test_what_nobody_can_want_any_more_is_thrown_away(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "old", MESSAGE, garbage_at=1.0)
    table.sweep(LEASE_S, LEASE_S / 2)

    def is_found() -> bool:
        return table.sweep(LEASE_S, LEASE_S / 2).garbage == (("old", QUEUE),)

    wait_until(is_found, "it is found", 5)
    assert is_found(), "again, until it is removed: the worker that found it may have died"
    table.discard("old", QUEUE)
    assert is_clean(client)


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


def test_queues_that_are_empty_are_forgotten(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    withdraw(client, "a")
    table.sweep(LEASE_S, LEASE_S / 2)

    def is_forgotten() -> bool:
        table.sweep(LEASE_S, LEASE_S / 2)
        return not client.exists(keys.QUEUES)

    wait_until(is_forgotten, "nothing is left to look at", 5)


def test_names_that_are_no_queues_hide_no_message(table: Deliveries, client: redis.Redis) -> None:
    client.zadd(keys.QUEUES, {f"mcp.none-{number}": float("-inf") for number in range(5000)})
    client.zadd(keys.QUEUES, {"x" * 100_000: float("-inf")})
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    client.zadd(keys.waiting_key(QUEUE), {"a": 1.0})
    table.sweep(LEASE_S, LEASE_S / 2)
    wait_until(lambda: table.sweep(LEASE_S, LEASE_S / 2, [QUEUE]).restored == ("a",), "it is found", 5)
    assert client.zcard(keys.QUEUES) > 3000, "before the names are removed"
    crowded: list[bool] = []

    def is_short() -> bool:
        crowded.append(table.sweep(LEASE_S, LEASE_S / 2).is_crowded)
        return client.zcard(keys.QUEUES) < 1000

    wait_until(is_short, "the names are removed")
    assert 0 < sum(crowded) < 10


def test_names_that_are_no_messages_hide_no_message(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "lost", MESSAGE)
    pop(client)
    client.zadd(keys.waiting_key(QUEUE), {"lost": 1.0, **{f"forged-{number}": 0.0 for number in range(12_000)}})
    sweeps: list[Swept] = []

    def lost_is_back() -> bool:
        sweeps.append(table.sweep(LEASE_S, LEASE_S / 2))
        return sweeps[-1].restored == ("lost",)

    wait_until(lost_is_back, "it is put back", 20)
    assert sum(each.is_crowded for each in sweeps) == 2
