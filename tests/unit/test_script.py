"""A script's slots have names and types, and a wrong one is an error before Redis sees it."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.script import Key, Table, constants, script


@pytest.fixture
def exchange(redis_url: str) -> Iterator[RedisExchange]:
    with redis.Redis.from_url(redis_url) as client:
        yield RedisExchange(client.connection_pool)
        client.flushall()


@script("return {text, number + 1, is_set and 'yes' or 'no', table.text, #table.list}")
def echo(*, text: str | bytes, number: float, is_set: bool, table: Table) -> list[Any]: ...


@script(
    constants(ttl_s=60),
    "for n, each in ipairs(others) do redis.call('SET', each, n, 'EX', ttl_s) end return {place, plan, home, #others}",
    known={"plan": (lambda home: f"plan:{home}", "home"), "unused": "nothing"},
)
def store(*others: Key, place: Key, home: str) -> list[Any]: ...


SLOTS: dict[str, Any] = {"text": "a\nb", "number": 1, "is_set": False, "table": {"text": "é", "list": [1, 2]}}


def test_each_slot_has_its_value_in_the_script(exchange: RedisExchange) -> None:
    assert echo.run(exchange, **SLOTS) == [b"a\nb", 2, b"no", "é".encode(), 2]
    assert echo.run(exchange, **SLOTS | {"is_set": True, "number": 2.0}) == [b"a\nb", 3, b"yes", "é".encode(), 2]


@script("return cjson.encode(table)")
def encode(*, table: Table) -> bytes: ...


def test_what_other_scripts_set_counts_for_none(exchange: RedisExchange) -> None:
    table = {"a": [[1234567.25]]}
    before = encode.run(exchange, table=table)
    for setting in ("decode_max_depth(1)", "encode_max_depth(1)", "encode_number_precision(1)"):
        exchange.execute(("EVAL", f"cjson.{setting}", 0))
        assert encode.run(exchange, table=table) == before == b'{"a":[[1234567.25]]}'


def test_keys_are_given_known_or_further_ones(exchange: RedisExchange) -> None:
    assert store.run(exchange, "one", "two", place="here", home="x") == [b"here", b"plan:x", b"x", 2]
    assert exchange.execute(("GET", "two"), ("TTL", "two")) == [b"2", 60]
    assert store.run(exchange, place="here", home="x") == [b"here", b"plan:x", b"x", 0]


def test_a_command_does_the_same_through_any_client(exchange: RedisExchange) -> None:
    assert exchange.execute(("PING",), echo.command(**SLOTS))[1] == echo.run(exchange, **SLOTS)


def test_a_script_runs_again_after_redis_forgot_it(exchange: RedisExchange) -> None:
    before = echo.run(exchange, **SLOTS)
    exchange.execute(("SCRIPT", "FLUSH"))
    assert echo.run(exchange, **SLOTS) == before


@pytest.mark.parametrize(
    "slots",
    [
        {name: value for name, value in SLOTS.items() if name != "number"},
        SLOTS | {"other": 1},
        SLOTS | {"text": 1},
        SLOTS | {"text": None},
        SLOTS | {"number": "1"},
        SLOTS | {"number": True},
        SLOTS | {"is_set": 1},
        SLOTS | {"table": "text"},
    ],
    ids=["missing", "unknown", "number for text", "none", "text for number", "flag for number", "no flag", "no table"],
)
def test_a_wrong_slot_is_refused_at_the_call(slots: dict[str, Any], exchange: RedisExchange) -> None:
    echo.run(exchange, **SLOTS)
    with pytest.raises(TypeError, match="script echo"):
        echo.run(exchange, **slots)


def test_a_wrong_declaration_is_refused_at_import() -> None:
    def unused(*, text: str) -> None: ...

    def untyped(*, text: list[str]) -> None: ...

    for declaration, text in ((unused, "return 1 -- text"), (untyped, "return text")):
        with pytest.raises(TypeError, match="the slot text"):
            script(text)(declaration)
    with pytest.raises(TypeError, match="the slot home"):
        script("return text .. plan", known={"plan": (str.upper, "home")})(unused)
