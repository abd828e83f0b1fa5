"""Each call has one entry in the audit, whichever side ends it, and whatever is sent twice."""

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import AuditWrite, CallState, Delivery
from tests.unit.deliveries.table import MESSAGE, QUEUE, RESULT, begin, is_clean, on_a_loop, pop, state_of, withdraw


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
            assert withdraw(client, tag) == (CallState.NONE, True)
        else:
            # It was popped, and not leased yet.
            assert withdraw(client, tag) == (CallState.NONE, False)
            delivery = table.take(QUEUE, tag, lambda: "")
        assert begin(client, delivery, "me 1") is CallState.WITHDRAWN
        for _ in range(2):
            table.acknowledge(delivery, recorded.entry(tag))
        assert withdraw(client, tag) == (CallState.NONE, False)
    assert (audit(client), recorded) == (["worker"], [""])


@pytest.mark.parametrize("tag", ["worker", "agent"])
def test_a_withdrawn_call_that_is_answered_has_one_entry_too(table: Deliveries, client: redis.Redis, tag: str) -> None:
    recorded = Recorded()
    table.publish(QUEUE, tag, MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, tag, lambda: "") if tag == "worker" else Delivery(tag, QUEUE)
    withdraw(client, tag)
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
    client.set(keys.dead_letter_key("a"), "entry")
    are_first = [table.record_dead_letter("a", recorded.entry("dead letter")) for _ in range(3)]
    assert are_first == [True, False, False]
    assert (audit(client), recorded) == (["dead letter"], [""])
    client.delete(keys.call_marker("a"))
    table.record_dead_letter("a", recorded.entry("again"))
    assert audit(client) == ["dead letter", "again"]


def test_a_retried_dead_letter_is_neither_recorded_nor_failed(table: Deliveries, client: redis.Redis) -> None:
    """A worker has found it, and an operator retries it before the worker says so."""
    recorded = Recorded()
    assert not table.record_dead_letter("a", recorded.entry("dead letter"))
    table.refuse("a", RESULT, "failed", 60)
    assert (audit(client), recorded, client.exists(keys.call_marker("a"), RESULT)) == ([], [], 0)


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
    assert "WRONGTYPE" in on_a_loop(client, lambda table: table.begin(delivery, "me 1", 1.0, is_audited=True))
    assert state_of(client, "a") is CallState.NONE
    client.delete(keys.AUDIT)
    assert on_a_loop(client, lambda table: table.begin(delivery, "me 1", 1.0, is_audited=True)) == ""
    assert state_of(client, "a") is CallState.BEGUN
    assert client.xlen(keys.AUDIT) == 0
    assert client.ttl(keys.AUDIT) > 0


def test_the_stream_keeps_about_so_many_entries(table: Deliveries, client: redis.Redis) -> None:
    for number in range(1000):
        table.acknowledge(Delivery(str(number), QUEUE), AuditWrite("x" * 100, 200, lambda _: None))
    assert 200 <= client.xlen(keys.AUDIT) < 400
