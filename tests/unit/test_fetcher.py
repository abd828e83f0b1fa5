"""The fetcher beside what may happen: messages that come at a bad moment, connections that end, damaged markers."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.process.bulkhead import Bulkhead
from tarsy_tasks.worker.process.fetcher import QueueFetcher
from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tests.processes import until, wait_until
from tests.redis_proxy import HangUp, RedisProxy, through
from tests.unit.test_fetch import CALLS, OTHERS, START_S, Sink, message, run

pytestmark = pytest.mark.keeps_keys  # messages, which nobody answers here

TRACK = b"CACHING"
FETCH = b"EVALSHA"


@pytest.fixture
def proxy(client: Any) -> Iterator[RedisProxy]:
    with RedisProxy(client.connection_pool.connection_kwargs["port"]).running() as proxy:
        yield proxy


@pytest.fixture
def proxied(redis_url: str, proxy: RedisProxy) -> Iterator[Any]:
    """Redis, through the proxy."""
    with redis.Redis.from_url(f"{through(proxy, redis_url)}?protocol=3") as found:
        yield found


def push(client: Any, *call_ids: str) -> None:
    for call_id in call_ids:
        client.lpush(CALLS, message(call_id))


def test_a_message_between_the_look_and_the_wait_is_taken(client: Any, proxied: Any, proxy: RedisProxy) -> None:
    sink = Sink()

    async def act(_: QueueFetcher) -> None:
        push(client, "a0")
        await sink.until("a0")
        proxy.step_in(TRACK, lambda: push(client, "a2"))
        push(client, "a1")
        await sink.until("a0", "a1", "a2")

    run(proxied, sink, act)


def test_a_connection_lost_during_a_stop_is_not_opened_again(client: Any, proxied: Any, proxy: RedisProxy) -> None:
    is_stopping = threading.Event()
    is_looking = threading.Event()

    def hang_up() -> None:
        is_looking.set()
        is_stopping.wait(20)
        raise HangUp

    async def act(fetcher: QueueFetcher) -> None:
        proxy.step_in(FETCH, hang_up)
        push(client, "a0")
        await until(lambda: is_looking.is_set())
        before = asyncio.all_tasks()
        stop = asyncio.get_running_loop().create_task(fetcher.stop())
        await asyncio.sleep(0)
        is_stopping.set()
        await stop
        assert asyncio.all_tasks() <= before

    run(proxied, Sink(), act)


def test_a_start_that_takes_too_long_has_not_begun(client: Any) -> None:
    loop, is_let_in = SessionLoop(), threading.Event()
    late, sink = Sink(), Sink()

    def find_pool() -> Any:
        is_let_in.wait(20)
        return client.connection_pool

    async def acted() -> None:
        fetcher = QueueFetcher(find_pool, Bulkhead(), loop)
        try:
            with pytest.raises(TimeoutError):
                await fetcher.start(late, 0.1)
            is_let_in.set()
            fetcher.consume(CALLS, [CALLS])
            push(client, "a0")
            await fetcher.start(sink, START_S)
            await sink.until("a0")
        finally:
            await fetcher.stop()
            fetcher.close()

    loop.start()
    try:
        loop.submit(acted()).result(40)
    finally:
        loop.stop()
    assert late.received == []


def test_a_lasting_refusal_is_said_once_and_when_it_is_over(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    client.acl_setuser("limited", enabled=True, nopass=True, keys=["*"], commands=["+@all"])
    url = f"redis://limited:any@127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"

    def said(word: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if word in record.getMessage()]

    async def act(_: QueueFetcher) -> None:
        client.execute_command("ACL", "SETUSER", "limited", "-client|tracking")
        client.client_kill_filter(user="limited")
        await until(lambda: said("no permissions"))
        client.execute_command("ACL", "SETUSER", "limited", "+client|tracking")
        push(client, "a0")
        await sink.until("a0")

    with caplog.at_level(logging.WARNING), redis.Redis.from_url(url) as limited:
        run(limited, sink, act)
    client.acl_deluser("limited")
    client.acl_log_reset()
    assert len(said("cannot be opened again")) == 2, caplog.text
    assert len(said("resolved after")) == 1


@pytest.mark.parametrize(
    "rules",
    [
        # Those of an earlier version.
        ["~mcp.*", "~tarsy:waiting:*", "~tarsy:unacked", "~tarsy:leases", "~tarsy:call:*", "~tarsy:withdrawn:*"],
        ["~*", "-spop"],
    ],
)
def test_a_user_without_the_rights_for_agents_serves_the_others(
    client: Any, caplog: pytest.LogCaptureFixture, rules: list[str]
) -> None:
    sink = Sink()
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "&*", "+@all", *rules)
    url = f"redis://limited:any@127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"

    async def act(_: QueueFetcher) -> None:
        client.lpush(keys.agent_queue("desk", "sre"), message("b0"))
        client.sadd(keys.agents_key("desk"), "sre")
        push(client, "a0")
        await sink.until("a0")
        push(client, "a1")
        await sink.until("a0", "a1")

    with caplog.at_level(logging.WARNING), redis.Redis.from_url(url) as limited:
        run(limited, sink, act)
    client.acl_deluser("limited")
    client.acl_log_reset()
    assert caplog.text.count("are not served, because Redis refuses it") == 1


def test_agents_wake_the_fetcher(client: Any) -> None:
    sink = Sink()

    async def act(_: QueueFetcher) -> None:
        for n in range(5):
            client.lpush(keys.agent_queue("desk", "sre"), message(f"b{n}"))
            client.sadd(keys.agents_key("desk"), "sre", "nobody")
            push(client, f"a{n}")
            await until(lambda count=2 * (n + 1): len(sink.received) == count)

        await until(lambda: not client.exists(keys.agents_key("desk"), keys.shares_key("desk")))

    run(client, sink, act)
    assert sorted(sink.received) == [f"{letter}{n}" for letter in "ab" for n in range(5)]


def test_names_added_in_vain_cost_a_look_each_ten_ms(client: Any) -> None:
    bulkhead = Bulkhead()
    bulkhead.open(8, [ServerConfig(name=name, command="x") for name in ("desk", "shop")])
    bulkhead.hold_back("shop")

    def add(count: int) -> None:
        for n in range(count):
            client.sadd(keys.agents_key("desk"), f"junk{n}")

    async def act(fetcher: QueueFetcher) -> None:
        fetcher.consume(OTHERS, [OTHERS])  # it cannot be served, which must not end the pauses
        client.lpush(OTHERS, message("b0"))
        client.config_resetstat()
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(add, 3000)
        looks = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert looks <= 100 * (asyncio.get_running_loop().time() - began) + 5

    run(client, Sink(), act, bulkhead)


def test_a_call_in_an_unknown_state_stops_no_other(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()

    async def act(_: QueueFetcher) -> None:
        client.hset(keys.call_marker("odd"), "mark", "half begun")
        client.set(keys.call_marker("broken"), "not a hash")
        push(client, "a0", "odd", "broken", "a1")
        await sink.until("a0", "a1")
        for tag in ("odd", "broken"):
            await until(lambda tag=tag: client.hget(keys.call_marker(tag), "suspect") == b"1")

    run(client, sink, act)
    assert caplog.text.count("cannot be run") == 2
    assert "half begun" in caplog.text
    wait_until(lambda: client.zcard(keys.LEASES) == 4, "each has a lease, which lapses")
