"""Limits in Redis: what is counted when a call begins or is answered, and what is freed."""

import asyncio
import json
from contextlib import closing
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.delivery import NO_ENTRY, CallState, Delivery
from tarsy_tasks.broker.large_results import LargeWrite
from tarsy_tasks.broker.limit_counters import OverLimit, read_pauses, share_pause
from tarsy_tasks.models import ToolResult
from tarsy_tasks.worker.calls.large_results import cut_result
from tests.processes import wait_until
from tests.redis_users import url_of
from tests.unit.limits.calls import LEASE_S, Calls, Table, limits_of
from tests.valkey import Valkey


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


def test_all_limits_of_a_call_count_or_none(table: Table) -> None:
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
    table.exchange.execute(("HDEL", keys.call_marker(held.tag), "mark", "owner"))  # it was not sent after all
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


@pytest.mark.parametrize("is_async", [True, False])
def test_of_a_large_result_the_whole_is_counted(table: Table, is_async: bool) -> None:
    calls = Calls(table, limits_of({"bytes_per_day": "100 kB"}))
    delivery = calls.take()
    assert calls.begin(delivery) == ""
    whole = ToolResult(call_id="", name="desk.echo", content="x" * 150_000)
    result, large = cut_result(whole, 5_000, keys.result_owner("desk", "sre"), "a-handle", 1_000_000)
    assert large is not None
    place = keys.result_key(delivery.tag)
    if is_async:
        asyncio.run(answer(table, delivery, result.model_dump_json(), large))
    else:
        table.answer_large(delivery, place, result.model_dump_json(), 60, None, large)
    assert calls.kinds(1) == ["bytes"]


async def answer(table: Table, delivery: Delivery, result: str, large: LargeWrite | None = None) -> None:
    exchange = AsyncRedisExchange(lambda: table.pool)
    await AsyncDeliveries(exchange).answer(delivery, keys.result_key(delivery.tag), result, 60, NO_ENTRY, large)
    exchange.close()


def test_calls_that_wait_come_back_one_after_the_other(table: Table) -> None:
    calls = Calls(table, limits_of({"rate": "1/min", "burst": 1, "when_over": "wait"}))
    assert calls.call() == ""
    waits = [found for _ in range(5) if isinstance(found := calls.call(patience_s=3600), OverLimit)]
    assert [each.waits for each in waits] == [True] * 5
    assert [round(each.wait_s / 60) for each in waits] == [1, 2, 3, 4, 5]
    late = calls.call(patience_s=180)
    assert isinstance(late, OverLimit)
    assert not late.waits  # its turn would come after its deadline
    assert isinstance(after := calls.call(), OverLimit)
    assert round(after.wait_s / 60) == 6


@pytest.mark.parametrize(("numbers", "wait_s"), [({"rate": "1/min", "burst": 1}, 60), ({"concurrency": 1}, 1)])
def test_calls_that_wait_do_not_put_off_those_of_other_agents(
    table: Table, numbers: dict[str, Any], wait_s: float
) -> None:
    calls = Calls(table, limits_of({"tools": ["desk.echo"], **numbers, "when_over": "wait"}))
    assert calls.call("noisy") == ""
    for _ in range(70):
        calls.call("noisy", patience_s=7200)  # whether they still come or were withdrawn
    over = calls.call("quiet", patience_s=1.2 * wait_s)
    assert isinstance(over, OverLimit)
    assert over.waits
    assert over.wait_s <= wait_s


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
