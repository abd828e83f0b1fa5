"""Priorities: in what order the calls of one sender are taken, what a number of Celery means, and that a call keeps its
priority wherever it goes."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tarsy_tasks import ToolCall, ToolExecutor, tool_signature
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.dead_letters import load, retry
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState
from tarsy_tasks.broker.fetch import FetchedMessage, fetch, read_fetched
from tarsy_tasks.broker.priority_lists import list_of, lists_of, number_of, priority_of_list, priority_of_number
from tarsy_tasks.broker.shares import Waiting, count_waiting, declare_fair_fetch
from tarsy_tasks.broker.steps import withdraw
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.config import load_config
from tarsy_tasks.priorities import PRIORITIES, Priority

SET, SHARED = keys.agents_key("desk"), keys.queue("desk")
OWN = keys.agent_queue("desk", "sre")
FAIR = declare_fair_fetch({})
NEVER_S = 1e12
"""How long nobody has to have swept, for a sweep to restore nothing."""
SEPARATOR = "\x06\x16"
ARGUMENTS = ["desk", "echo", {}, {}]


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found
        found.flushall()


def text_of(tag: str) -> str:
    body = json.dumps([ARGUMENTS, {}, {}])
    headers = {"task": "tarsy.call_tool", "id": tag}
    return json.dumps({"body": body, "headers": headers, "properties": {"delivery_tag": tag}})


def fill(client: Any, queue: str, priority: Priority, count: int = 100) -> None:
    """Calls of a producer that writes no entries."""
    with client.pipeline(transaction=False) as pipeline:
        for n in range(count):
            pipeline.lpush(list_of(queue, priority), text_of(f"{queue} {priority} {n}"))
        if agent := keys.agent_of_queue(queue):
            pipeline.sadd(SET, agent)
        pipeline.execute()


def take(table: Deliveries, room: int = 10, *, fairly: bool = True) -> list[FetchedMessage]:
    names = [*([SET] if fairly else []), *lists_of(SHARED)]
    limits = " ".join([str(room)] * len(names))
    script = FAIR if fairly else fetch
    found = script.run(table.exchange, *names, limits=limits, checks=0, room=room, kept=0, instance="w")
    return [read_fetched(each) for each in found]


def priorities(found: list[FetchedMessage]) -> Counter[str]:
    return Counter(message.delivery.priority for message in found)


@pytest.mark.parametrize("fairly", [True, False])
@pytest.mark.parametrize(
    ("waiting", "taken"),
    [
        (PRIORITIES, {"interactive": 7, "normal": 2, "batch": 1}),
        (("normal", "batch"), {"normal": 9, "batch": 1}),
        (("interactive", "normal"), {"interactive": 8, "normal": 2}),
        (("interactive", "batch"), {"interactive": 9, "batch": 1}),
        (("batch",), {"batch": 10}),
    ],
)
def test_none_of_ten_turns_starves_a_priority(
    table: Deliveries, client: Any, fairly: bool, waiting: tuple[Priority, ...], taken: dict[str, int]
) -> None:
    for priority in waiting:
        fill(client, SHARED, priority)
    for _ in range(3):
        assert priorities(take(table, fairly=fairly)) == taken


def test_priorities_count_within_the_share_of_an_agent(table: Deliveries, client: Any) -> None:
    for priority in PRIORITIES:
        fill(client, OWN, priority)
    found = take(table)
    assert priorities(found) == {"interactive": 7, "normal": 2, "batch": 1}
    assert {message.delivery.queue for message in found} == {OWN}


def test_an_agent_that_calls_all_interactive_gains_nothing(table: Deliveries, client: Any) -> None:
    fill(client, OWN, "interactive", 1000)
    fill(client, keys.agent_queue("desk", "dev"), "batch")
    fill(client, SHARED, "normal")
    found = [message for _ in range(10) for message in take(table, 15)]
    assert Counter(message.delivery.queue for message in found) == {OWN: 50, "mcp.desk:a:dev": 50, SHARED: 50}


def test_calls_of_one_priority_keep_their_order(table: Deliveries, client: Any) -> None:
    for priority in PRIORITIES:
        fill(client, OWN, priority, 30)
    found = [message.delivery for _ in range(9) for message in take(table)]
    for priority in PRIORITIES:
        assert [each.tag for each in found if each.priority == priority] == [f"{OWN} {priority} {n}" for n in range(30)]


@pytest.mark.parametrize("queue", [SHARED, OWN])
@pytest.mark.parametrize("priority", PRIORITIES)
def test_what_goes_back_keeps_its_priority(table: Deliveries, client: Any, queue: str, priority: Priority) -> None:
    for tag in ("requeued", "delayed", "lost", "dead"):
        table.publish(list_of(queue, priority), tag, text_of(tag))
    fill(client, queue, priority, 1)
    requeued, delayed, lost, dead, foreign = (message.delivery for message in take(table))
    table.requeue(requeued)
    table.requeue(foreign)
    assert table.delay(delayed, wait_s=60)
    table.give_up("dead")
    client.zadd(keys.LEASES, {lost.lease: 1, dead.lease: 1})
    client.zadd(keys.DELAYED, {delayed.lease: 1})
    assert table.sweep(1000.0, NEVER_S).restored == ("lost",)
    table.release_due()
    assert (letter := load(client, "dead")) is not None
    assert letter.queue == queue
    assert retry(client, "dead")
    assert client.llen(list_of(queue, priority)) == 5
    found = [message.delivery for message in take(table)]
    assert {each.tag for each in found} == {"requeued", foreign.tag, "delayed", "lost", "dead"}
    assert {(each.queue, each.priority) for each in found} == {(queue, priority)}


def test_a_message_that_is_lost_on_its_way_keeps_its_priority(table: Deliveries, client: Any) -> None:
    table.publish(list_of(OWN, "batch"), "a", text_of("a"))
    table.requeue(take(table)[0].delivery)
    client.rpop(list_of(OWN, "batch"))
    client.zadd(keys.waiting_key(OWN), {"a": 1})
    assert table.sweep(1000.0, NEVER_S).restored == ("a",)
    assert priorities(take(table)) == {"batch": 1}


@pytest.mark.parametrize(
    "name",
    [
        f"{OWN}{SEPARATOR}9",
        f"{OWN}{SEPARATOR}33",
        f"{OWN}{SEPARATOR}urgent",
        f"{OWN}{SEPARATOR}3{SEPARATOR}3",
        f"mcp.desk:a:dev{SEPARATOR}3",
        f"{SHARED}{SEPARATOR}3",
        f"{OWN}{SEPARATOR}",
    ],
)
def test_a_made_up_priority_in_an_entry_counts_for_nothing(table: Deliveries, client: Any, name: str) -> None:
    """Agents write entries: a message put back into a list that nobody serves would be lost."""
    table.publish(OWN, "a", text_of("a"))
    (lost,) = take(table)
    client.hset(keys.UNACKED, "a", f"{name}\n\n{text_of('a')}")
    client.zadd(keys.LEASES, {lost.delivery.lease: 1})
    assert table.sweep(1000.0, NEVER_S).restored == ("a",)
    (found,) = take(table)
    assert (found.delivery.queue, found.delivery.priority) == (OWN, "normal")


@pytest.mark.parametrize("queue", [SHARED, OWN])
def test_a_call_is_withdrawn_from_the_list_of_its_priority(table: Deliveries, client: Any, queue: str) -> None:
    for priority in PRIORITIES:
        table.publish(list_of(queue, priority), priority, text_of(priority))
    for priority in PRIORITIES:
        state, _ = withdraw.run(table.exchange, tag=priority, home=queue, cancel_ttl_s=60)
        assert state == CallState.NONE.encode()
    assert not client.exists(*lists_of(queue), keys.UNACKED)


def test_what_waits_is_counted_by_priority(table: Deliveries, client: Any) -> None:
    fill(client, OWN, "interactive", 5)
    fill(client, keys.agent_queue("desk", "dev"), "batch", 3)
    fill(client, SHARED, "normal", 2)
    client.lpush(f"{SHARED}{SEPARATOR}9", text_of("last"))
    client.set(keys.queue("shop"), "junk")
    queues = [SHARED, keys.queue("shop")]
    assert count_waiting(client, queues) == [Waiting(5, 2, 4), Waiting()]
    client.acl_setuser("older", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-eval_ro"])
    own = {**client.connection_pool.connection_kwargs, "username": "older", "password": "any"}
    with redis.Redis(connection_pool=redis.ConnectionPool(**own)) as older:
        assert count_waiting(older, queues) == [Waiting(0, 2, 1), Waiting()]  # without those of bound agents
    client.acl_deluser("older")
    client.acl_log_reset()
    take(table, 1)
    assert [waiting.total for waiting in count_waiting(client, queues)] == [10, 0]


def test_a_purge_empties_the_lists_of_all_priorities(table: Deliveries, client: Any, redis_url: str) -> None:
    for queue in (SHARED, OWN):
        for priority in PRIORITIES:
            fill(client, queue, priority, 2)
    with closing(build_app({"broker_url": redis_url})) as app, app.connection_for_write() as connection:
        assert connection.channel().queue_purge("mcp.desk") == 12
    assert take(table) == []


@pytest.mark.parametrize(
    ("number", "priority"),
    [
        *((number, "normal") for number in (None, 0, 1, 2, -1, "9", 3.0, True, "urgent", [6])),
        *((number, "interactive") for number in (3, 4, 5)),
        *((number, "batch") for number in (6, 8, 9, 255, 10**30)),
    ],
)
def test_every_number_of_celery_is_a_priority(number: Any, priority: Priority) -> None:
    assert priority_of_number(number) == priority


def test_lists_and_numbers_of_the_priorities_fit() -> None:
    for priority in PRIORITIES:
        assert priority_of_number(number_of(priority)) == priority
        assert priority_of_list(list_of(OWN, priority)) == priority
    assert lists_of(OWN) == [list_of(OWN, priority) for priority in PRIORITIES]
    assert lists_of(SHARED) == [*(list_of(SHARED, priority) for priority in PRIORITIES), f"{SHARED}{SEPARATOR}9"]


@pytest.mark.parametrize("is_stock", [True, False])
@pytest.mark.parametrize(("number", "priority"), [(None, "normal"), (2, "normal"), (3, "interactive"), (9, "batch")])
def test_producers_choose_by_the_number_of_celery(
    table: Deliveries, redis_url: str, is_stock: bool, number: int | None, priority: Priority
) -> None:
    urls = {"broker_url": redis_url, "result_backend": redis_url}
    with closing(Celery("other", set_as_current=False) if is_stock else build_app(urls)) as app:
        app.conf.update(urls)
        app.send_task("tarsy.call_tool", ARGUMENTS, queue=SHARED, priority=number)
    assert priorities(take(table)) == {priority: 1}


def test_a_signature_has_the_priority_that_it_was_given(table: Deliveries, redis_url: str) -> None:
    with closing(build_app({"broker_url": redis_url, "result_backend": redis_url})) as app:
        for priority in PRIORITIES:
            tool_signature("desk.echo", app=app, priority=priority).delay()
        assert "priority" not in tool_signature("desk.echo", app=app).options
        with pytest.raises(ValueError, match="must be one of interactive, normal, batch"):
            tool_signature("desk.echo", app=app, priority="urgent")  # pyright: ignore[reportArgumentType]
    assert priorities(take(table)) == dict.fromkeys(PRIORITIES, 1)


def test_an_unknown_priority_is_refused_by_name(redis_url: str, tmp_path: Path) -> None:
    urgent: Any = "urgent"
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"desk": {"command": "none"}}}')
    with closing(build_app({"broker_url": redis_url, "result_backend": redis_url})) as app:
        app.mcp_config = load_config(tmp_path / "mcp.json")
        with pytest.raises(ValueError, match="'urgent'; it must be one of interactive, normal, batch"):
            ToolExecutor(app=app, priority=urgent)
        tools = ToolExecutor(app=app)
        for call in ("desk.echo", ToolCall(name="desk.echo")):
            with pytest.raises(ValueError, match="'urgent'; it must be one of interactive, normal, batch"):
                tools.execute(call, priority=urgent)
        with pytest.raises(ValueError, match="'interactive', 'normal' or 'batch'"):
            ToolCall(name="desk.echo", priority=urgent)
