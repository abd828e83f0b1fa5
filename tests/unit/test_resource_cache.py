"""The cache of answers about resources in Redis: what is found, what is dropped, and that it stays small."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.resource_cache import Found, drop_answers, field_of, fields_of_change, find, store_answer

PLACE = keys.resources_key("desk", "c0ffee")
READ = "resources/read"


async def store(exchange: AsyncRedisExchange, field: str, answer: str = "{}", **slots: Any) -> int:
    given = {"fresh_s": 60.0, "most_bytes": 10_000, "generation": "", "next_generation": "g1", **slots}
    return await store_answer.run_async(exchange, place=PLACE, field=field, answer=answer, **given)


def run(client: Any, act: Callable[[AsyncRedisExchange], Awaitable[None]]) -> None:
    async def acted() -> None:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        try:
            await act(exchange)
        finally:
            exchange.close()

    asyncio.run(acted())


def test_what_was_stored_is_found_until_its_time_is_over(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        assert await find(exchange, PLACE, "a") == Found("")
        assert await store(exchange, "a", "one\ntwo") == 1
        found = await find(exchange, PLACE, "a")
        assert found.text == b"one\ntwo"
        assert abs(found.answered_at - client.time()[0]) < 10
        await store(exchange, "b", fresh_s=1e-6)
        assert (await find(exchange, PLACE, "b")).text is None

    run(client, act)


def test_what_was_asked_before_a_change_is_not_stored_after_it(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        before = await find(exchange, PLACE, "a")
        await drop_answers(exchange, "desk", "c0ffee", ["other"], "g7")
        assert await store(exchange, "a", generation=before.generation) == 0
        after = await find(exchange, PLACE, "a")
        assert after == Found("g7")
        assert await store(exchange, "a", generation=after.generation) == 1

    run(client, act)


@pytest.mark.parametrize("fields", [["a"], None])
def test_what_changed_is_dropped(client: Any, fields: list[str] | None) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        await store(exchange, "a", "x" * 100)
        await store(exchange, "b", "x" * 100)
        size = int(client.hget(PLACE, "bytes"))
        await drop_answers(exchange, "desk", "c0ffee", fields, "g1")
        assert not client.hexists(PLACE, "a")
        assert client.hexists(PLACE, "b") == (fields is not None)
        assert int(client.hget(PLACE, "bytes") or 0) == (size // 2 if fields else 0)

    run(client, act)


def test_it_stays_within_its_size(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        for number in range(40):
            generation = (await find(exchange, PLACE, "a")).generation
            await store(exchange, str(number), "x" * 1000, generation=generation, next_generation=f"g{number}")
            assert sum(map(len, client.hvals(PLACE))) < 11_000
        size = sum(len(value) for name, value in client.hgetall(PLACE).items() if name.isdigit())
        assert int(client.hget(PLACE, "bytes")) == size
        generation = (await find(exchange, PLACE, "a")).generation
        for _ in range(5):
            assert await store(exchange, "39", "y" * 1000, generation=generation) == 1
        assert int(client.hget(PLACE, "bytes")) == size, "an answer that replaces another one"

    run(client, act)


def test_a_full_redis_stores_nothing_and_drops_all_the_same(client: Any) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        await store(exchange, "a")
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.RedisError):
                await store(exchange, "b")
            await drop_answers(exchange, "desk", "c0ffee", ["a"], "g1")
        finally:
            client.config_set("maxmemory", 0)
        assert client.hkeys(PLACE) == [b"bytes", b"generation"]

    run(client, act)


def test_a_change_of_a_part_is_one_of_the_whole() -> None:
    changed = fields_of_change(READ, "file:///srv/logs/today.txt")
    wholes = ("file:///srv/logs/today.txt", "file:///srv/logs/", "file:///srv/logs", "file:///srv")
    assert {field_of(READ, uri) for uri in wholes} <= set(changed)
    assert field_of(READ, "file:///srv/logs/yesterday.txt") not in changed
    assert fields_of_change(READ, "note:x") == [field_of(READ, "note:x")]
    assert len(fields_of_change(READ, "a://b" + "/c" * 5000)) < 100
