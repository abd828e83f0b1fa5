"""Taking messages: popped and leased in one step, up to what there is room for, and nothing is lost on the way."""

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.fetch import FetchedMessage, fetch, read_fetched
from tarsy_tasks.broker.messages import DamagedMessage
from tarsy_tasks.broker.received_json import LARGEST_BYTES
from tarsy_tasks.worker.process.bulkhead import Bulkhead
from tarsy_tasks.worker.process.fetcher import QueueFetcher
from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tests.processes import until, wait_until
from tests.redis_users import as_user

CALLS, CHECKS, OTHERS = "mcp.desk", "mcp.desk.check", "mcp.shop"
LEASE_S = 0.2
START_S = 15


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found
        found.flushall()


def message(call_id: str, **headers: Any) -> str:
    given = {"task": "tarsy.call_tool", "id": call_id, **headers}
    return json.dumps({"body": "", "headers": given, "properties": {"delivery_tag": "tag"}})


def push(client: Any, queue: str, *call_ids: str) -> None:
    """As a producer that writes no entries."""
    for call_id in call_ids:
        client.lpush(queue, message(call_id))


def take(table: Deliveries, *names: str, limits: str = "16", room: int = 16, **more: int) -> list[FetchedMessage]:
    given = {"checks": 0, "kept": 0, "instance": "w", **more}
    return [read_fetched(each) for each in fetch.run(table.exchange, *names, limits=limits, room=room, **given)]


def tags(found: list[FetchedMessage]) -> list[str]:
    return [each.delivery.tag for each in found]


def test_a_message_is_leased_and_has_an_entry_when_it_is_popped(table: Deliveries, client: Any) -> None:
    push(client, CALLS, "foreign")
    table.publish(CALLS, "own", message("own"), 9.0)
    (foreign, own) = take(table, CALLS)
    assert (foreign.delivery.queue, foreign.delivery.count, foreign.delivery.state) == (CALLS, 1, CallState.NONE)
    assert (foreign.text.decode(), own.text.decode()) == (message("foreign"), message("own"))
    assert client.hgetall(keys.UNACKED) == {
        b"foreign": f"{CALLS}\n\n{message('foreign')}".encode(),
        b"own": f"{CALLS}\n9.000\n{message('own')}".encode(),
    }
    assert set(client.zrange(keys.LEASES, 0, -1)) == {b"mcp.desk\nforeign", b"mcp.desk\nown"}
    assert client.llen(CALLS) == client.zcard(keys.waiting_key(CALLS)) == 0


def test_what_a_lost_worker_fetched_is_delivered_again(table: Deliveries, client: Any) -> None:
    push(client, CALLS, "foreign")
    table.publish(CALLS, "own", message("own"))
    table.sweep(LEASE_S, 2 * LEASE_S)
    assert len(take(table, CALLS)) == 2  # and the worker is killed before it reads this
    restored = wait_until(lambda: table.sweep(LEASE_S, 2 * LEASE_S).restored, "their leases lapse")
    assert set(restored) == {"foreign", "own"}
    assert [each.delivery.count for each in take(table, CALLS)] == [2, 2]


def test_every_queue_has_its_turn_and_its_limit(table: Deliveries, client: Any) -> None:
    push(client, CALLS, *(f"a{number}" for number in range(40)))
    push(client, OTHERS, "b0", "b1")
    assert tags(take(table, CALLS, OTHERS, limits="3 9")) == ["a0", "b0", "a1", "b1", "a2"]
    assert tags(take(table, CALLS, limits="9", room=5)) == ["a3", "a4", "a5", "a6", "a7"]


def test_large_messages_come_one_by_one_in_their_order(table: Deliveries, client: Any) -> None:
    push(client, CALLS, "a0")
    client.lpush(CALLS, message("a1", argsrepr="x" * 1024 * 1024))
    push(client, CALLS, "a2", "a3")
    first = take(table, CALLS)
    assert tags(first) == ["a0", "a1"]
    assert first[1].delivery.size_bytes > 1024 * 1024
    assert tags(take(table, CALLS)) == ["a2", "a3"]


def test_the_last_room_is_for_checks(table: Deliveries, client: Any) -> None:
    push(client, CALLS, "a0", "a1", "a2")
    push(client, CHECKS, "c0", "c1")
    assert tags(take(table, CALLS, room=2, kept=1)) == ["a0"]
    assert tags(take(table, CHECKS, CALLS, limits="1 9", checks=1, room=2, kept=1)) == ["c0"]
    assert tags(take(table, CHECKS, CALLS, limits="1 9", checks=1, room=1, kept=1)) == ["c1"]


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        (message("t1", argsrepr="half a character: \ud83d"), "t1"),
        (message("t1", task="reports.build"), "tag"),
        (json.dumps({"headers": {"id": 7}, "properties": {"delivery_tag": 7}}), None),
        ("[" * 5000, None),
        ("no message", None),
        (message("x" * 1001), "tag"),
    ],
)
def test_whatever_is_in_a_queue_has_a_tag(table: Deliveries, client: Any, text: str, tag: str | None) -> None:
    client.lpush(CALLS, text)
    (found,) = take(table, CALLS)
    assert found.text.decode() == text
    assert (found.delivery.tag == tag) if tag else len(found.delivery.tag) == 40
    assert client.hexists(keys.UNACKED, found.delivery.tag)


@pytest.mark.parametrize("odd", [r"\ud83d", r"\\ud83d\ud83d", r"\\\ud83d\\ud83d\udc00", r"\u00e9\n\ud83dabcd"])
@pytest.mark.parametrize("name", ["odd", r"id\ud83d", r"task\udc00"])
def test_half_of_a_character_hides_no_id(table: Deliveries, client: Any, name: str, odd: str) -> None:
    text = message("t1").replace('"t1"', f'"t1", "{name}": "{odd}"')
    assert json.loads(text)["headers"]["id"] == "t1"
    client.lpush(CALLS, text)
    assert tags(take(table, CALLS)) == ["t1"]


def test_a_message_with_two_ids_is_not_taken(table: Deliveries, client: Any) -> None:
    client.lpush(CALLS, message("é" * 600))  # an id of 600 characters, and too many bytes for Redis
    with pytest.raises(DamagedMessage, match="another id"):
        take(table, CALLS)


def test_a_marker_that_was_overwritten_stops_only_its_own_call(table: Deliveries, client: Any) -> None:
    push(client, CALLS, "a0", "broken", "a1")
    client.set(keys.call_marker("broken"), "not a hash")
    replies = fetch.run(table.exchange, CALLS, limits="16", room=16, checks=0, kept=0, instance="w")
    first, broken, last = replies
    assert tags([read_fetched(first), read_fetched(last)]) == ["a0", "a1"]
    with pytest.raises(DamagedMessage, match="unknown state"):
        read_fetched(broken)
    assert client.zscore(keys.LEASES, f"{CALLS}\nbroken"), "it is not lost"
    assert client.hget(keys.call_marker("broken"), "mark") != b"begun"
    with pytest.raises(ValueError, match="overwritten"):  # nor does kombu's fetch run it, or fail for good
        table.take(CALLS, "broken", lambda: message("broken"))


def test_a_command_that_is_refused_loses_no_message(table: Deliveries, client: Any, redis_url: str) -> None:
    push(client, CALLS, "a0", "a1", "a2")
    client.acl_setuser("limited", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-zadd"])
    url = as_user(redis_url, "limited")
    try:
        with redis.Redis.from_url(url) as limited, pytest.raises(ResponseError, match="zadd"):
            take(Deliveries(lambda: RedisExchange(limited.connection_pool)), CALLS)
    finally:
        client.acl_deluser("limited")
        client.acl_log_reset()
    assert tags(take(table, CALLS)) == ["a0", "a1", "a2"]


def test_a_message_that_is_too_large_does_not_reach_a_worker(table: Deliveries, client: Any) -> None:
    client.lpush(CALLS, b" " * (LARGEST_BYTES + 1))
    (found,) = take(table, CALLS)
    assert (found.text, found.payload) == (b"", None)
    assert client.hexists(keys.UNACKED, found.delivery.tag)


class Sink:
    """Where the messages of a fetcher go; it has so much room."""

    def __init__(self, room: int = 99) -> None:
        self.room = room
        self.received: list[str] = []
        self.given_back: list[str] = []

    def receive(self, message: FetchedMessage) -> None:
        self.room -= 1
        self.received.append(message.delivery.tag)

    def give_back(self, message: FetchedMessage) -> None:
        self.given_back.append(message.delivery.tag)

    def spare(self) -> int:
        return self.room

    async def until(self, *received: str) -> None:
        await until(lambda: self.received == list(received), 5)


def run(
    client: Any,
    sink: Sink,
    act: Callable[[QueueFetcher], Awaitable[None]],
    bulkhead: Bulkhead | None = None,
    instance: str = "",
) -> None:
    loop = SessionLoop()
    loop.start()

    async def acted() -> None:
        fetcher = QueueFetcher(lambda: client.connection_pool, bulkhead or Bulkhead(), loop, instance=instance)
        try:
            await fetcher.start(sink, START_S)
            fetcher.consume(CALLS, [CALLS])
            await act(fetcher)
        finally:
            await fetcher.stop()
            fetcher.close()

    try:
        loop.submit(acted()).result(20)
    finally:
        loop.stop()


def test_a_message_that_comes_wakes_the_fetcher_each_time(client: Any) -> None:
    sink = Sink()

    async def act(_: QueueFetcher) -> None:
        for number in range(3):
            push(client, CALLS, f"a{number}")
            await sink.until(*(f"a{each}" for each in range(number + 1)))

    run(client, sink, act)


def test_a_fetcher_takes_what_there_is_room_for(client: Any) -> None:
    sink = Sink(room=2)

    async def act(fetcher: QueueFetcher) -> None:
        push(client, CALLS, "a0", "a1", "a2", "a3")
        await sink.until("a0", "a1")
        assert client.llen(CALLS) == 2
        sink.room = 1
        fetcher.wake()
        await sink.until("a0", "a1", "a2")

    run(client, sink, act)


def test_a_call_that_goes_on_to_another_worker_is_not_received(client: Any) -> None:
    sink, name, beside = Sink(), "desk:run", keys.affinity_queue(CALLS, "holder")
    client.hset(keys.session_key(name), mapping={"holder": "holder", "home": CALLS, "lease_s": 60})
    client.zadd(keys.WORKERS, {"holder": client.time()[0]})

    async def act(fetcher: QueueFetcher) -> None:
        for number in range(3):
            client.hset(keys.UNACKED, f"a{number}", f"{CALLS}\n\n{message(f'a{number}')}")
            client.lpush(CALLS, message(f"a{number}", session=name))
        push(client, CALLS, "b0")
        await sink.until("b0")
        fetcher.consume(beside, [beside])
        await sink.until("b0", "a0", "a1", "a2")
        fetcher.cancel(beside)
        push(client, CALLS, "b1")
        await sink.until("b0", "a0", "a1", "a2", "b1")

    run(client, sink, act)
    assert sink.received == ["b0", "a0", "a1", "a2", "b1"]


def test_a_fetcher_is_woken_alone_for_its_sessions(client: Any) -> None:
    sink, home = Sink(), keys.agent_queue("desk", "sre")
    beside, quiet = keys.affinity_queue(home, "holder"), keys.quiet_agents_key("desk")

    def wake(tag: str) -> None:
        push(client, home, tag)
        client.sadd(quiet, "sre")
        client.set(keys.wake_key("desk", "holder"), 1)

    async def act(fetcher: QueueFetcher) -> None:
        fetcher.consume(beside, [beside])
        for number in range(3):
            wake(f"a{number}")
            await sink.until(*(f"a{each}" for each in range(number + 1)))
        fetcher.cancel(CALLS)
        wake("a3")
        fetcher.consume(CALLS, [CALLS])
        await sink.until("a0", "a1", "a2", "a3")

    run(client, sink, act, instance="holder")
    assert not client.exists(keys.agents_key("desk"), quiet)


def test_a_fetcher_that_stopped_takes_nothing(client: Any) -> None:
    sink = Sink()

    async def act(fetcher: QueueFetcher) -> None:
        push(client, CALLS, "a0")
        await sink.until("a0")
        push(client, CALLS, "a1")  # it may be on its way
        await fetcher.stop()
        push(client, CALLS, "a2")
        await fetcher.start(sink, START_S)

    run(client, sink, act)
    assert sink.received + sink.given_back in (["a0"], ["a0", "a1"])
    assert client.llen(CALLS) >= 1


def test_queues_come_and_go(client: Any) -> None:
    sink = Sink()

    async def act(fetcher: QueueFetcher) -> None:
        push(client, OTHERS, "b0")
        fetcher.consume(OTHERS, [OTHERS])
        await sink.until("b0")
        fetcher.cancel(CALLS)
        push(client, CALLS, "a0")
        push(client, OTHERS, "b1")
        await sink.until("b0", "b1")

    run(client, sink, act)
    assert client.llen(CALLS) == 1


def test_a_fetcher_goes_on_after_what_may_happen_to_redis(client: Any) -> None:
    sink = Sink()

    async def act(_: QueueFetcher) -> None:
        client.script_flush()
        push(client, CALLS, "a0")
        await sink.until("a0")
        for each in client.client_list(_type="normal"):
            if int(each["id"]) > client.client_id():  # older ones are in Celery's pool, for other modules
                client.client_kill_filter(_id=each["id"])
        push(client, CALLS, "a1")
        await sink.until("a0", "a1")
        client.set("mcp.odd", "not a list")

    run(client, sink, act)


def test_a_key_that_is_not_a_queue_disturbs_no_other(client: Any) -> None:
    sink = Sink()

    async def act(fetcher: QueueFetcher) -> None:
        client.set(OTHERS, "not a list")
        fetcher.consume(OTHERS, [OTHERS])
        before = client.info("stats")["total_commands_processed"]
        push(client, CALLS, "a0")
        await sink.until("a0")
        push(client, CALLS, "a1")
        await sink.until("a0", "a1")
        assert client.info("stats")["total_commands_processed"] - before < 100, "it does not look again and again"

    run(client, sink, act)
