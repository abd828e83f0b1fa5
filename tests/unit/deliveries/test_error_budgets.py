"""Error budgets in Redis: when the workers together suspend a server, who tries it, and when it is back."""

from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.error_budget import FIRST_S, OTHERS, BudgetReport, BudgetState, tend_budgets
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.sessions.counted_calls import CountedCalls

BUDGET = keys.error_budget_key("desk")
TRIAL_S = 40.0
Calls = dict[str, tuple[int, int]]


class Fleet:
    """The workers of one server, whose calls may fail in half of the cases."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.exchange = RedisExchange(client.connection_pool)

    def report(self, calls: Calls | None = None, worker: str = "w1", **more: Any) -> BudgetState:
        slots: dict[str, Any] = {"max_failure_rate": 0.5, "window_s": 60.0, "min_calls": 10, "trial_s": TRIAL_S}
        report = BudgetReport("desk", **slots, **{"may_try": True, "event": "", "calls": calls or {}, **more})
        return tend_budgets(self.exchange, worker, [report])["desk"]

    def is_suspended(self, calls: Calls | None = None, **more: Any) -> bool:
        return bool(self.report(calls, **more).reason)

    def suspend(self) -> BudgetState:
        return self.report({"sre": (20, 20), "dev": (20, 20)})

    def pass_time(self) -> None:
        """Until the server is to be tried, or the worker that does should have done."""
        assert self.client.hget(BUDGET, "until")
        self.client.hset(BUDGET, "until", "1.0")


@pytest.fixture
def fleet(client: redis.Redis) -> Fleet:
    return Fleet(client)


@pytest.mark.parametrize(
    ("calls", "is_suspended"),
    [
        ({"sre": (10, 6)}, True),  # it is the only agent
        ({"sre": (10, 5)}, False),
        ({"sre": (9, 9)}, False),  # too few
        ({"sre": (20, 20), "dev": (1, 0)}, False),
        ({"sre": (20, 20), "dev": (1, 1)}, False),  # which happens
        ({"sre": (20, 20), "dev": (2, 2)}, True),
        ({"sre": (1000, 1000), "dev": (20, 8)}, False),
        ({"sre": (6, 4), "dev": (6, 4)}, True),
        ({"sre": (20, 20), OTHERS: (5, 0)}, False),
    ],
)
def test_too_many_failures_of_more_than_one_agent_suspend(fleet: Fleet, calls: Calls, is_suspended: bool) -> None:
    assert fleet.is_suspended(calls) == is_suspended
    assert fleet.is_suspended(worker="w2") == is_suspended
    assert 7000 < fleet.client.ttl(BUDGET) <= 7200


def test_the_calls_of_all_workers_count_together(fleet: Fleet) -> None:
    assert not fleet.is_suspended({"sre": (5, 5)})
    state = fleet.report({"sre": (5, 4)}, worker="w2")
    assert state.reason.startswith("9 of its 10 calls within 60 s failed")
    assert FIRST_S - 1 < state.left_s <= FIRST_S


def test_an_agent_that_called_a_while_ago_protects_a_server(fleet: Fleet) -> None:
    fleet.report({"dev": (1, 0)})
    fields = {name: 0 for name in fleet.client.hkeys(BUDGET) if name.endswith(b" dev")}
    fleet.client.hdel(BUDGET, *fields)  # its calls have left the window
    assert not fleet.is_suspended({"sre": (50, 50)})
    fleet.client.hset(BUDGET, "earlier_at", "1.0")
    assert fleet.is_suspended()


def test_what_has_left_the_window_does_not_count(fleet: Fleet) -> None:
    seconds, _ = fleet.client.time()
    old = {f"{seconds - 61}.0 {what} sre": 100 for what in "cf"} | {
        f"{seconds + 600}.0 {what} sre": 100 for what in "cf"
    }
    fleet.client.hset(BUDGET, mapping=old)
    assert not fleet.is_suspended({"sre": (10, 1)})
    assert not set(map(str.encode, old)) & set(fleet.client.hkeys(BUDGET))


def test_one_worker_tries_and_another_one_if_it_is_lost(fleet: Fleet) -> None:
    fleet.suspend()
    assert not fleet.report().is_prober, "it is too early"
    fleet.pass_time()
    assert not fleet.report(worker="w0", may_try=False).is_prober
    state = fleet.report(worker="w1")
    assert state.is_prober
    assert TRIAL_S - 1 < state.left_s <= TRIAL_S
    assert fleet.report(worker="w1").is_prober, "its reply may have been lost"
    assert not fleet.report(worker="w2").is_prober
    fleet.pass_time()
    assert fleet.report(worker="w2").is_prober
    assert fleet.is_suspended(worker="w1", event="silent"), "its turn is over"
    assert fleet.report(worker="w2").is_prober


def test_a_server_that_answers_begins_anew(fleet: Fleet) -> None:
    fleet.suspend()
    fleet.pass_time()
    assert fleet.report(worker="w1").is_prober
    assert FIRST_S - 1 < fleet.report(worker="w1", event="silent").left_s <= FIRST_S
    fleet.pass_time()
    assert fleet.report(worker="w2").is_prober
    assert not fleet.is_suspended(worker="w2", event="answered")
    assert not fleet.is_suspended({"sre": (5, 5), "dev": (4, 4)}, worker="w1"), "earlier calls no longer count"


def test_a_relapse_is_suspended_for_longer(fleet: Fleet) -> None:
    lengths: list[int] = []
    for _ in range(7):
        lengths.append(round(fleet.suspend().left_s))
        assert not fleet.is_suspended(event="answered")
    assert lengths == [30, 60, 120, 240, 480, 600, 600]
    fleet.client.hset(BUDGET, "ended", "1.0")
    assert round(fleet.suspend().left_s) == 30
    assert not fleet.is_suspended(event="lifted")
    assert round(fleet.suspend().left_s) == 30, "an operator has ended it"


def test_calls_of_a_suspended_server_do_not_count(fleet: Fleet) -> None:
    fleet.suspend()
    fleet.report({"sre": (50, 50), "dev": (50, 50)})
    assert not fleet.is_suspended(event="lifted")


@pytest.mark.parametrize("until", ["99999999999", "nan", "text", "-1e400"])
def test_no_time_in_redis_suspends_for_ever(fleet: Fleet, until: str) -> None:
    fleet.suspend()
    fleet.client.hset(BUDGET, "until", until)
    state = fleet.report()
    assert state.is_prober or not state.reason
    assert state.left_s <= TRIAL_S


def test_damaged_budgets_are_replaced(fleet: Fleet) -> None:
    fleet.client.set(BUDGET, "another application's")
    assert fleet.is_suspended({"sre": (10, 10)})
    fleet.client.delete(BUDGET)
    fleet.client.hset(
        BUDGET, mapping={"1e9 c x": "many", "9..9 f x": "1", "length": "x", "ended": "y", "earlier_at": "z"}
    )
    assert fleet.is_suspended({"sre": (10, 10)})


def test_a_budget_that_redis_has_lost_suspends_nothing(fleet: Fleet) -> None:
    fleet.suspend()
    fleet.client.flushall()
    assert fleet.report() == BudgetState("", 0.0, False)


def test_ten_thousand_agents_cost_a_bounded_hash(fleet: Fleet) -> None:
    for first in range(0, 10_000, 500):
        fleet.report({f"agent-{number}": (1, 0) for number in range(first, first + 500)})
    assert fleet.client.hlen(BUDGET) < 2500
    assert fleet.is_suspended(
        {f"agent-{number}": (2, 2) for number in range(9_500, 10_000)} | {OTHERS: (20_000, 20_000)}
    )


def test_among_thousands_one_agent_alone_suspends_nothing(fleet: Fleet) -> None:
    for first in range(0, 8_000, 500):
        fleet.report({f"agent-{number}": (1, 0) for number in range(first, first + 500)})
    assert not fleet.is_suspended({"new": (20_000, 20_000)})
    assert fleet.client.hlen(BUDGET) < 2500
    assert fleet.is_suspended({"newer": (20_000, 20_000)})


def test_what_agents_and_tools_do_is_no_failure_of_a_server() -> None:
    counted = CountedCalls()
    for code in (None, ErrorCode.TOOL_ERROR, ErrorCode.SERVER_ERROR, *NEITHER):
        counted.add("sre", code)
    assert counted.take() == {"sre": (3, 0)}
    for code in (ErrorCode.CALL_TIMEOUT, ErrorCode.SESSION_LOST, ErrorCode.SERVER_UNAVAILABLE):
        counted.add("d\ud800v", code)
    assert counted.take() == {"d?v": (3, 3)}
    assert counted.take() == {}


NEITHER = (ErrorCode.CANCELLED, ErrorCode.NOT_PERMITTED, ErrorCode.DEADLINE_PASSED, ErrorCode.SERVER_MISCONFIGURED)


def test_the_names_that_a_worker_counts_are_bounded() -> None:
    counted = CountedCalls()
    for number in range(1000):
        counted.add(f"agent-{number}", None)
    calls = counted.take()
    assert len(calls) == 501
    assert calls[OTHERS] == (500, 0)
    for number in range(500):
        counted.add(f"agent-{number}", None)
    for number in range(1000, 2000):
        counted.add(f"agent-{number}", ErrorCode.CALL_TIMEOUT)
    calls = counted.take()
    assert len(calls) == 1001
    assert calls["agent-1000"] == (1, 1)
    assert calls[OTHERS] == (500, 500)
