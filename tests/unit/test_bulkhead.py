"""Which queues a worker may poll, by what runs in it."""

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.process.bulkhead import MOST_BYTES, Bulkhead

QUEUES = ["mcp.a", "mcp.a.check", "mcp.b", "mcp.b.check", "others"]
CHECKS = ["mcp.a.check", "mcp.b.check"]


def bulkhead(slots: int, **max_concurrency: int) -> Bulkhead:
    found = Bulkhead()
    servers = [ServerConfig(name=name, command="x", max_concurrency=max_concurrency.get(name)) for name in "ab"]
    found.open(slots, servers)
    return found


def selected(found: Bulkhead, *running: str) -> list[str]:
    for queue in running:
        found.enter(queue)
    return found.select(QUEUES)


def test_before_a_pool_has_started_every_queue_is_polled() -> None:
    assert set(Bulkhead().select(QUEUES)) == set(QUEUES)


def test_checks_go_first_and_the_rest_keeps_its_order() -> None:
    assert selected(bulkhead(8)) == [*CHECKS, "mcp.a", "mcp.b", "others"]


@pytest.mark.parametrize(("slots", "half"), [(3, 1), (8, 4), (256, 128)])
def test_a_server_without_a_limit_may_take_half_of_the_slots(slots: int, half: int) -> None:
    assert "mcp.a" in selected(bulkhead(slots), *["mcp.a"] * (half - 1))
    assert "mcp.a" not in selected(bulkhead(slots), *["mcp.a"] * half)


def test_a_server_is_polled_until_it_runs_what_it_may() -> None:
    found = bulkhead(8, a=2)
    assert "mcp.a" in selected(found, "mcp.a")
    assert selected(found, "mcp.a") == [*CHECKS, "mcp.b", "others"]
    found.leave("mcp.a")
    assert "mcp.a" in selected(found)


def test_large_messages_of_a_server_do_not_come_together() -> None:
    found = bulkhead(8)
    found.enter("mcp.a", MOST_BYTES - 1)
    assert "mcp.a" in found.select(QUEUES)
    found.enter("mcp.a", 1)
    assert found.select(QUEUES) == [*CHECKS, "mcp.b", "others"]
    woken = count()
    found.watch(lambda: next(woken))
    found.leave("mcp.a", 1)
    assert next(woken) == 1
    assert "mcp.a" in found.select(QUEUES)


def test_the_last_slot_is_kept_for_checks() -> None:
    found = bulkhead(4)
    assert "mcp.a" in selected(found, "others", "others")
    assert selected(found, "others") == CHECKS
    assert selected(found, "others") == []


def test_a_server_has_one_check_at_a_time() -> None:
    assert selected(bulkhead(4), "mcp.a.check", "others", "others") == ["mcp.b.check"]


def test_a_single_slot_is_for_calls_and_checks() -> None:
    found = bulkhead(1)
    assert selected(found) == [*CHECKS, "mcp.a", "mcp.b", "others"]
    assert selected(found, "mcp.a") == []


def test_only_a_slot_that_the_worker_waits_for_wakes_it() -> None:
    found, woken = bulkhead(8, a=1), list[str]()
    found.watch(lambda: woken.append("woken"))
    selected(found, "mcp.b")
    found.leave("mcp.b")
    assert not woken
    selected(found, "mcp.a")
    found.leave("mcp.a")
    assert woken


def test_there_is_room_for_what_does_not_run() -> None:
    found = bulkhead(8, a=3)
    assert found.measure(QUEUES) == (8, 1, {"mcp.a": 3, "mcp.a.check": 1, "mcp.b": 4, "mcp.b.check": 1, "others": 8})
    found.enter("mcp.a")
    assert found.measure(["mcp.a"]) == (7, 1, {"mcp.a": 2})


def test_a_watch_may_end_at_any_moment() -> None:
    """Of the lines that run when a slot becomes free, each may be the last before the watch ends."""
    found = bulkhead(1)
    for line in range(20):
        found.enter("mcp.a")
        found.watch(lambda: None)
        assert not found.select(QUEUES), "the slot is awaited"
        lines = count()

        def end_watch(*_: object, line: int = line, lines: Iterator[int] = lines) -> Any:
            if next(lines) == line:
                found.watch(None)
            return end_watch

        before = sys.gettrace()
        sys.settrace(end_watch)
        try:
            found.leave("mcp.a")
        finally:
            sys.settrace(before)
