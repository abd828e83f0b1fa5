"""Fair shares: in what order the queues of bound agents are served, and what agents may write without harm."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.dead_letters import retry
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.fetch import FetchedMessage, read_fetched
from tarsy_tasks.broker.principals import principal_of
from tarsy_tasks.broker.script import Script
from tarsy_tasks.broker.shares import count_waiting, declare_fair_fetch, forget_agents
from tarsy_tasks.celery_app import build_app

SET, SHARED = keys.agents_key("desk"), keys.queue("desk")
FAIR = declare_fair_fetch({})
NEVER_S = 1e12
"""How long nobody has to have swept, for a sweep to restore nothing."""


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found
        found.flushall()


def text_of(tag: str) -> str:
    headers = {"task": "tarsy.call_tool", "id": tag}
    return json.dumps({"body": "", "headers": headers, "properties": {"delivery_tag": tag}})


def send(table: Deliveries, agent: str, *tags: str) -> None:
    for tag in tags:
        table.publish(keys.agent_queue("desk", agent), tag, text_of(tag))


def take(table: Deliveries, room: int = 16, script: Script[Any, Any] = FAIR) -> list[FetchedMessage]:
    limits = f"{room} {room}"
    found = script.run(table.exchange, SET, SHARED, limits=limits, checks=0, room=room, kept=0, instance="w")
    return [read_fetched(each) for each in found]


def principals(found: list[FetchedMessage]) -> list[str]:
    return [principal_of(message.delivery.queue) for message in found]


def fill(client: Any, agent: str, count: int) -> None:
    """Calls of which only the number counts."""
    with client.pipeline(transaction=False) as pipeline:
        for n in range(count):
            pipeline.lpush(keys.agent_queue("desk", agent), text_of(f"{agent} {n}"))
        pipeline.sadd(SET, agent)
        pipeline.execute()


def test_three_calls_are_not_starved_by_ten_thousand(table: Deliveries, client: Any) -> None:
    fill(client, "noisy", 10_000)
    assert principals(take(table)) == ["noisy"] * 16
    fill(client, "quiet", 3)
    assert Counter(principals(take(table, 6))) == {"noisy": 3, "quiet": 3}
    assert principals(take(table)) == ["noisy"] * 16


def test_service_follows_the_weights(table: Deliveries, client: Any) -> None:
    weighted = declare_fair_fetch({"sre": 3, "dev": 0.5, "CN=x": 7})
    for agent in ("sre", "dev", "ops"):
        fill(client, agent, 100)
    found = Counter(principals([message for _ in range(9) for message in take(table, 10, weighted)]))
    assert found == {"sre": 60, "ops": 20, "dev": 10}


def test_each_of_ten_thousand_weights_counts(table: Deliveries, client: Any) -> None:
    weighted = declare_fair_fetch({f"a{n}": (1, 0.5, 3)[n % 3] for n in range(10_000)} | {"*": 2, "anonymous": 0.25})
    for agent in ("a0", "a1", "a9998", "b"):
        fill(client, agent, 100)
    for n in range(100):
        client.lpush(SHARED, text_of(f"other {n}"))
    found = Counter(principals([message for _ in range(9) for message in take(table, 6, weighted)]))
    assert found == {"a0": 8, "a1": 4, "a9998": 24, "b": 16, "anonymous": 2}


def test_all_without_a_weight_have_that_of_the_star(table: Deliveries, client: Any) -> None:
    weighted = declare_fair_fetch({"sre": 1, "*": 2})
    for agent in ("sre", "dev"):
        fill(client, agent, 100)
    found = Counter(principals([message for _ in range(9) for message in take(table, 10, weighted)]))
    assert found == {"sre": 30, "dev": 60}


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 1e-9])
def test_a_weight_that_would_end_the_order_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of 'sre'"):
        declare_fair_fetch({"sre": weight})


def test_all_others_have_one_share(table: Deliveries, client: Any) -> None:
    fill(client, "sre", 20)
    for n in range(20):
        client.lpush(SHARED, text_of(f"other {n}"))
    assert Counter(principals(take(table))) == {"sre": 8, "anonymous": 8}


def test_who_comes_again_and_again_gains_nothing(table: Deliveries, client: Any) -> None:
    fill(client, "steady", 100)
    served: list[str] = []
    for n in range(20):
        fill(client, "returning", 1 if n else 2)
        served += principals(take(table, 1))
    assert Counter(served) == {"steady": 10, "returning": 10}


def test_an_idle_share_saves_nothing_up(table: Deliveries, client: Any) -> None:
    fill(client, "early", 1)
    take(table)
    fill(client, "busy", 100)
    for _ in range(5):
        take(table, 10)
    fill(client, "early", 50)
    assert Counter(principals(take(table, 10))) == {"early": 5, "busy": 5}


def test_calls_of_one_agent_keep_their_order(table: Deliveries) -> None:
    send(table, "sre", "1", "2", "3")
    assert [message.delivery.tag for message in take(table)] == ["1", "2", "3"]


def test_what_is_full_or_has_no_room_stays(table: Deliveries, client: Any) -> None:
    fill(client, "sre", 5)
    assert take(table, 0) == []
    assert len(take(table, 2)) == 2
    assert client.llen(keys.agent_queue("desk", "sre")) == 3


def test_names_that_agents_make_up_are_dropped(table: Deliveries, client: Any) -> None:
    others = ["", "*", "a:b", "sré", "x" * 65, "\n", "x.check", "anonymous", "worker", "nobody", "../sre", b"\xff"]
    client.sadd(SET, *others)
    send(table, "sre", "1")
    assert principals(take(table)) == ["sre"]
    assert take(table) == []
    assert not client.exists(SET, keys.shares_key("desk"))


def test_a_flood_of_names_costs_a_fetch_no_more_than_a_thousand(table: Deliveries, client: Any) -> None:
    flood = "for n = 1, 10000 do redis.call('SADD', KEYS[1], ARGV[1] .. n) end"
    for n in range(20):
        client.eval(flood, 1, SET, f"junk{n}-")
    send(table, "sre", "1")
    before = client.scard(SET)
    take(table)
    assert before - client.scard(SET) == 1000
    found = next(found for _ in range(201) if (found := take(table)))
    assert principals(found) == ["sre"]


@pytest.mark.parametrize("key", [SET, keys.shares_key("desk"), keys.agent_queue("desk", "dev")])
def test_keys_of_another_type_stop_no_agent(table: Deliveries, client: Any, key: str) -> None:
    client.set(key, "junk")
    client.lpush(SHARED, text_of("other"))
    if key != SET:
        client.sadd(SET, "dev")
    send(table, "sre", "1")
    found = principals(take(table))
    assert "anonymous" in found
    # Where the announcement was lost, the sweep makes it again.
    table.sweep(0.0, NEVER_S)
    found += principals(take(table))
    assert set(found) == {"anonymous", "sre"}


def test_many_agents_cost_a_poll_no_more(table: Deliveries, client: Any) -> None:
    def commands() -> int:
        clients = [each for each in client.client_list() if each["name"] == "fetching"]
        return int(clients[0]["tot-cmds"])

    client.client_setname("admin")
    with redis.Redis(connection_pool=client.connection_pool) as other:
        other.client_setname("admin")
    table.exchange.execute(("CLIENT", "SETNAME", "fetching"))
    costs: list[int] = []
    for count in (1, 10_000):
        for n in range(count):
            client.sadd(SET, f"agent{n}")
            client.lpush(keys.agent_queue("desk", f"agent{n}"), text_of(f"{count} {n}"), text_of(f"{count} {n} b"))
        while client.scard(SET):
            take(table, 1)
        before = commands()
        assert len(take(table, 1)) == 1
        costs.append(commands() - before)
    assert costs[1] <= costs[0] + 3  # which list of an agent comes first changes from turn to turn


def test_what_goes_back_comes_again_from_its_own_queue(table: Deliveries, client: Any) -> None:
    own = keys.agent_queue("desk", "sre")
    send(table, "sre", "requeued", "delayed", "lost", "withdrawn")
    requeued, delayed, lost, _ = (message.delivery for message in take(table))
    table.requeue(requeued)
    assert table.delay(delayed, wait_s=0.01)
    assert [each.delivery.tag for each in take(table)] == ["requeued"]
    client.zadd(keys.LEASES, {lost.lease: 1})
    table.sweep(1000.0, NEVER_S)
    client.zadd(keys.DELAYED, {delayed.lease: 1})
    table.release_due()
    found = take(table)
    assert {each.delivery.tag for each in found} == {"lost", "delayed"}
    assert {each.delivery.queue for each in found} == {own}


def test_a_sweep_that_may_not_announce_reaches_all(table: Deliveries, client: Any) -> None:
    client.acl_setuser("older", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-sadd"])
    table.publish(SHARED, "other", text_of("other"))
    send(table, "sre", "lost")
    for message in take(table):
        client.zadd(keys.LEASES, {message.delivery.lease: 1})
    send(table, "sre", "waiting")
    client.zadd(keys.waiting_key(keys.agent_queue("desk", "sre")), {"waiting": 1})
    own = {**client.connection_pool.connection_kwargs, "username": "older", "password": "any"}
    with redis.Redis(connection_pool=redis.ConnectionPool(**own)) as older:
        exchange = RedisExchange(older.connection_pool)
        assert set(Deliveries(lambda: exchange).sweep(1000.0, NEVER_S).restored) == {"other", "lost"}
    client.acl_deluser("older")
    client.acl_log_reset()


def test_a_requeue_that_may_not_announce_is_whole(table: Deliveries, client: Any) -> None:
    send(table, "sre", "a")
    (message,) = take(table)
    client.acl_setuser("older", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-sadd"])
    own = {**client.connection_pool.connection_kwargs, "username": "older", "password": "any"}
    with redis.Redis(connection_pool=redis.ConnectionPool(**own)) as older:
        exchange = RedisExchange(older.connection_pool)
        Deliveries(lambda: exchange).requeue(message.delivery)
    client.acl_deluser("older")
    client.acl_log_reset()
    assert client.hget(keys.call_marker("a"), "deliveries") == b"0"
    assert client.llen(keys.agent_queue("desk", "sre")) == 1


def test_a_dead_letter_goes_back_to_its_agent(table: Deliveries, client: Any) -> None:
    body = json.dumps([["desk", "echo", {}, {}], {}, {}])
    text = json.dumps({**json.loads(text_of("dead")), "body": body})
    table.publish(keys.agent_queue("desk", "sre"), "dead", text)
    (message,) = take(table)
    table.give_up("dead")
    table.mark_quarantined("dead")
    client.zadd(keys.LEASES, {message.delivery.lease: 1})
    table.sweep(1000.0, NEVER_S)
    assert client.exists(keys.dead_letter_key("dead"))
    assert retry(client, "dead")
    assert principals(take(table)) == ["sre"]


def test_agents_queues_are_counted_with_that_of_their_server(table: Deliveries, client: Any) -> None:
    fill(client, "sre", 5)
    fill(client, "dev", 3)
    take(table, 1)
    fill(client, "sre", 1)
    client.lpush(SHARED, text_of("other"))
    client.set(keys.queue("shop"), "junk")
    assert [waiting.total for waiting in count_waiting(client, [SHARED, keys.queue("shop")])] == [9, 0]
    assert sorted(forget_agents(table.exchange, "desk")) == [keys.agent_queue("desk", name) for name in ("dev", "sre")]


def test_a_purge_empties_the_agents_queues_of_a_server(table: Deliveries, client: Any, redis_url: str) -> None:
    send(table, "sre", "1", "2", "3")
    send(table, "dev", "4")
    taken, *_ = take(table, 2)
    assert table.delay(taken.delivery, wait_s=60)
    table.publish(SHARED, "5", text_of("5"))
    with closing(build_app({"broker_url": redis_url})) as app, app.connection_for_write() as connection:
        assert connection.channel().queue_purge("mcp.desk") == 4
    assert take(table) == []
    assert not client.exists(SET, SHARED, keys.DELAYED, *map(keys.agent_queue, ("desk",) * 2, ("sre", "dev")))
