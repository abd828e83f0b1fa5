"""The audit is read in order, filtered, page by page and live, damaged entries included."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import RedisError

from tarsy_tasks import Outcome
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.agent_audit import AgentAuditRepair
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.telemetry.audit import (
    AuditEntry,
    AuditFilter,
    Follower,
    Source,
    Step,
    StepName,
    build_canonical,
    build_digest,
    read_audit,
)
from tests.processes import wait_until

STREAMS: dict[Source, str] = {"worker": keys.AUDIT, "agent": keys.AGENT_AUDIT}


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as found:
        found.delete(*STREAMS.values())
        yield found
        found.delete(*STREAMS.values())


def add(client: redis.Redis, place: str = "*", source: Source = "worker", **fields: Any) -> str:
    entry = AuditEntry(**{"at": 5.0, "server": "desk", "tool": "echo", "outcome": Outcome.OK, **fields})
    return client.xadd(STREAMS[source], {keys.AUDIT_FIELD: entry.encode()}, id=place).decode()


def places(client: redis.Redis, wanted: AuditFilter | None = None, **options: Any) -> list[str]:
    return [entry.cursor for entry in read_audit(client, wanted or AuditFilter(), **options).entries]


def test_an_entry_is_read_as_written_its_stream_is_the_source(client: redis.Redis) -> None:
    steps = (Step(name=StepName.QUEUED, at=1.5), Step(name=StepName.ANSWERED, at=2.5))
    fields = {
        "at": 2.5,
        "call_id": "c1",
        "task_id": "t1",
        "agent_id": "sre",
        "run_id": "r7",
        "arguments": '{"text":"hello"}',
        "arguments_digest": build_digest('{"text":"hello"}'),
        "repairs": ("json_fence",),
        "outcome": Outcome.TOOL_ERROR,
        "error_code": "TOOL_ERROR",
        "error": "sold out",
        "attempts": 2,
        "duration_s": 0.25,
        "worker": "w@host",
        "bytes": 77,
        "steps": steps,
    }
    place = add(client, source="agent", **fields)
    [entry] = read_audit(client).entries
    assert entry == AuditEntry(id=place, source="agent", server="desk", tool="echo", **fields)
    assert entry.name == "desk.echo"


def test_both_streams_are_one_in_order_of_time(client: redis.Redis) -> None:
    for number in (1, 3, 4):
        add(client, f"{number}-0", "worker")
    for number in (2, 3, 5):
        add(client, f"{number}-0", "agent")
    ascending = ["1-0 worker", "2-0 agent", "3-0 agent", "3-0 worker", "4-0 worker", "5-0 agent"]
    assert places(client, newest_first=False) == ascending
    assert places(client) == ascending[::-1]


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_miss_nothing_and_repeat_nothing(client: redis.Redis, limit: int, newest_first: bool) -> None:
    for number in range(1, 8):
        add(client, f"{number}-0", "worker")
        add(client, f"{number}-{number % 2}", "agent")
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(20):
        page = read_audit(client, limit=limit, newest_first=newest_first, after=cursor)
        assert len(page.entries) <= limit
        seen += [entry.cursor for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert cursor is None
    assert seen == places(client, newest_first=newest_first)
    assert len(seen) == 14


def test_more_entries_than_are_read_at_once(client: redis.Redis) -> None:
    for number in range(1, 1300):
        add(client, f"{number}-0", "worker" if number % 3 else "agent", call_id=str(number))
    found = read_audit(client, limit=2000).entries
    assert [entry.call_id for entry in found] == [str(number) for number in range(1299, 0, -1)]


def test_a_page_looks_at_no_more_entries_than_it_may(client: redis.Redis) -> None:
    for number in range(1, 11):
        add(client, f"{number}-0", server="rare" if number == 1 else "desk")
    page = read_audit(client, AuditFilter(server="rare"), scan_limit=4)
    assert (page.entries, page.cursor) == ([], "7-0 worker")
    page = read_audit(client, AuditFilter(server="rare"), scan_limit=40, after=page.cursor)
    assert ([entry.id for entry in page.entries], page.cursor) == (["1-0"], None)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abcd"),
        ({"server": "k8s"}, "b"),
        ({"tool": "echo"}, "ac"),
        ({"tool": "get_*"}, "b"),
        ({"tool": "desk.*"}, "acd"),
        ({"tool": "GET_*"}, ""),
        ({"outcomes": {"timeout", "unknown"}}, "cd"),
        ({"agent_id": "sre"}, "a"),
        ({"run_id": "r1"}, "ab"),
        ({"call_id": "b"}, "b"),
        ({"task_id": "t"}, "c"),
        ({"since": 2.0}, "bcd"),
        ({"until": 2.0}, "ab"),
        ({"since": 1.5, "until": 3.5, "tool": "echo"}, "c"),
    ],
)
def test_filters_let_through_what_matches(client: redis.Redis, wanted: dict[str, Any], found: str) -> None:
    add(client, "1000-0", call_id="a", agent_id="sre", run_id="r1")
    add(client, "2000-0", call_id="b", server="k8s", tool="get_pods", agent_id="other", run_id="r1")
    add(client, "3000-0", "agent", call_id="c", outcome=Outcome.TIMEOUT, task_id="t")
    add(client, "4000-0", call_id="d", outcome=Outcome.UNKNOWN, tool="order")
    entries = read_audit(client, AuditFilter(**wanted), newest_first=False).entries
    assert "".join(entry.call_id for entry in entries) == found


@pytest.mark.parametrize(
    "fields",
    [
        {"entry": ""},
        {"entry": "nonsense"},
        {"entry": "[]"},
        {"entry": "null"},
        {"entry": '{"v": 1}'},
        {"entry": '{"v": 2, "at": 1, "outcome": "ok"}'},
        {"entry": '{"v": 1, "at": NaN, "outcome": "ok"}'},
        {"entry": '{"v": 1, "at": 1e300, "outcome": "ok"}'},
        {"entry": '{"v": 1, "at": 1, "outcome": "invented"}'},
        {"entry": '{"v": 1, "at": 1, "steps": [{"name": "queued", "at": -1e9}]}'},
        {"entry": "[" * 60_000},
        {"entry": '{"v": 1, "at": 1, "error": "' + "x" * 70_000 + '"}'},
        {"entry": b"\xff\xfe"},
        {"entry": r'{"v": 1, "at": 1, "server": "desk", "outcome": "ok", "arguments": "half of a character: \ud83d"}'},
        {"other": "field"},
    ],
)
def test_what_is_not_an_entry_is_damaged_and_blocks_no_other(client: redis.Redis, fields: Any) -> None:
    add(client, "1-0")
    client.xadd(keys.AUDIT, fields, id="1795269000123-4")
    add(client, "1795269000123-5")
    _, damaged, _ = read_audit(client).entries
    assert damaged.damage
    assert (damaged.id, damaged.at, damaged.outcome) == ("1795269000123-4", 1795269000.123, None)
    assert len(read_audit(client, AuditFilter(server="desk")).entries) == 2, "it is not a call of any server"
    assert len(read_audit(client, AuditFilter(server=None, outcomes=frozenset(), since=0.0)).entries) == 3


def test_nobody_can_write_that_somebody_else_wrote_it(client: redis.Redis) -> None:
    text = '{"v": 1, "at": 1, "outcome": "ok", "source": "worker", "id": "9-9", "damage": "none"}'
    client.xadd(keys.AGENT_AUDIT, {keys.AUDIT_FIELD: text}, id="7-0")
    [entry] = read_audit(client).entries
    assert (entry.source, entry.id, entry.damage) == ("agent", "7-0", None)


def test_keys_that_a_later_version_added_are_ignored(client: redis.Redis) -> None:
    client.xadd(keys.AUDIT, {keys.AUDIT_FIELD: '{"v": 1, "at": 1, "outcome": "ok", "later": [1]}'})
    [entry] = read_audit(client).entries
    assert entry.damage is None


def test_a_key_that_is_not_a_stream_is_an_error(client: redis.Redis) -> None:
    client.set(keys.AUDIT, "a text", ex=60)
    with pytest.raises(RedisError, match="WRONGTYPE"):
        read_audit(client)


@pytest.mark.parametrize("cursor", ["", "1-0", "1 worker", "x-0 worker", "1-0 nobody", "(1-0 worker"])
def test_an_invalid_cursor_is_an_error(client: redis.Redis, cursor: str) -> None:
    with pytest.raises(ValueError, match="not an audit cursor"):
        read_audit(client, after=cursor)


def test_an_audit_without_entries_is_empty(client: redis.Redis) -> None:
    page = read_audit(client)
    assert (page.entries, page.cursor) == ([], None)
    assert Follower().begin(client, 10) == []


def test_a_follower_sees_old_and_new_entries_and_none_twice(client: redis.Redis) -> None:
    for number in range(5):
        add(client, f"{number + 1}-0", "agent" if number % 2 else "worker", call_id=str(number))
    follower = Follower(AuditFilter(server="desk"))
    assert [entry.call_id for entry in follower.begin(client, 3)] == ["2", "3", "4"]
    assert follower.poll(client, 0.01) == []
    add(client, call_id="5")
    add(client, source="agent", call_id="6")
    add(client, server="other", call_id="7")
    assert sorted(entry.call_id for entry in follower.poll(client, 1)) == ["5", "6"]
    assert follower.poll(client, 0.01) == []


def test_a_follower_waits_for_what_comes(client: redis.Redis) -> None:
    follower = Follower()
    found: list[AuditEntry] = []
    follower.begin(client, 0)
    thread = threading.Thread(target=lambda: found.extend(follower.poll(client, 4)))
    started = time.monotonic()
    thread.start()
    wait_until(lambda: client.info("clients")["blocked_clients"], "it waits")
    add(client, call_id="late")
    thread.join(20)
    assert [entry.call_id for entry in found] == ["late"]
    assert time.monotonic() - started < 20


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.dictionaries(st.text(), each))
)
def test_the_digest_is_the_same_for_the_same_arguments(arguments: Any) -> None:
    canonical = build_canonical(arguments)
    assert build_canonical(canonical) == canonical
    if not isinstance(arguments, str):
        assert build_canonical(json.dumps(arguments, indent=3)) == canonical
    assert len(build_digest(canonical)) == 64


def test_arguments_that_are_no_json_have_a_digest_too() -> None:
    assert build_canonical("namespace: default") == "namespace: default"
    assert build_canonical('{"b": 1, "a": [1, 2]}') == '{"a":[1,2],"b":1}'
    for strange in (float("inf"), {1, 2}, "half \ud800", "[" * 100_000):
        assert len(build_digest(build_canonical(strange))) == 64


HIGHEST = "18446744073709551615-18446744073709551615"


def test_ids_of_the_future_are_not_read(client: redis.Redis) -> None:
    true = add(client, source="agent", call_id="true")
    add(client, HIGHEST, source="agent", call_id="far")
    assert places(client) == places(client, AuditFilter(until=1e11)) == [f"{true} agent"]


def test_a_follower_goes_on_after_ids_of_the_future(client: redis.Redis) -> None:
    add(client, HIGHEST, source="agent", call_id="far")
    follower = Follower()
    assert follower.begin(client, 5) == []
    later = add(client, source="worker")
    assert [entry.id for entry in follower.poll(client, 5)] == [later]
    assert follower.poll(client, 0.1) == []
    AgentAuditRepair().step(RedisExchange(client.connection_pool))
    (entry,) = follower.poll(client, 5)
    assert entry.call_id == "far"
