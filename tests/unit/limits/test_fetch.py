"""Limits in Redis: what is left in its queue because it is over one."""

from collections import Counter
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.fetch import FetchedMessage, declare_fetch, read_fetched
from tarsy_tasks.broker.limit_counters import OverLimit, limit_fetch
from tarsy_tasks.broker.priority_lists import list_of, lists_of
from tarsy_tasks.broker.shares import declare_fair_fetch
from tarsy_tasks.policy import Limits
from tarsy_tasks.priorities import PRIORITIES
from tests.unit.limits.calls import LEASE_S, Calls, Table, limits_of, text_of

SET, SHARED = keys.agents_key("desk"), keys.queue("desk")


def fair(limits: Limits) -> Any:
    return declare_fair_fetch({}, limit_fetch(limits.build_fetch_terms(["desk"], None), LEASE_S, "anonymous"))


def fetch(table: Table, script: Any, *names: str, room: int = 16) -> tuple[list[FetchedMessage], list[Any]]:
    numbers = " ".join([str(room)] * len(names))
    found = script.run(table.exchange, *names, limits=numbers, checks=0, room=room, kept=0, instance="w")
    return [read_fetched(each) for each in found if len(each) > 2], [each for each in found if len(each) == 2]


def test_what_is_over_its_rate_stays_in_its_queue(table: Table, client: Any) -> None:
    limits = limits_of({"tools": ["desk.*"], "rate": "4/h", "burst": 4, "each": ["agent"], "when_over": "wait"})
    script = fair(limits)
    for agent in ("sre", "dev"):
        for n in range(10):
            table.publish(keys.agent_queue("desk", agent), f"{agent}{n}", text_of(f"{agent}{n}"))
    found, left_out = fetch(table, script, SET, SHARED)
    assert sorted(each.delivery.tag for each in found) == [f"{agent}{n}" for agent in ("dev", "sre") for n in range(4)]
    assert {each.delivery.counted_in for each in found} == {frozenset({limits.all[0].id})}
    assert left_out[0][0] == b"mcp.desk"
    assert 890 < float(left_out[0][1]) <= 900
    assert fetch(table, script, SET, SHARED)[0] == []
    assert client.llen(keys.agent_queue("desk", "sre")) == 6
    # One that comes later does not wait for them.
    table.publish(keys.agent_queue("desk", "ops"), "ops1", text_of("ops1"))
    assert [each.delivery.tag for each in fetch(table, script, SET, SHARED)[0]] == ["ops1"]


def test_no_number_of_shares_over_their_limit_hides_the_others(table: Table, client: Any) -> None:
    limits = limits_of({"agents": ["bulk*"], "rate": "1/day", "each": ["agent"], "when_over": "wait"})
    script = fair(limits)
    until = client.time()[0] + 80_000
    with client.pipeline() as pipeline:
        for n in range(1100):
            pipeline.lpush(keys.agent_queue("desk", f"bulk{n:04}"), text_of(f"bulk{n}"))
            pipeline.sadd(SET, f"bulk{n:04}")
            pipeline.zadd(keys.limit_key(f"{limits.all[0].id}:rate"), {f"bulk{n:04}": until})
        pipeline.expire(keys.limit_key(f"{limits.all[0].id}:rate"), 80_000)
        pipeline.execute()
    for _ in range(2):
        taken, left_out = fetch(table, script, SET, SHARED)
        assert taken == []
    assert [float(wait_s) for _, wait_s in left_out] == [0]  # some were not looked at: the next look is not put off
    for n in range(3):
        table.publish(keys.agent_queue("desk", "quiet"), f"quiet{n}", text_of(f"quiet{n}"))
    tags = [each.delivery.tag for _ in range(3) for each in fetch(table, script, SET, SHARED)[0]]
    assert tags == ["quiet0", "quiet1", "quiet2"]


def test_a_share_saves_up_no_turns_while_it_is_over_its_limit(table: Table) -> None:
    limited = fair(limits_of({"agents": ["noisy"], "rate": "1/day", "when_over": "wait"}))
    unlimited = fair(limits_of({"agents": ["nobody"], "rate": "1/day", "when_over": "wait"}))
    for agent in ("noisy", "quiet"):
        for n in range(100):
            table.publish(keys.agent_queue("desk", agent), f"{agent}{n}", text_of(f"{agent}{n}"))
    taken = Counter(each.delivery.tag[:5] for _ in range(4) for each in fetch(table, limited, SET, SHARED)[0])
    assert taken["noisy"] == 1
    assert taken["quiet"] >= 48
    turns = Counter(each.delivery.tag[:5] for each in fetch(table, unlimited, SET, SHARED)[0])
    assert turns["quiet"] >= 7


def test_what_was_counted_when_it_was_taken_is_not_counted_again(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "1/h", "concurrency": 1, "calls_per_day": 2, "when_over": "wait"}))
    table.publish(keys.agent_queue("desk", "sre"), "a", text_of("a"))
    [message], _ = fetch(table, fair(calls.limits), SET, SHARED)
    assert calls.begin(message.delivery) == ""
    assert calls.kinds(1) == ["concurrency"]


@pytest.mark.parametrize("end", ["answer", "acknowledge", "requeue", "delay"])
def test_a_call_that_is_never_sent_gives_back_what_it_used(table: Table, end: str) -> None:
    script = fair(limits_of({"rate": "5/h", "burst": 5, "when_over": "wait"}))
    for n in range(5):
        table.publish(keys.agent_queue("desk", "sre"), f"denied{n}", text_of(f"denied{n}"))
    denied, _ = fetch(table, script, SET, SHARED)
    assert len(denied) == 5
    table.publish(keys.agent_queue("desk", "dev"), "late", text_of("late"))
    assert fetch(table, script, SET, SHARED)[0] == []
    for message in denied:
        if end == "answer":
            table.answer(message.delivery, keys.result_key(message.delivery.tag), "{}", 60)
        elif end == "delay":
            assert table.delay(message.delivery, wait_s=60)
        else:
            getattr(table, end)(message.delivery)
    assert "late" in [each.delivery.tag for each in fetch(table, script, SET, SHARED)[0]]


def test_a_call_that_was_sent_gives_nothing_back(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "2/h", "burst": 2, "when_over": "wait"}))
    script = fair(calls.limits)
    for n in range(4):
        table.publish(keys.agent_queue("desk", "sre"), f"{n}", text_of(f"{n}"))
    found, _ = fetch(table, script, SET, SHARED)
    for message in found:
        assert calls.begin(message.delivery) == ""
        table.answer(message.delivery, keys.result_key(message.delivery.tag), "{}", 60)
    assert len(found) == 2
    assert fetch(table, script, SET, SHARED)[0] == []


def test_a_call_that_waits_for_a_narrower_limit_is_counted_once(table: Table) -> None:
    wide = {"rate": "5/h", "burst": 5, "when_over": "wait"}
    calls = Calls(table, limits_of(wide, {"tools": ["desk.echo"], "concurrency": 1, "when_over": "wait"}))
    script = fair(calls.limits)
    for n in range(2):
        table.publish(keys.agent_queue("desk", "sre"), f"{n}", text_of(f"{n}"))
    [running, waiting], _ = fetch(table, script, SET, SHARED)
    assert calls.begin(running.delivery) == ""
    for _ in range(10):
        assert isinstance(calls.begin(waiting.delivery), OverLimit)
        table.requeue(waiting.delivery)
        [waiting], _ = fetch(table, script, SET, SHARED)
    table.answer(running.delivery, keys.result_key(running.delivery.tag), "{}", 60)
    assert calls.begin(waiting.delivery) == ""


def test_what_is_given_back_late_makes_no_larger_burst(table: Table, client: Any) -> None:
    limits = limits_of({"rate": "20/s", "burst": 1, "when_over": "wait"})
    script = fair(limits)
    for n in range(3):
        table.publish(keys.agent_queue("desk", "sre"), f"{n}", text_of(f"{n}"))
    [early], _ = fetch(table, script, SET, SHARED)
    limit_id, interval, used_until, counter = early.delivery.counted.split()
    key = keys.limit_key(f"{limit_id}:rate")
    until = float(used_until) + 60  # others use it
    early.delivery.counted = f"{limit_id} {interval} {until - 120} {counter}"  # its rate came back a minute ago
    client.zadd(key, {counter: until})
    table.acknowledge(early.delivery)
    assert client.zscore(key, counter) == until


def test_as_many_are_taken_as_may_run(table: Table, client: Any) -> None:
    script = fair(limits_of({"agents": ["s?e"], "concurrency": 3, "when_over": "wait"}))
    for agent in ("sre", "SRE", "dev"):
        for n in range(6):
            table.publish(keys.agent_queue("desk", agent), f"{agent}{n}", text_of(f"{agent}{n}"))
    found, left_out = fetch(table, script, SET, SHARED)
    taken = [each.delivery.queue.rpartition(":")[2] for each in found]
    assert taken.count("dev") == 6
    assert taken.count("sre") + taken.count("SRE") == 3
    assert left_out
    mine = next(each for each in found if "dev" not in each.delivery.queue)
    table.answer(mine.delivery, keys.result_key(mine.delivery.tag), "{}", 60)
    assert len(fetch(table, script, SET, SHARED)[0]) == 1


@pytest.mark.parametrize("fairly", [True, False])
def test_a_limit_counts_the_calls_of_all_priorities(table: Table, client: Any, fairly: bool) -> None:
    limits = limits_of({"tools": ["desk.*"], "rate": "10/h", "burst": 10, "when_over": "wait"})
    own = keys.agent_queue("desk", "sre") if fairly else SHARED
    terms = limits.build_fetch_terms(["desk"], "anonymous")
    script = fair(limits) if fairly else declare_fetch(limiting=limit_fetch(terms, LEASE_S, "anonymous"))
    for priority in PRIORITIES:
        for n in range(20):
            table.publish(list_of(own, priority), f"{priority}{n}", text_of(f"{priority}{n}"))
    found, left_out = fetch(table, script, *([SET] if fairly else []), *lists_of(SHARED))
    assert Counter(each.delivery.priority for each in found) == {"interactive": 7, "normal": 2, "batch": 1}
    assert left_out
    assert sum(map(client.llen, lists_of(own))) == 50
    assert fetch(table, script, *([SET] if fairly else []), *lists_of(SHARED))[0] == []


def test_messages_that_are_no_calls_use_up_nothing(table: Table) -> None:
    limits = limits_of({"rate": "1/h", "when_over": "wait"})
    script = declare_fetch(limiting=limit_fetch(limits.build_fetch_terms(["desk"], "anonymous"), LEASE_S, "anonymous"))
    table.publish(SHARED, "a", text_of("a", "tarsy.list_tools"))
    table.publish(SHARED, "b", text_of("b"))
    table.publish(SHARED, "c", text_of("c"))
    tags = [each.delivery.tag for _ in range(3) for each in fetch(table, script, SHARED)[0]]
    assert tags == ["a", "b"]


def test_a_refused_check_loses_nothing_that_was_taken(table: Table, client: Any) -> None:
    limits = limits_of({"tools": ["desk.*"], "rate": "100/s", "when_over": "wait"})
    terms = limits.build_fetch_terms(["desk"], "anonymous")
    script = declare_fetch(limiting=limit_fetch(terms, LEASE_S, "anonymous"))
    patterns = [f"%RW~{each}*" for each in ("mcp.", "tarsy:c", "tarsy:le", "tarsy:q", "tarsy:u", "tarsy:w", "tarsy:d")]
    client.acl_setuser("old", enabled=True, passwords=["+x"], keys=[], commands=["+@all"])
    client.execute_command("ACL", "SETUSER", "old", *patterns)
    try:
        host = client.connection_pool.connection_kwargs
        with redis.Redis(host=host["host"], port=host["port"], username="old", password="x") as old:
            refused = Table(old.connection_pool)
            for first, second in ((SHARED, "mcp.other"), ("mcp.other", SHARED)):
                table.publish("mcp.other", "other", text_of("other"))
                table.publish(SHARED, "mine", text_of("mine"))
                taken, _ = fetch(refused, script, first, second)
                assert [each.delivery.tag for each in taken] == ["other"]
                table.acknowledge(taken[0].delivery)
                with pytest.raises(ResponseError, match="permission"):
                    fetch(refused, script, first, second)
                assert client.llen(SHARED) == 1
                client.flushdb()
    finally:
        client.acl_deluser("old")
        client.acl_log_reset()


@pytest.mark.parametrize("shared_agent", [None, "anonymous"])
def test_a_shared_queue_is_limited_if_its_agent_is_known(table: Table, shared_agent: str | None) -> None:
    limits = limits_of({"rate": "1/h", "each": ["agent"], "when_over": "wait"})
    terms = limits.build_fetch_terms(["desk"], shared_agent)
    script = declare_fetch(limiting=limit_fetch(terms, LEASE_S, "anonymous"))
    for tag in ("a", "b"):
        table.publish(SHARED, tag, text_of(tag))
    taken = [each.delivery.tag for _ in range(2) for each in fetch(table, script, SHARED)[0]]
    assert taken == (["a", "b"] if shared_agent is None else ["a"])
