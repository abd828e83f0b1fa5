"""One worker holds an isolated session, and calls that go to this worker are neither lost nor doubled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import redis

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.session_directory import (
    Bounds,
    Claim,
    ClaimState,
    SessionDirectory,
    session_key_of,
)
from tarsy_tasks.broker.session_handover import forward, take_back

T = TypeVar("T")
KEY = session_key_of("desk", "sre", "r7")
HOME = "mcp.desk:a:sre"
LEASE_S = 20.0
Ask = Callable[[SessionDirectory], Coroutine[Any, Any, T]]


def ask(client: redis.Redis, instance: str, question: Ask[T]) -> T:
    """What the directory says to a worker."""

    async def run() -> T:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        try:
            return await question(SessionDirectory(exchange, instance, LEASE_S))
        finally:
            exchange.close()

    return asyncio.run(run())


def claim(client: redis.Redis, instance: str, tag: str, principal: str = "sre", **more: bool) -> Claim:
    return ask(client, instance, lambda directory: directory.claim("desk", KEY, principal, tag, **more))


def bound_of(claim: Claim) -> str:
    """Which bound was reached; empty if the session may be opened."""
    return claim.reason if claim.state is ClaimState.FULL else ""


def announce(table: Deliveries, *instances: str) -> None:
    for instance in instances:
        fleet.announce(table.exchange, instance, ["desk"])


def test_one_worker_holds_it(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "a", "b")
    assert claim(client, "a", "t1", is_full=True).state is ClaimState.FULL
    assert claim(client, "a", "t1").state is ClaimState.CLAIMED
    assert client.ttl(KEY) > 0
    assert claim(client, "a", "t2", is_held=True).state is ClaimState.HELD
    assert claim(client, "b", "t3") == Claim(ClaimState.ELSEWHERE, "a")
    ask(client, "a", lambda directory: directory.release("desk", KEY))
    assert claim(client, "b", "t5", opens=False).state is ClaimState.NONE
    assert not client.exists(KEY)


def test_a_worker_that_dies_before_it_opens_leaves_nothing(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "a", "b")
    claim(client, "a", "t1")
    fleet.leave(table.exchange, "a")
    assert claim(client, "b", "t1").state is ClaimState.CLAIMED


def test_what_was_given_up_is_not_opened(table: Deliveries, client: redis.Redis) -> None:
    """A worker that stops gives up its sessions; a call that has just opened one goes elsewhere."""
    announce(table, "a", "b")
    claim(client, "a", "t1")
    ask(client, "a", lambda directory: directory.release("desk", KEY, "its worker was stopped."))
    assert not ask(client, "a", lambda directory: directory.mark_open(KEY))
    assert claim(client, "b", "t1").state is ClaimState.CLAIMED
    assert not ask(client, "a", lambda directory: directory.mark_open(KEY))
    assert ask(client, "b", lambda directory: directory.mark_open(KEY))


def test_sessions_are_bounded_per_server_and_agent(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "a")

    def open_run(run: str, principal: str) -> Claim:
        bounds, key = Bounds(server=3, agent=2), session_key_of("desk", principal, run)
        return ask(client, "a", lambda directory: directory.claim("desk", key, principal, run, bounds=bounds))

    opened = [
        bound_of(open_run(run, principal)) for run, principal in zip("12345", ["sre"] * 3 + ["dev"] * 2, strict=True)
    ]
    assert opened == ["", "", "agent", "", "server"]
    ask(client, "a", lambda directory: directory.release("desk", session_key_of("desk", "sre", "1")))
    assert [bound_of(open_run("5", "dev")), bound_of(open_run("6", "ops"))] == ["", "server"]
    # Two were not confirmed in time. One has another worker, which is gone; the other is confirmed now.
    client.hset(session_key_of("desk", "sre", "2"), "holder", "gone")
    for run, principal in (("2", "sre"), ("4", "dev")):
        client.zadd(keys.sessions_key("desk"), {f"{session_key_of('desk', principal, run)}\n{principal}": 1}, xx=True)
    ask(client, "a", lambda directory: directory.confirm([("desk", session_key_of("desk", "dev", "4"), "dev")]))
    assert [open_run("6", "dev").reason, open_run("6", "ops").state] == ["agent", "claimed"]


def test_an_outage_of_redis_removes_none(table: Deliveries, client: redis.Redis) -> None:
    """Nobody could confirm a session or say that it is alive for longer than a lease; then another one is claimed."""
    announce(table, "a", "b")
    key = session_key_of("desk", "sre", "1")

    def open_run(run: str) -> Claim:
        other, bounds = session_key_of("desk", "sre", run), Bounds(1, 1)
        return ask(client, "b", lambda directory: directory.claim("desk", other, "sre", run, bounds=bounds))

    ask(client, "a", lambda directory: directory.claim("desk", key, "sre", "1", bounds=Bounds(1, 1)))
    client.zadd(keys.sessions_key("desk"), {f"{key}\nsre": 1}, xx=True)
    client.zadd(keys.WORKERS, {"a": 1}, xx=True)
    client.hset(keys.SWEEPS, "last", client.time()[0] - 3 * LEASE_S)
    assert open_run("2").reason == "server"
    client.hset(keys.SWEEPS, "last", client.time()[0])
    assert open_run("2").state is ClaimState.CLAIMED, "its worker has not come back"


def test_a_long_outage_of_redis_takes_no_session_away(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "a", "b")
    claim(client, "a", "t1")
    ask(client, "a", lambda directory: directory.mark_open(KEY))
    long_ago = client.time()[0] - 600
    client.zadd(keys.WORKERS, {"a": long_ago, "b": long_ago}, xx=True)
    client.hset(keys.SWEEPS, "last", long_ago)
    announce(table, "b")  # which is the first that reaches Redis again
    assert claim(client, "b", "t2") == Claim(ClaimState.ELSEWHERE, "a")
    table.sweep(LEASE_S, LEASE_S * fleet.QUIET)
    assert claim(client, "b", "t2") == Claim(ClaimState.ELSEWHERE, "a"), "it gets time to say that it is alive"
    assert client.ttl(keys.WORKERS) > 600


def test_what_was_removed_counts_when_it_is_confirmed(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "b")

    def open_run(instance: str, run: str) -> Claim:
        key = session_key_of("desk", "sre", run)
        return ask(client, instance, lambda directory: directory.claim("desk", key, "sre", run, bounds=Bounds(2, 2)))

    ours = ("desk", session_key_of("desk", "sre", "1"), "sre")
    open_run("a", "1")
    # It counts as lost, because its worker stood still for longer than a lease.
    client.zadd(keys.sessions_key("desk"), {f"{ours[1]}\nsre": 1}, xx=True)
    open_run("b", "2")
    assert client.zcard(keys.sessions_key("desk")) == 1
    ask(client, "b", lambda directory: directory.confirm([ours]))
    assert client.zcard(keys.sessions_key("desk")) == 1, "that worker does not hold it"
    ask(client, "a", lambda directory: directory.confirm([ours]))
    assert open_run("b", "3").reason == "server"
    ask(client, "a", lambda directory: directory.release(*ours[:2]))
    ask(client, "a", lambda directory: directory.confirm([ours]))
    assert open_run("b", "3").state is ClaimState.CLAIMED, "it was released"


def test_that_it_was_lost_is_told_to_one_call(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "a", "b")
    claim(client, "a", "t1")
    ask(client, "a", lambda directory: directory.mark_open(KEY))
    fleet.leave(table.exchange, "a")
    # The worker that answers may be lost with its answer: the same call gets the same reply.
    assert [claim(client, "b", tag).state for tag in ("t2", "t2", "t3")] == ["lost", "lost", "claimed"]
    ask(client, "b", lambda directory: directory.mark_open(KEY))
    ask(client, "b", lambda directory: directory.release("desk", KEY, "it was idle."))
    assert claim(client, "a", "t4") == Claim(ClaimState.LOST, "", "it was idle.")
    assert claim(client, "a", "t5", restarts=True).state is ClaimState.CLAIMED


def test_what_redis_has_forgotten_is_told_to_one_call(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "a", "b")
    claim(client, "a", "t1")
    ask(client, "a", lambda directory: directory.mark_open(KEY))
    client.delete(KEY, keys.sessions_key("desk"))
    known = {"is_held": True, "had_state": True}
    assert claim(client, "a", "t2", opens=False, **known).state is ClaimState.NONE
    told = Claim(ClaimState.LOST, "", "Redis has lost who holds it.")
    assert [claim(client, "a", "t2", **known), claim(client, "b", "t2")] == [told, told]
    assert claim(client, "b", "t3").state is ClaimState.CLAIMED
    client.delete(KEY)
    assert claim(client, "a", "t4", restarts=True, **known).state is ClaimState.CLAIMED


def test_a_call_goes_to_its_worker_and_back_if_that_is_lost(table: Deliveries, client: redis.Redis) -> None:
    announce(table, "a", "b")
    claim(client, "a", "t1")
    table.publish(keys.with_priority(HOME, 3), "t2", '{"n": 2}')
    assert client.rpop(keys.with_priority(HOME, 3)) == b'{"n": 2}'
    passed_on = table.take(keys.with_priority(HOME, 3), "t2", str)
    target = keys.affinity_queue(HOME, "a")
    assert not forward(table.exchange, passed_on, KEY, "b"), "another worker holds it meanwhile"
    assert [forward(table.exchange, passed_on, KEY, "a") for _ in range(2)] == [True, True]
    assert client.lrange(keys.with_priority(target, 3), 0, -1) == [b'{"n": 2}']
    assert not client.zcard(keys.LEASES)
    taken = table.take(keys.with_priority(target, 3), "t2", str)
    assert (taken.queue, taken.count, taken.priority) == (target, 1, "interactive")
    assert keys.agent_of_queue(taken.queue) == "sre"
    assert keys.server_of_queue(taken.queue) == "desk"
    client.lpop(keys.with_priority(target, 3))
    table.requeue(taken)
    assert take_back(table.exchange, LEASE_S) == []
    fleet.leave(table.exchange, "a")
    assert take_back(table.exchange, LEASE_S) == ["t2"]
    assert client.lrange(keys.with_priority(HOME, 3), 0, -1) == [b'{"n": 2}']
    assert client.zscore(keys.waiting_key(HOME), "t2")
    assert not client.exists(keys.waiting_key(target), keys.with_priority(target, 3))
    assert take_back(table.exchange, LEASE_S) == []


def test_a_name_that_ends_with_another_agent_brings_nothing(table: Deliveries, client: redis.Redis) -> None:
    # What `dev` may write that may call every server.
    forged = f"{keys.affinity_queue(HOME, 'gone')}:a:dev"
    table.publish(forged, "t1", "{}")
    assert take_back(table.exchange, LEASE_S) == []
    assert client.llen(forged) == 1
    assert not client.exists(HOME)
