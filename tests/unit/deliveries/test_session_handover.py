"""A call whose message names its session goes to the worker that holds it, in the step that publishes it; if its agent
may not ask who holds it, in the step that takes it. What a bound agent sends has to wait for its turn there."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from tarsy_tasks.broker import fleet, keys, steps
from tarsy_tasks.broker.acl import AgentUser, build_users
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.fetch import FetchedMessage, fetch, read_fetched
from tarsy_tasks.broker.priority_lists import lists_of
from tarsy_tasks.broker.script import Script
from tarsy_tasks.broker.session_directory import SessionDirectory, session_key_of, session_name_of
from tarsy_tasks.broker.session_handover import publish_to_session, take_back
from tarsy_tasks.broker.shares import count_waiting, declare_fair_fetch, forget_agents
from tarsy_tasks.priorities import Priority

LEASE_S = 20.0
OWN, SHARED, OTHERS = keys.agent_queue("desk", "sre"), keys.queue("desk"), keys.agent_queue("desk", "dev")
SET, QUIET, WAKE = keys.agents_key("desk"), keys.quiet_agents_key("desk"), keys.wake_key("desk", "holder")
NAME, KEY = session_name_of("desk", "sre", "r7"), session_key_of("desk", "sre", "r7")
FAIR = declare_fair_fetch({"sre": 1, "dev": 1})


def text_of(tag: str, session: Any = NAME, task: str = "tarsy.call_tool") -> str:
    headers = {"task": task, "id": tag, "session": session}
    return json.dumps({"body": "", "headers": headers, "properties": {"delivery_tag": tag}})


def hold(table: Deliveries, client: Any, instance: str = "holder", home: str = OWN) -> None:
    """A live worker has the session."""

    async def claim() -> None:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        await SessionDirectory(exchange, instance, LEASE_S).claim("desk", KEY, "sre", "t0", home=home)
        exchange.close()

    fleet.announce(table.exchange, instance, ["desk"])
    asyncio.run(claim())


def take(
    table: Deliveries, instance: str, *names: str, room: int = 16, script: Script[Any, Any] = fetch
) -> list[FetchedMessage]:
    limits = " ".join([str(room)] * len(names))
    found = script.run(table.exchange, *names, limits=limits, checks=0, room=room, kept=0, instance=instance)
    return [read_fetched(each) for each in found if len(each) > 1]


def tags(found: list[FetchedMessage]) -> list[str]:
    return [each.delivery.tag for each in found]


@pytest.mark.parametrize("priority", [0, 3])
@pytest.mark.parametrize("home", [OWN, SHARED])
def test_it_is_moved_to_its_holder(table: Deliveries, client: Any, home: str, priority: int) -> None:
    hold(table, client, home=home)
    table.publish(keys.with_priority(home, priority), "t1", text_of("t1"), 9.0)
    assert take(table, "other", *lists_of(home)) == []
    target = keys.affinity_queue(home, "holder")
    assert client.llen(keys.with_priority(target, priority)) == 1
    assert not client.zcard(keys.LEASES), "nobody has taken it"
    assert (client.zcard(keys.waiting_key(home)), client.zcard(keys.waiting_key(target))) == (0, 1)
    (found,) = take(table, "holder", *lists_of(target))
    delivery = found.delivery
    assert (delivery.queue, delivery.count, delivery.state) == (target, 1, CallState.NONE)
    assert found.text.decode() == text_of("t1")
    assert client.hget(keys.UNACKED, "t1").startswith(f"{keys.with_priority(target, priority)}\n9.000\n".encode())


def test_one_of_several_names_is_enough(table: Deliveries, client: Any) -> None:
    hold(table, client)
    table.publish(OWN, "t1", text_of("t1", f"desk:of-another-name {NAME}"))
    assert take(table, "other", OWN) == []
    assert tags(take(table, "holder", keys.affinity_queue(OWN, "holder"))) == ["t1"]


def test_its_holder_keeps_it(table: Deliveries, client: Any) -> None:
    hold(table, client)
    table.publish(OWN, "t1", text_of("t1"))
    assert tags(take(table, "holder", OWN)) == ["t1"]


def die(table: Deliveries, _: Any) -> None:
    fleet.leave(table.exchange, "holder")


def give_up(_: Deliveries, client: Any) -> None:
    client.hset(KEY, "holder", "")


def forget(_: Deliveries, client: Any) -> None:
    client.delete(KEY)


def overwrite(_: Deliveries, client: Any) -> None:
    client.set(KEY, "not a hash")


@pytest.mark.parametrize("change", [die, give_up, forget, overwrite])
def test_without_a_holder_any_worker_takes_it(
    table: Deliveries, client: Any, change: Callable[[Deliveries, Any], None]
) -> None:
    hold(table, client)
    change(table, client)
    table.publish(OWN, "t1", text_of("t1"))
    assert tags(take(table, "other", OWN)) == ["t1"]


@pytest.mark.parametrize("session", ["", "desk:unknown", "\n", "s:desk", 7, None, ["desk"], NAME * 100])
def test_what_a_header_may_say_else_changes_nothing(table: Deliveries, client: Any, session: Any) -> None:
    hold(table, client)
    table.publish(OWN, "t1", text_of("t1", session))
    assert tags(take(table, "other", OWN)) == ["t1"]


def test_nobody_gets_into_the_queue_of_another_agent(table: Deliveries, client: Any) -> None:
    hold(table, client)
    for home in (OTHERS, SHARED):
        table.publish(home, home, text_of(home))
        (found,) = take(table, "other", home)
        assert found.delivery.queue == home, "its sender has no session there, whatever it says"
    assert not client.keys(keys.affinity_queue("*", "*"))


def test_only_what_nobody_has_had_is_moved(table: Deliveries, client: Any) -> None:
    hold(table, client)
    table.publish(OWN, "t1", text_of("t1"))
    (found,) = take(table, "holder", OWN)
    table.requeue(found.delivery)
    client.lpush(OWN, text_of("foreign"))  # of a producer that writes no entries
    table.publish(OWN, "t2", text_of("t2", task="tarsy.list_tools"))
    assert tags(take(table, "other", OWN)) == ["t1", "foreign", "t2"]


def test_a_call_that_is_withdrawn_on_its_way_does_not_run(table: Deliveries, client: Any) -> None:
    hold(table, client)
    table.publish(OWN, "t1", text_of("t1"))
    assert take(table, "other", OWN) == []
    client.set(keys.withdrawn_key("t1"), 1)
    assert client.hget(keys.call_marker("t1"), "taken"), "a worker records it"
    (found,) = take(table, "holder", keys.affinity_queue(OWN, "holder"))
    assert found.delivery.state is CallState.WITHDRAWN


def test_it_comes_back_when_its_holder_is_lost(table: Deliveries, client: Any) -> None:
    hold(table, client)
    table.publish(OWN, "t1", text_of("t1"))
    assert take(table, "other", OWN) == []
    assert take_back(table.exchange, LEASE_S) == []
    fleet.leave(table.exchange, "holder")
    assert take_back(table.exchange, LEASE_S) == ["t1"]
    (found,) = take(table, "other", OWN)
    assert (found.delivery.queue, found.delivery.count) == (OWN, 1)


def test_another_agent_cannot_exchange_it_on_its_way(table: Deliveries, client: Any) -> None:
    hold(table, client)
    table.publish(OWN, "t1", text_of("t1"))
    assert take(table, "other", OWN) == []
    fleet.leave(table.exchange, "holder")
    client.hset(keys.UNACKED, "t1", f"{OWN}\n\n{text_of('t1', 'forged')}")
    assert take_back(table.exchange, LEASE_S) == []
    assert not client.exists(OWN)


def test_moving_calls_leaves_the_room_to_others(table: Deliveries, client: Any) -> None:
    hold(table, client, home=SHARED)
    for n in range(10):
        table.publish(SHARED, f"s{n}", text_of(f"s{n}"))
    for n in range(3):
        table.publish(SHARED, f"p{n}", text_of(f"p{n}", ""))
    assert tags(take(table, "other", SHARED, room=2)) == ["p0", "p1"]
    assert client.llen(keys.affinity_queue(SHARED, "holder")) == 10


def test_one_look_moves_a_bounded_number(table: Deliveries, client: Any) -> None:
    hold(table, client, home=SHARED)
    for n in range(100):
        table.publish(SHARED, f"s{n}", text_of(f"s{n}"))
    found = take(table, "other", SHARED, room=2)
    moved = client.llen(keys.affinity_queue(SHARED, "holder"))
    assert (len(found), moved + client.llen(SHARED)) == (2, 98)
    assert 0 < moved < 98


def test_what_is_moved_uses_up_a_turn_of_its_agent(table: Deliveries, client: Any) -> None:
    hold(table, client)
    for n in range(4):
        table.publish(OWN, f"sre{n}", text_of(f"sre{n}"))
        table.publish(OTHERS, f"dev{n}", text_of(f"dev{n}", ""))
    found = take(table, "other", SET, SHARED, room=2, script=FAIR)
    assert {each.delivery.queue for each in found} == {OTHERS}
    assert client.llen(keys.affinity_queue(OWN, "holder")) in (1, 2, 3)


def publish(table: Deliveries, tag: str, queue: str = SHARED, sessions: str = NAME) -> None:
    home = keys.without_priority(queue)
    slots = {"queue": queue, "home": home, "tag": tag, "message": text_of(tag, sessions), "garbage_at": "9.000"}
    publish_to_session.run(table.exchange, **slots, sessions=sessions)


@pytest.mark.parametrize(("number", "priority"), [(0, "normal"), (3, "interactive")])
def test_it_is_published_to_its_holder(table: Deliveries, client: Any, number: int, priority: Priority) -> None:
    hold(table, client, home=SHARED)
    for _ in range(2):  # the first reply may be lost
        publish(table, "t1", keys.with_priority(SHARED, number), f"desk:of-another-name {NAME}")
    target = keys.affinity_queue(SHARED, "holder")
    assert client.zrange(keys.QUEUES, 0, -1) == [target.encode()], "a sweep looks there"
    assert (client.zcard(keys.waiting_key(SHARED)), client.zcard(keys.waiting_key(target))) == (0, 1)
    (found,) = take(table, "holder", *lists_of(target))
    assert (found.delivery.queue, found.delivery.count, found.delivery.priority) == (target, 1, priority)
    assert client.hget(keys.UNACKED, "t1").startswith(f"{keys.with_priority(target, number)}\n9.000\n".encode())


@pytest.mark.parametrize("change", [die, give_up, forget, overwrite])
def test_without_a_holder_it_is_published_as_usual(
    table: Deliveries, client: Any, change: Callable[[Deliveries, Any], None]
) -> None:
    hold(table, client, home=SHARED)
    change(table, client)
    publish(table, "t1")
    assert tags(take(table, "other", SHARED)) == ["t1"]


@pytest.mark.parametrize("sessions", ["", " ", "desk:unknown", "\n", "s:desk"])
def test_with_another_name_it_is_published_as_usual(table: Deliveries, client: Any, sessions: str) -> None:
    hold(table, client, home=SHARED)
    publish(table, "t1", sessions=sessions)
    assert tags(take(table, "other", SHARED)) == ["t1"]


def test_of_bound_agents_only_the_holder_is_woken(table: Deliveries, client: Any) -> None:
    hold(table, client)
    publish(table, "t1", OWN)
    assert (client.llen(OWN), client.smembers(QUIET), client.exists(SET)) == (1, {b"sre"}, 0)
    assert client.ttl(WAKE) > 0
    assert count_waiting(client, [SHARED])[0].total == 1
    (found,) = take(table, "holder", SET, SHARED, script=FAIR)
    assert (found.delivery.tag, found.delivery.queue, found.delivery.count) == ("t1", OWN, 1)
    assert not client.exists(QUIET)


def test_what_came_quietly_is_forgotten_with_the_rest(table: Deliveries, client: Any) -> None:
    hold(table, client)
    publish(table, "t1", OWN)
    assert forget_agents(table.exchange, "desk") == [OWN]
    assert not client.exists(QUIET)


def test_what_a_bound_agent_sends_waits_for_its_turn(table: Deliveries, client: Any) -> None:
    hold(table, client)
    for n in range(4):
        publish(table, f"sre{n}", OWN)
        table.publish(OTHERS, f"dev{n}", text_of(f"dev{n}", ""))
    found = take(table, "holder", SET, SHARED, room=4, script=FAIR)
    assert sorted(tags(found)) == ["dev0", "dev1", "sre0", "sre1"]


@pytest.mark.parametrize("priority", [0, 3])
def test_another_worker_that_looks_moves_it(table: Deliveries, client: Any, priority: int) -> None:
    hold(table, client)
    publish(table, "t1", keys.with_priority(OWN, priority))
    table.publish(OWN, "t2", text_of("t2", ""))
    assert tags(take(table, "other", SET, SHARED, script=FAIR)) == ["t2"]
    assert tags(take(table, "holder", *lists_of(keys.affinity_queue(OWN, "holder")))) == ["t1"]


def test_without_the_woken_worker_the_next_that_looks_takes_it(table: Deliveries, client: Any) -> None:
    hold(table, client)
    publish(table, "t1", OWN)
    fleet.leave(table.exchange, "holder")
    assert tags(take(table, "other", SET, SHARED, script=FAIR)) == ["t1"]


@contextmanager
def logged_in(client: Any, user: AgentUser, without: str = "") -> Iterator[Deliveries]:
    """As a user of Redis with its rules."""
    rules = build_users([user])[user.name].replace(without, "")
    client.execute_command("ACL", "SETUSER", user.name, "reset", "on", "nopass", *re.findall(r"\(.*?\)|\S+", rules))
    settings = client.connection_pool.connection_kwargs | {"username": user.name, "password": "any"}
    exchange = RedisExchange(redis.ConnectionPool(**settings))
    try:
        yield Deliveries(lambda: exchange)
        exchange.close_idle()
        assert not client.acl_log(), "nothing was tried that is not allowed"
    finally:
        client.acl_deluser(user.name)


@pytest.mark.parametrize("servers", [("desk",), ("*",)])
@pytest.mark.parametrize(("name", "home"), [("agent", SHARED), ("sre", OWN)])
def test_the_rules_of_agents_allow_it(
    table: Deliveries, client: Any, name: str, home: str, servers: tuple[str, ...]
) -> None:
    hold(table, client, home=home)
    with logged_in(client, AgentUser(name, servers)) as own:
        publish(own, "t1", keys.with_priority(home, 3))
        publish(own, "t2", home)
    if home == SHARED:
        assert sorted(tags(take(table, "holder", *lists_of(keys.affinity_queue(home, "holder"))))) == ["t1", "t2"]
    else:
        assert sorted(tags(take(table, "holder", SET, SHARED, script=FAIR))) == ["t1", "t2"]


@pytest.mark.parametrize(("name", "home"), [("agent", SHARED), ("sre", OWN)])
def test_with_rules_of_an_earlier_version_it_is_published(table: Deliveries, client: Any, name: str, home: str) -> None:
    hold(table, client, home=home)
    with logged_in(client, AgentUser(name, ("desk",)), without=f"(+zscore %R~{keys.WORKERS})") as own:
        publish(own, "t1", home)
    assert client.llen(home) == 1
    assert client.exists(SET) == (home == OWN)


def test_an_agent_sees_no_sessions_of_others(table: Deliveries, client: Any) -> None:
    hold(table, client)
    for server in ("desk", "*"):
        with logged_in(client, AgentUser("dev", (server,))) as own:
            assert own.exchange.execute(("HMGET", session_key_of("desk", "dev", "r7"), "holder"))[0] == [None]
            with pytest.raises(NoPermissionError):
                own.exchange.execute(("HMGET", KEY, "holder"))
            client.acl_log_reset()


def test_what_is_withdrawn_before_its_holder_had_it_is_gone(table: Deliveries, client: Any) -> None:
    hold(table, client, home=SHARED)
    publish(table, "t1", keys.with_priority(SHARED, 3))
    assert withdraw(table, "t1") == (b"", 0), "its agent records it"
    assert not client.hlen(keys.UNACKED)
    assert not client.keys("mcp.*"), "no worker sees it"


def test_its_holder_records_that_it_was_withdrawn(table: Deliveries, client: Any) -> None:
    hold(table, client, home=SHARED)
    table.publish(SHARED, "moved", text_of("moved"))
    assert take(table, "other", SHARED) == []
    publish(table, "taken")
    assert withdraw(table, "moved") == (b"", 1)
    assert tags(take(table, "holder", keys.affinity_queue(SHARED, "holder"))) == ["moved", "taken"]
    assert withdraw(table, "taken") == (b"", 1)


def test_what_was_published_to_a_lost_holder_comes_back(table: Deliveries, client: Any) -> None:
    hold(table, client, home=SHARED)
    publish(table, "t1", keys.with_priority(SHARED, 3))
    fleet.leave(table.exchange, "holder")
    assert take_back(table.exchange, LEASE_S) == ["t1"]
    (found,) = take(table, "other", *lists_of(SHARED))
    assert (found.delivery.queue, found.delivery.count, found.delivery.priority) == (SHARED, 1, "interactive")


def withdraw(table: Deliveries, tag: str) -> tuple[bytes, int]:
    state, is_taken = steps.withdraw.run(table.exchange, tag=tag, home=SHARED, cancel_ttl_s=9)
    return state, is_taken
