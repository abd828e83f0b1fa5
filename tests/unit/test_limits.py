"""Limits in Redis: what is counted when a call begins, is taken or is answered, and what is freed."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries, LimitCheck
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import NO_ENTRY, CallState, Deliveries, Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.fetch import FetchedMessage, declare_fetch, read_fetched
from tarsy_tasks.broker.limits import OverLimit, limit_fetch, read_pauses, share_pause
from tarsy_tasks.broker.shares import declare_fair_fetch
from tarsy_tasks.policy import LimitRule, Limits
from tests.processes import wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

LEASE_S = 20.0
NUMBERS = itertools.count()
SET, SHARED = keys.agents_key("desk"), keys.queue("desk")


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found
        left = [key for key in found.keys("tarsy:limit:*") if found.ttl(key) < 0]
        found.flushall()
        assert not left


class Table(Deliveries):
    """The in-flight table, and the pool of its connections."""

    def __init__(self, pool: Any) -> None:
        self.pool, exchange = pool, RedisExchange(pool)
        super().__init__(lambda: exchange)


@pytest.fixture
def table(client: Any) -> Table:
    return Table(client.connection_pool)


def text_of(tag: str, task: str = "tarsy.call_tool") -> str:
    return json.dumps({"body": "", "headers": {"task": task, "id": tag}, "properties": {"delivery_tag": tag}})


def limits_of(*rules: dict[str, Any]) -> Limits:
    return Limits(LimitRule.model_validate(rule) for rule in rules)


class Calls:
    """Takes calls and begins them, as a worker does."""

    def __init__(self, table: Table, limits: Limits) -> None:
        self.table, self.limits = table, limits

    def take(self, agent: str = "sre") -> Delivery:
        tag, queue = f"{agent} {next(NUMBERS)}", keys.agent_queue("desk", agent)
        self.table.publish(queue, tag, text_of(tag))
        self.table.exchange.execute(("RPOP", queue))
        return self.table.take(queue, tag, lambda: "")

    def begin(
        self, delivery: Delivery, agent: str = "sre", tool: str = "echo", patience_s: float = 60.0
    ) -> str | OverLimit:
        applied = self.limits.of(agent, "desk", tool)
        assert applied is not None
        check = LimitCheck(applied.text_without(delivery.counted_in), patience_s, LEASE_S)

        async def begin() -> str | OverLimit:
            exchange = AsyncRedisExchange(lambda: self.table.pool)
            try:
                return await AsyncDeliveries(exchange).begin_limited(delivery, f"w {delivery.count}", 1.0, check)
            finally:
                exchange.close()

        found = asyncio.run(begin())
        if found == "":
            delivery.charges = applied.charges
        return found

    def call(self, agent: str = "sre", tool: str = "echo", patience_s: float = 60.0) -> str | OverLimit:
        return self.begin(self.take(agent), agent, tool, patience_s)

    def kinds(self, count: int, **options: Any) -> list[str]:
        found = [self.call(**options) for _ in range(count)]
        return [each.kind if isinstance(each, OverLimit) else each for each in found]


def test_a_rate_permits_a_burst_and_says_when_to_come_back(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "10/h", "burst": 3}))
    assert calls.kinds(5) == ["", "", "", "rate", "rate"]
    over = calls.call()
    assert isinstance(over, OverLimit)
    assert 350 < over.wait_s <= 360
    assert not over.waits


def test_without_a_burst_a_second_may_come_at_once(table: Table) -> None:
    assert Calls(table, limits_of({"rate": "3/s"})).kinds(3) == [""] * 3
    assert Calls(table, limits_of({"rate": "3/day", "each": ["agent"]})).kinds(2) == ["", "rate"]


def test_a_rate_comes_back_with_time(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "20/s", "burst": 1}))
    assert calls.call() == ""
    wait_until(lambda: calls.call() == "", "the next call is in rate", 5)


def test_a_clock_that_was_set_back_blocks_nobody(table: Table, client: Any) -> None:
    limits = limits_of({"rate": "10/min", "burst": 2})
    client.zadd(f"tarsy:limit:{limits.all[0].id}:rate", {"*": 9e12})
    client.expire(f"tarsy:limit:{limits.all[0].id}:rate", 100)
    over = Calls(table, limits).call()
    assert isinstance(over, OverLimit)
    assert over.wait_s <= 6


def test_each_agent_server_and_tool_has_its_own_limit(table: Table, client: Any) -> None:
    calls = Calls(table, limits_of({"rate": "1/h", "each": ["agent", "tool"]}))
    assert calls.kinds(2) == ["", "rate"]
    assert calls.kinds(1, agent="dev") == calls.kinds(1, tool="label") == [""]
    assert calls.kinds(1, agent="dev") == calls.kinds(1, tool="label") == ["rate"]
    assert len(client.keys("tarsy:limit:*")) == 1


def test_all_limits_of_a_call_count_and_nothing_is_lost_on_the_way(table: Table) -> None:
    calls = Calls(table, limits_of({"tools": ["desk.echo"], "rate": "1/h"}, {"calls_per_day": 3}))
    assert calls.kinds(3) == ["", "rate", "rate"]
    assert calls.kinds(3, tool="label") == ["", "", "calls"]  # what was over the rate was not counted


def test_a_limit_of_zero_permits_nothing(table: Table) -> None:
    for numbers in ({"rate": "0/s"}, {"concurrency": 0}, {"calls_per_day": 0}, {"bytes_per_day": "0 B"}):
        for when_over in ("reject", "wait"):
            assert Calls(table, limits_of({**numbers, "when_over": when_over})).kinds(1) == ["none"]


def test_as_many_run_as_may_until_one_is_answered(table: Table, client: Any) -> None:
    calls = Calls(table, limits_of({"concurrency": 2, "each": ["agent"]}))
    first, second = calls.take(), calls.take()
    assert calls.begin(first) == calls.begin(second) == ""
    assert calls.kinds(2) == ["concurrency"] * 2
    assert calls.kinds(1, agent="dev") == [""]
    table.answer(first, keys.result_key(first.tag), "{}", 60)
    assert calls.kinds(2) == ["", "concurrency"]


@pytest.mark.parametrize("end", ["acknowledge", "requeue", "delay"])
def test_whatever_ends_a_call_here_frees_what_it_held(table: Table, end: str) -> None:
    calls = Calls(table, limits_of({"concurrency": 1}))
    held = calls.take()
    assert calls.begin(held) == ""
    assert calls.kinds(1) == ["concurrency"]
    if end == "delay":
        table.delay(held, wait_s=60)
    else:
        getattr(table, end)(held)
    assert calls.kinds(1) == [""]


def test_a_killed_worker_holds_until_its_lease_ends(table: Table, client: Any) -> None:
    calls = Calls(table, limits_of({"concurrency": 1}))
    held = calls.take()
    calls.begin(held)
    seconds, _ = client.time()
    client.zadd(keys.LEASES, {held.lease: seconds - LEASE_S + 5})
    assert calls.kinds(1) == ["concurrency"]
    client.zadd(keys.LEASES, {held.lease: seconds - LEASE_S - 1})
    assert calls.kinds(1) == [""]


def test_a_call_that_is_taken_again_does_not_wait_for_itself(table: Table) -> None:
    calls = Calls(table, limits_of({"concurrency": 1}))
    held = calls.take()
    assert calls.begin(held) == ""
    table.requeue(held)
    table.exchange.execute(("RPOP", held.queue))
    again = table.take(held.queue, held.tag, lambda: "")
    assert calls.begin(again) == ""


def test_what_calls_leave_behind_is_removed_on_the_way(table: Table, client: Any) -> None:
    limits = limits_of({"concurrency": 1000, "each": ["agent"]})
    calls = Calls(table, limits)
    for n in range(60):
        delivery = calls.take(f"a{n}")
        calls.begin(delivery, f"a{n}")
        table.answer(delivery, keys.result_key(delivery.tag), "{}", 60)
    assert client.zcard(f"tarsy:limit:{limits.all[0].id}:held") < 20


def test_a_lost_reply_counts_a_call_once(table: Table) -> None:
    calls = Calls(table, limits_of({"calls_per_day": 1}))
    delivery = calls.take()
    assert calls.begin(delivery) == calls.begin(delivery) == ""
    assert calls.kinds(1) == ["calls"]


def test_a_quota_of_bytes_is_used_up_by_results(table: Table) -> None:
    calls = Calls(table, limits_of({"bytes_per_day": "1 kB", "each": ["agent"]}))
    first, second = calls.take(), calls.take()
    assert calls.begin(first) == calls.begin(second) == ""
    table.answer(first, keys.result_key(first.tag), "x" * 600, 60)
    table.answer(first, keys.result_key(first.tag), "x" * 600, 60)  # its reply was lost
    assert calls.kinds(1) == [""]
    asyncio.run(answer(table, second, "x" * 600))
    assert calls.kinds(1) == ["bytes"]
    assert calls.kinds(1, agent="dev") == [""]


async def answer(table: Table, delivery: Delivery, result: str) -> None:
    exchange = AsyncRedisExchange(lambda: table.pool)
    await AsyncDeliveries(exchange).answer(delivery, keys.result_key(delivery.tag), result, 60, NO_ENTRY)
    exchange.close()


def test_calls_that_wait_come_back_one_after_the_other(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "60/min", "burst": 1, "when_over": "wait"}))
    assert calls.call() == ""
    waits = [found for _ in range(5) if isinstance(found := calls.call(), OverLimit)]
    assert [each.waits for each in waits] == [True] * 5
    assert [round(each.wait_s) for each in waits] == [1, 2, 3, 4, 5]
    late = calls.call(patience_s=3)
    assert isinstance(late, OverLimit)
    assert not late.waits  # its turn would come after its deadline
    assert isinstance(after := calls.call(), OverLimit)
    assert round(after.wait_s) == 6


def test_what_rejects_goes_before_what_waits(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "1/h", "when_over": "wait"}, {"rate": "1/min"}))
    assert calls.call() == ""
    over = calls.call()
    assert isinstance(over, OverLimit)
    assert (over.id, over.waits) == (calls.limits.all[1].id, False)


def test_a_call_that_was_answered_or_withdrawn_counts_nothing(table: Table, client: Any) -> None:
    calls = Calls(table, limits_of({"calls_per_day": 1}))
    withdrawn = calls.take()
    client.set(keys.withdrawn_key(withdrawn.tag), 1, ex=60)
    assert calls.begin(withdrawn) == ""
    assert withdrawn.state is CallState.WITHDRAWN
    assert calls.kinds(2) == ["", "calls"]


def test_keys_of_another_type_are_replaced(table: Table, client: Any) -> None:
    limits = limits_of({"rate": "100/s", "concurrency": 3, "calls_per_day": 5, "bytes_per_day": 10**6})
    calls = Calls(table, limits)
    day = client.time()[0] // 86400
    for what in ("rate", "held", f"calls:{day}", f"bytes:{day}"):
        client.set(f"tarsy:limit:{limits.all[0].id}:{what}", "text", ex=60)
    delivery = calls.take()
    assert calls.begin(delivery) == ""
    client.set(f"tarsy:limit:{limits.all[0].id}:bytes:{day}", "text", ex=60)
    table.answer(delivery, keys.result_key(delivery.tag), "{}", 60)
    assert client.zscore(f"tarsy:limit:{limits.all[0].id}:bytes:{day}", "*") == 2


def test_numbers_may_change_and_the_day_is_still_counted(table: Table) -> None:
    before = Calls(table, limits_of({"rate": "5/s"}, {"tools": ["desk.*"], "calls_per_day": 3}))
    assert before.kinds(2) == ["", ""]
    after = Calls(table, limits_of({"tools": ["desk.*"], "calls_per_day": 4, "concurrency": 100}))
    assert after.kinds(3) == ["", "", "calls"]


def fair(limits: Limits) -> Any:
    return declare_fair_fetch({}, limit_fetch(limits.build_fetch_terms(["desk"], None), LEASE_S, "anonymous"))


def fetch(table: Table, script: Any, *names: str, room: int = 16) -> tuple[list[FetchedMessage], list[Any]]:
    numbers = " ".join([str(room)] * len(names))
    found = script.run(table.exchange, *names, limits=numbers, checks=0, room=room, kept=0)
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


def test_what_was_counted_when_it_was_taken_is_not_counted_again(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "1/h", "concurrency": 1, "calls_per_day": 2, "when_over": "wait"}))
    table.publish(keys.agent_queue("desk", "sre"), "a", text_of("a"))
    [message], _ = fetch(table, fair(calls.limits), SET, SHARED)
    assert calls.begin(message.delivery) == ""
    assert calls.kinds(1) == ["concurrency"]


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


def test_messages_that_are_no_calls_use_up_nothing(table: Table) -> None:
    limits = limits_of({"rate": "1/h", "when_over": "wait"})
    script = declare_fetch(limiting=limit_fetch(limits.build_fetch_terms(["desk"], "anonymous"), LEASE_S, "anonymous"))
    table.publish(SHARED, "a", text_of("a", "tarsy.list_tools"))
    table.publish(SHARED, "b", text_of("b"))
    table.publish(SHARED, "c", text_of("c"))
    tags = [each.delivery.tag for _ in range(3) for each in fetch(table, script, SHARED)[0]]
    assert tags == ["a", "b"]


@pytest.mark.parametrize("shared_agent", [None, "anonymous"])
def test_limits_of_agents_hold_in_the_shared_queue_if_it_is_clear_whose_it_is(
    table: Table, shared_agent: str | None
) -> None:
    limits = limits_of({"rate": "1/h", "each": ["agent"], "when_over": "wait"})
    terms = limits.build_fetch_terms(["desk"], shared_agent)
    script = declare_fetch(limiting=limit_fetch(terms, LEASE_S, "anonymous"))
    for tag in ("a", "b"):
        table.publish(SHARED, tag, text_of(tag))
    taken = [each.delivery.tag for _ in range(2) for each in fetch(table, script, SHARED)[0]]
    assert taken == (["a", "b"] if shared_agent is None else ["a"])


def test_ten_thousand_agents_need_no_more_keys(table: Table, client: Any) -> None:
    limits = limits_of({"rate": "1/min", "concurrency": 2, "calls_per_day": 5, "each": ["agent", "tool"]})
    calls = Calls(table, limits)
    assert calls.kinds(1, agent="sre") == [""]
    before = len(client.keys("tarsy:limit:*"))
    applied = [limits.of(f"{'é' * 60}{n}", "desk", "echo") for n in range(10_000)]
    assert all(each is not None and len(json.loads(each.text)[0]["counter"]) <= 200 for each in applied)
    assert len({each.text for each in applied if each is not None}) == 10_000
    for n in range(50):
        assert calls.kinds(1, agent=f"a{n}") == [""]
    assert len(client.keys("tarsy:limit:*")) == before


def test_a_pause_is_shared_bounded_and_ends(table: Table, client: Any) -> None:
    def pauses() -> list[bytes]:
        return read_pauses.run(table.exchange, longest_s=300.0)

    client.set(keys.PAUSES, "text", ex=60)
    assert pauses() == []
    share_pause.run(table.exchange, server="desk", wait_s=1e12, longest_s=300.0)
    share_pause.run(table.exchange, server="desk", wait_s=1.0, longest_s=300.0)
    server, left_s = pauses()
    assert (server, 299 < float(left_s) <= 300) == (b"desk", True)
    client.zadd(keys.PAUSES, {"desk": client.time()[0] - 1})
    assert pauses() == []


def test_an_agent_can_neither_read_nor_change_what_is_counted() -> None:
    counted = [f"tarsy:limit:0123456789ab:{what}" for what in ("rate", "promised", "held", "calls:1", "bytes:1")]
    with Valkey(agents=(AgentUser("sre", ("desk",)),)) as valkey:
        for user in ("sre", "agent"):
            with closing(redis.Redis.from_url(url_of(valkey.port, user))) as agent:
                for key in (*counted, keys.PAUSES, keys.LIMIT_REPORT):
                    for command in (
                        ("ZADD", key, 1, "*"),
                        ("ZREM", key, "*"),
                        ("ZRANGE", key, 0, -1),
                        ("ZSCORE", key, "*"),
                        ("GET", key),
                        ("SET", key, "x"),
                        ("DEL", key),
                        ("EXPIRE", key, 1),
                        ("EVAL", "return redis.call('DEL', KEYS[1])", 1, key),
                    ):
                        with pytest.raises(ResponseError, match=r"permission|ACL"):
                            agent.execute_command(*command)
        with closing(redis.Redis.from_url(url_of(valkey.port))) as admin:
            assert admin.keys("tarsy:limit:*") == []
