"""Large results in Redis: with their answer or not at all, and within the quota of their owner."""

import random
from collections.abc import Callable

import pytest
import redis
from redis.exceptions import ReadOnlyError

from tarsy_tasks import ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.large_results import LargeWrite, NotKeptError
from tests.processes import wait_until
from tests.unit.deliveries.table import MESSAGE, QUEUE, RESULT, begin, is_clean, pop, state_of

OWNERS = ("sre", ":", ":sre")
CUT = ToolResult(call_id="", name="desk.report", content="cut")


def write(owner: str, handle: str, size: int = 10, quota: int = 1000) -> LargeWrite:
    return LargeWrite(owner, handle, b"x" * size, quota, CUT, CUT, size)


def keep(table: Deliveries, large: LargeWrite, lifetime_s: int | None = 60) -> None:
    large.keep(table.exchange, lifetime_s)


def kept_of(client: redis.Redis, owner: str) -> set[str]:
    prefix = keys.large_result_key(owner, "")
    return {key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}*")}


@pytest.fixture
def delivery(table: Deliveries, client: redis.Redis) -> Delivery:
    """A call that this worker has begun."""
    table.publish(QUEUE, "a", MESSAGE)
    delivery = table.take(QUEUE, "a", lambda: pop(client))
    pop(client)
    assert begin(client, delivery, "me 1") is CallState.NONE
    return delivery


@pytest.mark.parametrize("seed", range(5))
def test_of_each_owner_the_newest_within_the_quota_are_kept(table: Deliveries, client: redis.Redis, seed: int) -> None:
    rng = random.Random(seed)
    kept: dict[str, list[tuple[str, int]]] = {owner: [] for owner in OWNERS}
    for number in range(150):
        owner, size, quota = rng.choice(OWNERS), rng.randint(1, 400), rng.choice([400, 1000])
        keep(table, write(owner, f"h{number}", size, quota))
        kept[owner].append((f"h{number}", size))
        while sum(size for _, size in kept[owner]) > quota:
            del kept[owner][0]
        for each in OWNERS:
            assert kept_of(client, each) == {handle for handle, _ in kept[each]}
            assert client.zcard(keys.large_index_key(each)) == len(kept[each])
    assert all(0 < client.ttl(key) <= 60 for key in client.scan_iter("tarsy:large-*"))


def test_without_a_lifetime_they_stay(table: Deliveries, client: redis.Redis) -> None:
    keep(table, write("sre", "short"), 60)
    keep(table, write("sre", "long"), None)
    assert client.ttl(keys.large_result_key("sre", "long")) == client.ttl(keys.large_index_key("sre")) == -1


def test_one_that_has_expired_takes_no_room(table: Deliveries, client: redis.Redis) -> None:
    keep(table, write("sre", "first", 900), 1)
    wait_until(lambda: not client.exists(keys.large_index_key("sre")), "it has expired")
    keep(table, write("sre", "second", 900))
    keep(table, write("sre", "third", 100))
    assert kept_of(client, "sre") == {"second", "third"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda client: client.set(keys.large_index_key("sre"), "text"),
        lambda client: client.zadd(keys.large_index_key("sre"), {"nonsense": 5, "1 2": 6, "x 0 first": 7}),
        lambda client: client.zadd(keys.large_index_key("sre"), {"900 0 first": "+inf"}),
        lambda client: client.hset(keys.large_result_key("sre", "second"), "a", "b"),
    ],
    ids=["type", "entries", "infinite", "place"],
)
def test_a_damaged_index_is_no_hindrance(
    table: Deliveries, client: redis.Redis, damage: Callable[[redis.Redis], object]
) -> None:
    damage(client)
    keep(table, write("sre", "second", 20))
    assert client.get(keys.large_result_key("sre", "second")) == b"x" * 20
    assert client.zcard(keys.large_index_key("sre")) == 1


def test_an_answer_and_the_whole_are_stored_together(
    table: Deliveries, client: redis.Redis, delivery: Delivery
) -> None:
    table.answer_large(delivery, RESULT, "first", 60, None, write("sre", "a"))
    table.answer_large(delivery, RESULT, "second", 60, None, write("sre", "a", 99))
    assert client.get(RESULT) == b"first"
    assert client.strlen(keys.large_result_key("sre", "a")) == 10, "the first answer stays"
    assert client.zcard(keys.large_index_key("sre")) == 1
    assert is_clean(client)


def test_a_full_redis_takes_neither_then_the_answer_alone(
    table: Deliveries, client: redis.Redis, delivery: Delivery
) -> None:
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(NotKeptError, match="maxmemory"):
            table.answer_large(delivery, RESULT, "cut", 60, None, write("sre", "a"))
        assert not client.exists(RESULT)
        assert state_of(client, "a") == "begun", "nothing of the step was done"
        table.answer(delivery, RESULT, "cut, and the rest was not kept", 60)
    finally:
        client.config_set("maxmemory", 0)
    assert client.exists(RESULT)
    assert not kept_of(client, "sre")
    assert is_clean(client)


def test_a_redis_that_fails_over_is_asked_again(table: Deliveries, client: redis.Redis, delivery: Delivery) -> None:
    client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(ReadOnlyError):
            table.answer_large(delivery, RESULT, "cut", 60, None, write("sre", "a"))
    finally:
        client.replicaof("NO", "ONE")
    table.answer_large(delivery, RESULT, "cut", 60, None, write("sre", "a"))
    assert kept_of(client, "sre") == {"a"}
