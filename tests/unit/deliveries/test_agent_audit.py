"""The stream of the agents' audit stays open, whatever ids somebody writes into it, and keeps its entries."""

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.agent_audit import repair_agent_audit
from tarsy_tasks.broker.deliveries import Deliveries

HIGHEST = "18446744073709551615-18446744073709551615"
FAR = "9999999999999-7"
NOTHING = [0, -1]


def add(client: redis.Redis, text: str, place: str = "*") -> None:
    client.xadd(keys.AGENT_AUDIT, {keys.AUDIT_FIELD: text}, id=place)


def texts(client: redis.Redis) -> list[str]:
    return [fields[keys.AUDIT_FIELD.encode()].decode() for _, fields in client.xrange(keys.AGENT_AUDIT)]


def repair(table: Deliveries) -> list[list[int]]:
    """What each step returned, until nothing is left to do."""
    steps: list[list[int]] = []
    while not steps or steps[-1] != NOTHING:
        steps.append(list(repair_agent_audit.run(table.exchange)))
    return steps


def test_a_stream_without_strange_ids_is_left_alone(table: Deliveries, client: redis.Redis) -> None:
    assert repair(table) == [NOTHING]
    add(client, "first")
    before = client.xrange(keys.AGENT_AUDIT)
    assert repair(table) == [NOTHING]
    assert client.xrange(keys.AGENT_AUDIT) == before


@pytest.mark.parametrize("place", [HIGHEST, FAR])
def test_entries_keep_their_order_and_new_ones_are_taken(table: Deliveries, client: redis.Redis, place: str) -> None:
    for number in range(600):
        add(client, str(number))
    true_ids = [each for each, _ in client.xrange(keys.AGENT_AUDIT)]
    add(client, "far", place)
    if place == FAR:
        add(client, "after it")
    else:
        with pytest.raises(ResponseError, match="exhausted"):
            add(client, "after it")
    found = repair(table)
    assert found == [[1, -1], [0, 2 if place == FAR else 1], NOTHING]
    add(client, "new")
    after = ["far", "after it", "new"] if place == FAR else ["far", "new"]
    assert texts(client) == [*map(str, range(600)), *after]
    ids = [each for each, _ in client.xrange(keys.AGENT_AUDIT)]
    assert ids[:600] == true_ids
    assert int(ids[-1].partition(b"-")[0]) <= client.time()[0] * 1000 + 1000
    assert client.ttl(keys.AGENT_AUDIT) > 0
    assert not client.exists(keys.REBUILT_AGENT_AUDIT)


def test_a_stream_that_has_only_strange_ids_is_repaired(table: Deliveries, client: redis.Redis) -> None:
    add(client, "far", HIGHEST)
    client.xtrim(keys.AGENT_AUDIT, maxlen=0, approximate=False)
    assert repair(table) == [[0, 0], NOTHING]
    add(client, "new")
    assert texts(client) == ["new"]


def test_a_key_that_is_not_a_stream_is_left_alone(table: Deliveries, client: redis.Redis) -> None:
    client.set(keys.AGENT_AUDIT, "a text")
    assert repair(table) == [NOTHING]
