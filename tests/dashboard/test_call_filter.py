"""Which calls an address asks for, and which entries of the audit these are."""

from typing import Any
from urllib.parse import parse_qs

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.dashboard import recent_calls
from tarsy_tasks.dashboard.call_filter import CallQuery, read_call_query
from tarsy_tasks.dashboard.recent_calls import RecentCalls
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, read_audit

NOW = 1_800_000_042.5


def read(address: str) -> CallQuery:
    words = parse_qs(address, keep_blank_values=True)
    return read_call_query(lambda name: words.get(name, []), NOW)


@pytest.mark.parametrize(
    ("address", "fields"),
    [
        ("", {}),
        ("server=&outcome=&since=&last=", {}),
        ("worker=w%40a&agent_id=sre&error_code=X", {"worker": "w@a", "agent_id": "sre", "error_code": "X"}),
        ("principal=sre&priority=batch", {"principal": "sre", "priority": "batch"}),
        ("outcome=ok&outcome=timeout", {"outcomes": {Outcome.OK, Outcome.TIMEOUT}}),
        ("outcome=failed", {"outcomes": {Outcome.UNAVAILABLE, Outcome.UNKNOWN, Outcome.TIMEOUT}}),
        ("outcome=not_ok", {"outcomes": set(Outcome) - {Outcome.OK}}),
        ("since=1800000000&until=1800000060.5", {"since": 1_800_000_000.0, "until": 1_800_000_060.5}),
        ("since=2027-01-15T08:00", {"since": 1_800_000_000.0}),
        ("until=2027-01-15T09:00:00%2B01:00", {"until": 1_800_000_000.0}),
        ("last=15m", {"since": 1_800_000_000 - 900}),
    ],
)
def test_the_words_of_an_address_are_a_filter(address: str, fields: dict[str, Any]) -> None:
    assert read(address).wanted == AuditFilter.model_validate(fields)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("outcome=fine", "outcome is not valid; use one of ok"),
        ("priority=urgent", "priority is not valid; use one of interactive, normal, batch"),
        ("last=1y", "last is not valid; use one of 15m"),
        ("since=yesterday", "since is not valid; use a time in UTC"),
        ("until=9999999999999", "until is not valid"),
        ("since=-1", "since is not valid"),
        ("since=0001-01-01T00:00", "since is not valid"),
        ("since=nan", "since is not valid"),
        ("since=10&until=5", "since is later than until"),
    ],
)
def test_a_wrong_word_is_named(address: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read(address)


def test_words_of_a_filter_are_replaced_one_by_one() -> None:
    query = read("server=desk&outcome=ok&last=1h")
    assert query.with_words(outcome="failed") == [("server", "desk"), ("last", "1h"), ("outcome", "failed")]
    assert query.with_words(last="", outcome="") == [("server", "desk")]


def write(client: Any, at: int, count: int) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(count):
            entry = AuditEntry(at=at, call_id=str(at), server="desk", worker=f"w{number % 2}", outcome=Outcome.OK)
            pipeline.xadd(keys.AUDIT, {keys.AUDIT_FIELD: entry.encode()}, id=f"{at * 1000}-{number}")
        pipeline.expire(keys.AUDIT, 600)
        pipeline.execute()


@pytest.mark.parametrize("later", [0, recent_calls.KEPT])
def test_calls_of_a_time_are_found_in_memory_and_beyond(client: Any, later: int) -> None:
    for at in range(100, 110):
        write(client, at, 2)
    write(client, 150, later)
    recent = RecentCalls(client)

    def found(**fields: Any) -> list[str]:
        page = recent.find_further(AuditFilter(**fields), 50, 10_000)
        assert page.cursor is None
        return [f"{entry.call_id} {entry.worker}" for entry in page.entries]

    assert found(since=107.5, until=120) == ["109 w1", "109 w0", "108 w1", "108 w0"]
    assert found(since=103, until=104) == ["104 w1", "104 w0", "103 w1", "103 w0"]
    assert found(until=100, worker="w0") == ["100 w0"]
    assert found(since=200, until=300) == []


def test_a_page_of_an_older_time_begins_there(client: Any) -> None:
    for at in (100, 200, 300):
        write(client, at, 1)
    newest = read_audit(client, limit=1).cursor
    assert [entry.at for entry in read_audit(client, AuditFilter(until=150), after=newest).entries] == [100]
    assert [entry.at for entry in read_audit(client, AuditFilter(since=150), after=newest).entries] == [200]
