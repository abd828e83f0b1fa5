"""Parked calls in Redis: what is decided about them once, and that none is lost, counted twice or kept for ever."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.parked_calls import (
    Decided,
    ParkedCallView,
    ParkedRecord,
    Parking,
    decide,
    load,
    load_waiting,
    wake_due,
)
from tests.processes import wait_until
from tests.unit.deliveries.table import MESSAGE, QUEUE, RESULT, begin, is_clean, pop, state_of, sweep, withdraw

DIGEST = "d" * 64
SOON_S = 0.2
Decide = Callable[..., Decided]


def now(client: redis.Redis) -> float:
    seconds, micros = client.time()
    return seconds + micros / 1e6


def build(client: redis.Redis, *, lasts_s: float = 60, needs: int = 1, digest: str = DIGEST, **more: Any) -> Parking:
    about = json.dumps({"server": "desk", "tool": "order", "arguments": '{"item":"pen"}'})
    record = {"reason": "approval", "digest": digest, "needs": needs, "about": about, "allowance_s": 30.0, **more}
    return Parking(record, now(client) + lasts_s, '{"status": "PARKED"}')


def take(table: Deliveries, client: redis.Redis, tag: str = "a") -> Delivery:
    return table.take(QUEUE, tag, lambda: pop(client))


def park(table: Deliveries, client: redis.Redis, tag: str = "a", **options: Any) -> Delivery:
    table.publish(QUEUE, tag, MESSAGE, garbage_at=1.0)
    pop(client)
    delivery = take(table, client, tag)
    delivery.parking = build(client, **options)
    table.requeue(delivery)
    return delivery


def view_of(client: redis.Redis, tag: str = "a") -> ParkedCallView:
    view = load(client, tag)
    assert view is not None
    return view


def approve(client: redis.Redis, by: str = "ann", **options: Any) -> Decided:
    return decide(client, view_of(client), is_approved=True, by=by, **options)


def record_of(client: redis.Redis, tag: str = "a") -> ParkedRecord:
    record = ParkedRecord.read(client.hmget(keys.parked_key(tag), ParkedRecord.FIELDS))
    assert record is not None
    return record


def test_a_parked_call_is_in_no_queue_and_on_no_lease(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    assert not client.exists(QUEUE, keys.waiting_key(QUEUE), keys.LEASES)
    assert client.hexists(keys.UNACKED, "a"), "else its task would be forgotten"
    found, total = load_waiting(client, 10)
    assert ([view.id for view in found], total) == (["a"], 1)
    assert found[0].about["arguments"] == '{"item":"pen"}'
    assert client.get(RESULT) == b'{"status": "PARKED"}'


@pytest.mark.parametrize("end", ["answer", "acknowledge"])
def test_a_decision_is_known_no_longer_than_its_use(table: Deliveries, client: redis.Redis, end: str) -> None:
    """Its agent can send the message again, with the same id, whenever it likes."""
    park(table, client)
    assert approve(client) is Decided.APPROVED
    pop(client)
    delivery = take(table, client)
    if end == "answer":
        table.answer(delivery, RESULT, "{}", 60)
    else:
        table.acknowledge(delivery)
    assert state_of(client, "a") is CallState.ANSWERED
    assert client.ttl(keys.call_marker("a")) > client.ttl(keys.parked_key("a"))


def test_an_approved_call_is_delivered_as_if_for_the_first_time(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    assert approve(client, why="needed") is Decided.APPROVED
    assert pop(client) == MESSAGE
    delivery = take(table, client)
    assert (delivery.count, delivery.state, delivery.queue) == (1, CallState.NONE, QUEUE)
    record = record_of(client)
    assert (record.decision, record.by, record.why, record.allowance_s) == ("approved", "ann", "needed", 30)
    assert record.resumed_at is not None
    assert not client.exists(RESULT), "it is no longer parked"
    assert load_waiting(client, 10) == ([], 0)


def test_its_garbage_time_counts_from_when_it_is_woken(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    approve(client)
    garbage_at = float(client.hget(keys.UNACKED, "a").split(b"\n")[1])
    assert garbage_at == pytest.approx(now(client) + 30 + 600, abs=5)


def test_a_denied_call_is_woken_too_so_that_it_is_answered(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    assert decide(client, view_of(client), is_approved=False, by="ann", why="no") is Decided.DENIED
    assert pop(client) == MESSAGE
    assert (record_of(client).decision, record_of(client).why) == ("denied", "no")


def test_of_many_people_at_once_one_decides(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    view = view_of(client)
    with ThreadPoolExecutor(8) as threads:
        found = list(
            threads.map(lambda n: decide(client, view, is_approved=n % 2 == 0, by=f"person {n}"), range(16)),
        )
    assert sorted(found).count(Decided.LATE) == 15
    assert client.llen(QUEUE) == 1


def test_two_people_have_to_approve_where_two_are_needed(table: Deliveries, client: redis.Redis) -> None:
    park(table, client, needs=2)
    assert approve(client) is Decided.COUNTED
    assert approve(client) is Decided.REPEATED
    assert client.llen(QUEUE) == 0
    assert view_of(client).approvals == ("ann",)
    assert approve(client, "bob") is Decided.APPROVED
    assert record_of(client).by == "ann, bob"


@pytest.mark.parametrize(("first", "again"), [("ann", " ANN "), ("Jörg Ott", "JÖRG  OTT")])
def test_one_person_in_two_spellings_counts_once(
    table: Deliveries, client: redis.Redis, first: str, again: str
) -> None:
    park(table, client, needs=2)
    assert approve(client, first) is Decided.COUNTED
    assert approve(client, again) is Decided.REPEATED
    assert approve(client, "Bob") is Decided.APPROVED
    assert (view_of(client).approvals, record_of(client).by) == ((first, "Bob"), f"{first}, Bob")


def test_one_person_is_enough_to_deny(table: Deliveries, client: redis.Redis) -> None:
    park(table, client, needs=2)
    approve(client)
    assert decide(client, view_of(client), is_approved=False, by="bob") is Decided.DENIED


@pytest.mark.parametrize(
    ("principal", "by"),
    [
        ("ann", "ann"),
        ("ann", "ANN"),
        ("Ann", " ann\n"),
        ("CN=Jörg  Ott", "cn=JÖRG OTT"),
        ("CN=Jörg  Ott", "CN=Jörg  Ott"),
    ],
)
def test_nobody_approves_a_call_of_their_own(table: Deliveries, client: redis.Redis, principal: str, by: str) -> None:
    park(table, client, principal=principal)
    assert approve(client, by) is Decided.OWN
    assert approve(client, "bob") is Decided.APPROVED


def test_a_decision_about_other_arguments_does_not_count(table: Deliveries, client: redis.Redis) -> None:
    delivery = park(table, client)
    seen = view_of(client)
    client.hset(keys.parked_key("a"), "digest", "other")
    assert decide(client, seen, is_approved=True, by="ann") is Decided.CHANGED
    assert client.llen(QUEUE) == 0
    assert delivery.tag == "a"


def test_a_second_decision_changes_nothing(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    view = view_of(client)
    approve(client)
    assert decide(client, view, is_approved=False, by="bob") is Decided.LATE
    assert approve(client) is Decided.LATE
    assert (client.llen(QUEUE), record_of(client).decision) == (1, "approved")


def test_what_nobody_decides_is_woken_when_it_expires(table: Deliveries, client: redis.Redis) -> None:
    park(table, client, lasts_s=SOON_S)
    view = view_of(client)
    due_in_s = wake_due(table.exchange)
    assert due_in_s is not None
    assert due_in_s <= SOON_S
    wait_until(lambda: wake_due(table.exchange) is None, "it has expired")
    assert pop(client) == MESSAGE
    assert record_of(client).decision == "expired"
    assert decide(client, view, is_approved=True, by="ann") is Decided.EXPIRED


def test_a_decision_after_the_end_does_not_count(table: Deliveries, client: redis.Redis) -> None:
    park(table, client, lasts_s=-1)
    assert approve(client) is Decided.EXPIRED
    assert client.llen(QUEUE) == 0
    assert wake_due(table.exchange) is None
    assert client.llen(QUEUE) == 1


def test_a_parked_call_can_be_withdrawn(table: Deliveries, client: redis.Redis) -> None:
    park(table, client)
    view = view_of(client)
    assert withdraw(client, "a") == (CallState.NONE, False), "its agent records that"
    assert state_of(client, "a") is CallState.WITHDRAWN
    assert not client.hexists(keys.UNACKED, "a")
    assert load_waiting(client, 10)[0] == []
    assert decide(client, view, is_approved=True, by="ann") is Decided.WITHDRAWN
    assert client.llen(QUEUE) == 0


def test_a_withdrawn_call_leaves_the_set_at_its_end(table: Deliveries, client: redis.Redis) -> None:
    park(table, client, lasts_s=-1)
    withdraw(client, "a")
    assert wake_due(table.exchange) is None
    assert not client.exists(keys.PARKED, QUEUE)


def test_a_call_that_is_withdrawn_before_it_is_parked_goes_back(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = take(table, client)
    withdraw(client, "a")
    delivery.parking = build(client)
    table.requeue(delivery)
    assert not client.exists(keys.PARKED)
    assert pop(client) == MESSAGE
    assert take(table, client).state is CallState.WITHDRAWN


def test_parking_twice_because_a_reply_was_lost_is_parking_once(table: Deliveries, client: redis.Redis) -> None:
    delivery = park(table, client)
    table.requeue(delivery)
    assert (client.zcard(keys.PARKED), client.llen(QUEUE)) == (1, 0)
    assert client.hget(keys.call_marker("a"), "deliveries") == b"0"
    approve(client)
    table.requeue(delivery)
    assert (client.zcard(keys.PARKED), client.llen(QUEUE)) == (0, 1), "nor is it parked after it was woken"


@pytest.mark.parametrize(("owner", "mark"), [("me 1", None), ("other 1", b"begun"), ("", b"begun")])
def test_a_call_that_is_sent_again_is_parked_as_not_begun(
    table: Deliveries, client: redis.Redis, owner: str, mark: bytes | None
) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = take(table, client)
    begin(client, delivery, "me 1")
    delivery.parking, delivery.begins_as, delivery.unbegins = build(client), owner, True
    table.requeue(delivery)
    assert client.zcard(keys.PARKED) == 1
    assert client.hget(keys.call_marker("a"), "mark") == mark


def test_one_that_is_cancelled_before_is_not_parked(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = take(table, client)
    begin(client, delivery, "me 1")
    withdraw(client, "a")
    delivery.parking, delivery.unbegins = build(client), True
    table.requeue(delivery)
    assert not client.exists(keys.PARKED)
    assert pop(client) == MESSAGE
    assert take(table, client).state is CallState.WITHDRAWN


def test_approvals_are_kept_for_the_same_question_only(table: Deliveries, client: redis.Redis) -> None:
    park(table, client, needs=2)
    approve(client)
    for digest, approvals in ((DIGEST, ("ann",)), ("other", ())):
        client.zrem(keys.PARKED, f"{QUEUE}\na")  # as if its worker had been lost before
        delivery = take(table, client)
        delivery.parking = build(client, needs=2, digest=digest)
        table.requeue(delivery)
        assert view_of(client).approvals == approvals


def test_a_call_that_was_lost_is_parked_by_another_worker(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    lost = take(table, client)
    sweep(table, until="the lease has lapsed")
    pop(client)
    delivery = take(table, client)
    assert delivery.count == 2
    for each in (delivery, lost):
        each.parking = build(client)
        table.requeue(each)
    approve(client)
    assert (client.zcard(keys.PARKED), client.llen(QUEUE)) == (0, 1)


def test_nothing_of_a_parked_call_stays_for_ever(table: Deliveries, client: redis.Redis) -> None:
    park(table, client, lasts_s=20 * 24 * 3600)
    for key in (keys.parked_key("a"), keys.call_marker("a"), RESULT):
        assert client.ttl(key) > 20 * 24 * 3600
    approve(client)
    assert 0 < client.ttl(keys.parked_key("a")) < 2 * 24 * 3600
    pop(client)
    table.answer(take(table, client), RESULT, "done", 60)
    assert is_clean(client)
    assert not client.exists(keys.PARKED)


def test_a_parked_call_takes_little_memory(table: Deliveries, client: redis.Redis) -> None:
    def used() -> int:
        return int(client.info("memory")["used_memory"])

    park(table, client, "first")
    before, count = used(), 2000
    for number in range(count):
        park(table, client, f"{number:036}")
    payload = len(MESSAGE) + len(build(client).record["about"])
    assert (used() - before) / count - payload < 2000


def test_many_that_expire_at_once_are_all_woken(table: Deliveries, client: redis.Redis) -> None:
    for number in range(1000):
        park(table, client, str(number), lasts_s=-1)
    while wake_due(table.exchange) is not None:
        pass
    assert (client.llen(QUEUE), client.zcard(keys.PARKED)) == (1000, 0)


@pytest.mark.parametrize("key", [keys.waiting_key(QUEUE), QUEUE])
def test_a_key_of_another_type_does_not_stop_the_others(table: Deliveries, client: redis.Redis, key: str) -> None:
    park(table, client, "a", lasts_s=-1)
    client.set(key, "something else")
    client.zadd(keys.PARKED, {"mcp.other\nb": 1.0})
    client.hset(keys.UNACKED, "b", f"mcp.other\n\n{MESSAGE}")
    wake_due(table.exchange)
    assert client.llen("mcp.other") == 1
    assert client.hexists(keys.UNACKED, "a")


def test_an_unknown_call_is_not_decided(client: redis.Redis) -> None:
    assert load(client, "nothing") is None
    view = ParkedCallView("nothing", "approval", 1.0, DIGEST, 1, (), "", {})
    assert decide(client, view, is_approved=True, by="ann") is Decided.UNKNOWN
