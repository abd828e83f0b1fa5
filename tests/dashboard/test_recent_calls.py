"""The cached latest calls are those in Redis, whatever happens there."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.dashboard import recent_calls
from tarsy_tasks.dashboard.recent_calls import RecentCalls
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, read_audit
from tests.processes import wait_until


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client
        client.flushall()


def write(client: Any, *calls: str, stream: str = keys.AUDIT, **options: Any) -> None:
    for call in calls:
        entry = AuditEntry(at=1.0, call_id=call, server=f"s{int(call) % 2}", tool="get", outcome=Outcome.OK)
        client.xadd(stream, {keys.AUDIT_FIELD: entry.encode()}, **options)


def found(recent: RecentCalls, limit: int = 100, **wanted: Any) -> list[str]:
    return [entry.call_id for entry in recent.find(AuditFilter(**wanted), limit).entries]


def test_new_entries_of_both_streams_come_first(client: Any) -> None:
    recent = RecentCalls(client)
    assert found(recent) == []
    write(client, "1", "2")
    assert found(recent) == ["2", "1"]
    write(client, "3", stream=keys.AGENT_AUDIT)
    write(client, "4")
    assert found(recent) == ["4", "3", "2", "1"]
    assert found(recent, server="s1") == ["3", "1"]
    assert found(recent) == ["4", "3", "2", "1"]


def test_the_cursor_of_a_page_leads_to_older_entries(client: Any) -> None:
    recent = RecentCalls(client)
    write(client, *map(str, range(9)))
    first = recent.find(AuditFilter(server="s0"), 2)
    assert [entry.call_id for entry in first.entries] == ["8", "6"]
    second = read_audit(client, AuditFilter(server="s0"), limit=10, after=first.cursor)
    assert [entry.call_id for entry in second.entries] == ["4", "2", "0"]
    assert recent.find(AuditFilter(), 100).cursor is None, "these are all"


def test_entries_older_than_the_cache_are_read_from_redis(client: Any) -> None:
    count = recent_calls.KEPT + 20
    with client.pipeline() as pipeline:
        write(pipeline, *map(str, range(count)))
        pipeline.execute()
    recent = RecentCalls(client)
    for turn in range(2):
        page = recent.find(AuditFilter(call_id="3"), 1)
        assert page.entries == []
        older = read_audit(client, AuditFilter(call_id="3"), limit=1, after=page.cursor)
        assert [entry.call_id for entry in older.entries] == ["3"], turn
        write(client, str(count + turn))


def test_more_new_entries_than_fit_replace_the_cache(client: Any) -> None:
    recent = RecentCalls(client)
    write(client, "1")
    assert found(recent) == ["1"]
    with client.pipeline() as pipeline:
        write(pipeline, *map(str, range(2, recent_calls.KEPT + 4)))
        pipeline.execute()
    assert found(recent, limit=1) == [str(recent_calls.KEPT + 3)]
    assert found(recent, call_id="1") == []


def wait_for_next_millisecond(client: Any) -> None:
    """By the clock of Redis, from which the ids of entries are made."""

    def millisecond() -> int:
        seconds, microseconds = client.time()
        return seconds * 1000 + microseconds // 1000

    before = millisecond()
    wait_until(lambda: millisecond() > before, "the next millisecond")


def write_others(client: Any, count: int) -> None:
    """In at least two milliseconds: their order is known only to the millisecond."""
    for _ in range(2):
        wait_for_next_millisecond(client)
        with client.pipeline(transaction=False) as pipeline:
            write(pipeline, *["1"] * (count // 2))
            pipeline.execute()


def scans(client: Any) -> int:
    return client.info("commandstats").get("cmdstat_xrevrange", {}).get("calls", 0)


def test_calls_before_many_others_are_searched_for_once(client: Any) -> None:
    recent, quiet = RecentCalls(client), AuditFilter(server="s0")

    def further() -> list[str]:
        return [entry.call_id for entry in recent.find_further(quiet, 3, 1000).entries]

    write(client, "2", "4")
    write_others(client, recent_calls.KEPT + 20)
    assert further() == ["4", "2"]
    begun = scans(client)
    assert further() == ["4", "2"]
    write(client, "6")
    assert further() == ["6", "4", "2"]
    write(client, "8")
    assert further() == ["8", "6", "4"]
    assert scans(client) == begun, "what is known is not read again"
    for _ in range(3):
        write_others(client, recent_calls.KEPT // 2)
        assert further() == ["8", "6", "4"], "also when they are no longer in memory"
    assert scans(client) == begun


def test_a_search_for_older_calls_ends_with_a_cursor(client: Any) -> None:
    recent = RecentCalls(client)
    write(client, "2")
    write_others(client, recent_calls.KEPT + 60)
    page = recent.find_further(AuditFilter(server="s0"), 3, 50)
    assert (page.entries, page.cursor is None) == ([], False)
    assert [entry.call_id for entry in read_audit(client, AuditFilter(server="s0"), after=page.cursor).entries] == ["2"]


class _Hanging:
    """A Redis that hangs until it is released, and then is gone."""

    def __init__(self) -> None:
        self.asked = 0
        self.released = threading.Event()

    def time(self) -> tuple[int, int]:
        return int(time.time()), 0

    def xrevrange(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        self.released.wait(30)
        raise RedisError("gone")


def test_threads_share_one_wait_for_a_hanging_redis() -> None:
    hanging = _Hanging()
    recent = RecentCalls(hanging)
    with ThreadPoolExecutor(5) as threads:
        finding = [threads.submit(found, recent) for _ in range(5)]
        wait_until(lambda: hanging.asked and all(each.running() for each in finding), "all wait")
        hanging.released.set()
        assert all(isinstance(each.exception(timeout=30), RedisError) for each in finding)
    assert hanging.asked < len(finding)


@pytest.mark.parametrize("what", ["emptied", "replaced"])
def test_an_emptied_redis_empties_the_cache(client: Any, what: str) -> None:
    recent = RecentCalls(client)
    write(client, "1", "2")
    assert found(recent) == ["2", "1"]
    client.flushall()
    if what == "replaced":
        wait_for_next_millisecond(client)  # else this entry may get the id of an earlier one
        write(client, "3")
    assert found(recent) == (["3"] if what == "replaced" else [])
