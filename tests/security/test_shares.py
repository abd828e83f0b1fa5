"""Fair shares, priorities and limits that wait, in four workers that run one call each: in what order the calls of
agents are served, each with a user of its own in Redis. Served calls are counted, not timed."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.priority_lists import list_of, lists_of
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.priorities import PRIORITIES
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.redis_users import url_of
from tests.security.fleet import agents_apps, agents_valkey, start_fleet, stopped
from tests.valkey import Valkey

POLICY: dict[str, Any] = {
    "agents": {"sre": {"weight": 3}, "*": {}},
    "limits": [{"tools": ["vault.*"], "rate": "2/day", "burst": 2, "each": ["agent"], "when_over": "wait"}],
}
SHORT = {"seconds": 0.05, "steps": 1}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with agents_valkey() as valkey:
        yield valkey


@pytest.fixture(scope="module")
def workers(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    with start_fleet(valkey, tmp_path_factory, POLICY, {**DEMO_SERVER, "max_concurrency": 1}) as workers:
        yield workers


@pytest.fixture(scope="module")
def agents(workers: list[Worker], valkey: Valkey) -> Iterator[dict[str, ToolExecutor]]:
    """The executor of each agent; `agent` is shared, so its calls are anonymous."""
    assert workers
    with agents_apps(valkey) as apps, ExitStack() as stack:
        yield {
            name: stack.enter_context(ToolExecutor(["desk", "vault"], timeout_s=100, app=app))
            for name, app in apps.items()
        }


@pytest.fixture
def admin(valkey: Valkey, agents: dict[str, ToolExecutor]) -> Iterator[Any]:
    """Redis. Afterwards nothing of the agents is left there: who went away costs nobody anything."""
    assert agents
    with closing(redis.Redis.from_url(url_of(valkey.port))) as client:
        yield client
        wait_until(lambda: not traces(client), f"no key of an agent is left: {traces(client)}", 30)
        assert not client.acl_log()


def traces(client: Any) -> list[Any]:
    """What there is in Redis of agents that have no calls."""
    found = [*client.keys("mcp.*"), *client.keys("tarsy:agents:*"), *client.keys("tarsy:shares:*")]
    return [*found, *client.keys("tarsy:waiting:*"), *client.zrange(keys.QUEUES, 0, -1), *client.hkeys(keys.UNACKED)]


def submit(tools: ToolExecutor, count: int, name: str = "desk.wait", **more: Any) -> list[SubmittedCall]:
    return [tools.submit(ToolCall(id=str(n), name=name, arguments=SHORT), **more) for n in range(count)]


@contextmanager
def takes(admin: Any, lists: Sequence[str]) -> Iterator[Iterator[int]]:
    """From which of these lists a message is taken, one after the other, as Redis announces it."""
    channels = [f"__keyspace@0__:{name}".encode() for name in lists]

    def listen() -> Iterator[int]:
        while message := events.get_message(timeout=60):
            if message["data"] == b"rpop":
                yield channels.index(message["channel"])

    admin.config_set("notify-keyspace-events", "Kl")
    try:
        with closing(admin.pubsub()) as events:
            events.subscribe(*channels)
            for _ in channels:
                assert events.get_message(timeout=60)
            yield listen()
    finally:
        admin.config_set("notify-keyspace-events", "")


def outcomes(calls: list[SubmittedCall]) -> Counter[str]:
    return Counter(str(call.result().error_code or call.result().outcome) for call in calls)


def test_a_backlog_is_served_by_weights(workers: list[Worker], agents: dict[str, ToolExecutor], admin: Any) -> None:
    names = ("sre", "dev")
    taken = [0, 0]
    with takes(admin, [keys.agent_queue("desk", name) for name in names]) as takes_in_order:
        with stopped(*workers):
            calls = [call for name in names for call in submit(agents[name], 60)]
        # Redis takes one after the other, whichever worker asks: three of `sre`, one of `dev`.
        for each in takes_in_order:
            taken[each] += 1
            assert abs(taken[0] - 3 * taken[1]) <= 3, taken
            if taken[0] == 60:
                break
    assert taken[0] == 60
    assert outcomes(calls) == {"ok": 120}


def test_three_calls_go_before_thousands(
    workers: list[Worker], agents: dict[str, ToolExecutor], admin: Any, valkey: Valkey
) -> None:
    own, count = keys.agent_queue("desk", "ops"), 3000
    with stopped(*workers):
        submit(agents["ops"], 1)
        message = json.loads(admin.lrange(own, 0, 0)[0])
        with closing(redis.Redis.from_url(url_of(valkey.port, "ops"))) as ops, ops.pipeline() as pipeline:
            for n in range(count):
                message["headers"]["id"] = message["properties"]["delivery_tag"] = f"flood-{n}"
                pipeline.lpush(own, json.dumps(message))
            pipeline.execute()
        calls = submit(agents["dev"], 3)
    assert outcomes(calls) == {"ok": 3}
    # One of the other for each of these, and what came while the last one ran.
    served = count + 1 - admin.llen(own)
    url = url_of(valkey.port, "operator")
    with closing(build_app({"broker_url": url})) as app, app.connection_for_write() as connection:
        connection.channel().queue_purge("mcp.desk")
    assert served < count / 10, served


def test_interactive_calls_go_before_batch(workers: list[Worker], agents: dict[str, ToolExecutor], admin: Any) -> None:
    for name, queue in (("sre", keys.agent_queue("desk", "sre")), ("agent", keys.queue("desk"))):
        with stopped(*workers):
            calls = [
                call for priority in ("batch", "interactive") for call in submit(agents[name], 200, priority=priority)
            ]
        lists = [list_of(queue, "interactive"), list_of(queue, "batch")]
        wait_until(lambda lists=lists: not all(map(admin.llen, lists)), "one of the lists is empty", 60)
        assert not admin.llen(lists[0])
        assert outcomes(calls) == {"ok": 400}
        priorities = {call.id: call.result().priority for call in calls}
        # One turn of ten is batch's, by the clock: so about a tenth of them is taken before, never half.
        ended = [json.loads(entry[keys.AUDIT_FIELD.encode()])["task_id"] for _, entry in admin.xrange(keys.AUDIT)]
        order = [priorities[each] for each in ended if each in priorities]
        assert order[: len(order) - order[::-1].index("interactive")].count("batch") < 100


def test_a_limit_that_waits_holds_up_one_agent_only(
    workers: list[Worker], agents: dict[str, ToolExecutor], admin: Any
) -> None:
    own = keys.agent_queue("vault", "sre")
    with stopped(*workers):
        calls = {priority: submit(agents["sre"], 3, "vault.wait", priority=priority) for priority in PRIORITIES}
        others = submit(agents["dev"], 2, "vault.wait")
    assert outcomes(others) == {"ok": 2}
    wait_until(lambda: sum(map(admin.llen, lists_of(own))) == 7, "two of nine were in rate")
    assert outcomes(submit(agents["ops"], 2, "vault.wait")) == {"ok": 2}
    assert outcomes(submit(agents["sre"], 8)) == {"ok": 8}  # of another server
    # They were not taken and put back: nothing of them is known to any worker.
    waiting = [call for each in calls.values() for call in each if admin.zscore(keys.waiting_key(own), call.id)]
    assert len(waiting) == 7
    assert not any(admin.exists(keys.call_marker(call.id)) for call in waiting)
    for call in waiting:
        call.cancel()
    assert outcomes(waiting) == {ErrorCode.CANCELLED: 7}
    ran = [call.result() for each in calls.values() for call in each if call not in waiting]
    assert [result.outcome for result in ran] == [Outcome.OK] * 2
    assert {result.principal for result in ran} == {"sre"}
