"""The cache of answers in Redis: what is found, what is dropped, and that it stays small."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import answer_cache, keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.methods import READ_RESOURCE
from tarsy_tasks.worker.calls.cache_places import field_of, fields_of_change

PLACE = keys.cache_key("desk:c0ffee")
MOST_BYTES = 32 * 1024 * 1024


async def find(exchange: AsyncRedisExchange, field: str, owner: str = "me", **slots: Any) -> list[bytes] | None:
    given = {"ttl_s": 60.0, "lease_s": 5, "is_audited": False, "is_asking": False, **slots}
    flight = keys.flight_key("desk:c0ffee", field)
    return await answer_cache.find_or_lead.run_async(
        exchange, place=PLACE, field=field, flight=flight, owner=owner, **given
    )


async def keep(exchange: AsyncRedisExchange, field: str, text: str = "{}", **slots: Any) -> int:
    given = {"ttl_s": 60.0, "generation": "", **slots}
    flight = keys.flight_key("desk:c0ffee", field)
    return await answer_cache.keep.run_async(
        exchange, place=PLACE, field=field, flight=flight, owner="me", text=text, **given
    )


async def drop(exchange: AsyncRedisExchange, fields: list[str] | None, generation: str) -> None:
    everything = fields is None
    await answer_cache.drop.run_async(
        exchange, place=PLACE, fields=fields or [], everything=everything, generation=generation
    )


def run(client: Any, act: Callable[[AsyncRedisExchange], Awaitable[None]]) -> None:
    async def acted() -> None:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        try:
            await act(exchange)
        finally:
            exchange.close()

    asyncio.run(acted())


def test_what_is_kept_is_found_until_its_time_is_over(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        assert await find(exchange, "a") == [b""]
        assert await keep(exchange, "a", "one\ntwo") == 1
        assert await find(exchange, "a") == [b"", b"one\ntwo"]
        assert await find(exchange, "a", ttl_s=10.0) == [b""], "it is kept for less now"
        await keep(exchange, "b", ttl_s=1e-6)
        assert await find(exchange, "b") == [b""]

    run(client, act)


def test_one_asks_and_the_others_wait(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        assert await find(exchange, "a") == [b""]
        assert await find(exchange, "a", "another") is None
        assert await find(exchange, "a", "another", is_asking=True) == [b""]
        await keep(exchange, "a", "1")
        assert await find(exchange, "a", "another") == [b"", b"1"]

    run(client, act)


def test_what_was_asked_before_a_change_is_not_kept_after_it(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        assert await find(exchange, "a") == [b""]
        await drop(exchange, ["other"], "g7")
        assert await keep(exchange, "a") == 0
        assert await find(exchange, "a", "another") == [b"g7"], "nobody has to wait for what is not kept"
        assert await keep(exchange, "a", generation="g7") == 1

    run(client, act)


@pytest.mark.parametrize("fields", [["a"], None])
def test_what_changed_is_dropped(client: Any, fields: list[str] | None) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        await keep(exchange, "a", "x" * 100)
        await keep(exchange, "b", "x" * 100)
        size = int(client.hget(PLACE, "bytes"))
        await drop(exchange, fields, "g1")
        assert not client.hexists(PLACE, "a")
        assert client.hexists(PLACE, "b") == (fields is not None)
        assert int(client.hget(PLACE, "bytes") or 0) == (size // 2 if fields else 0)

    run(client, act)


def test_it_stays_within_its_size(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        await drop(exchange, None, "g1")
        for number in range(20):
            assert await keep(exchange, str(number), "x" * 2_000_000, generation="g1") == 1
            assert client.memory_usage(PLACE, samples=0) < 1.3 * MOST_BYTES
        size = sum(client.hstrlen(PLACE, name) for name in client.hkeys(PLACE) if name.isdigit())
        assert int(client.hget(PLACE, "bytes")) == size
        for _ in range(5):
            assert await keep(exchange, "19", "y" * 2_000_000, generation="g1") == 1
        assert int(client.hget(PLACE, "bytes")) == size, "an answer that replaces another one"

    run(client, act)


def test_a_full_redis_keeps_nothing_and_drops_all_the_same(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        await keep(exchange, "a")
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.RedisError):
                await keep(exchange, "b")
            await drop(exchange, ["a"], "g1")
        finally:
            client.config_set("maxmemory", 0)
        assert client.hkeys(PLACE) == [b"bytes", b"generation"]

    run(client, act)


def test_a_change_of_a_part_is_one_of_the_whole() -> None:
    changed = fields_of_change("file:///srv/logs/today.txt")
    wholes = ("file:///srv/logs/today.txt", "file:///srv/logs/", "file:///srv/logs", "file:///srv")
    assert {field_of(READ_RESOURCE, uri) for uri in wholes} <= set(changed)
    assert field_of(READ_RESOURCE, "file:///srv/logs/yesterday.txt") not in changed
    assert fields_of_change("note:x") == [field_of(READ_RESOURCE, "note:x")]
    assert fields_of_change("x://[/a") == [field_of(READ_RESOURCE, "x://[/a")], "it is no address"
    assert len(fields_of_change("a://b" + "/c" * 5000)) < 100
