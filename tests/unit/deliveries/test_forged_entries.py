"""An agent that knows the id of another one's call, and writes what it likes for it into the in-flight table."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.fetch import fetch, read_fetched
from tarsy_tasks.broker.input_rounds import give_answers
from tarsy_tasks.broker.parked_calls import Decided, Parking, decide, load, wake_due
from tarsy_tasks.broker.session_handover import forward, take_back

OWN, OTHERS = keys.agent_queue("desk", "sre"), keys.agent_queue("desk", "dev")
AFFINE = keys.affinity_queue(OWN, "w2")
SESSION = keys.session_key("desk:run")
LEASE_S = 20.0
NEVER_S = 1e12
"""How long nobody has to have swept, for a sweep to restore nothing."""


def text_of(tool: str) -> str:
    body = json.dumps([["desk", tool, {}, {}], {}, {}])
    headers = {"task": "tarsy.call_tool", "id": "a"}
    return json.dumps({"body": body, "headers": headers, "properties": {"delivery_tag": "a"}})


MINE, FORGED = text_of("echo"), text_of("order")


def take(table: Deliveries, queue: str = OWN) -> Delivery:
    (found,) = fetch.run(table.exchange, queue, limits="10", checks=0, room=10, kept=0, instance="w1")
    return read_fetched(found).delivery


def replace(client: Any, text: str) -> None:
    """What an agent may do to an entry whose tag it knows."""
    client.hdel(keys.UNACKED, "a")
    client.hsetnx(keys.UNACKED, "a", text)


def is_own(client: Any) -> bool:
    """Whether the entry is the one that was taken."""
    return client.hget(keys.UNACKED, "a") == f"{OWN}\n\n{MINE}".encode()


def lose(table: Deliveries, client: Any, delivery: Delivery) -> None:
    client.zadd(keys.LEASES, {delivery.lease: 1})
    table.sweep(LEASE_S, NEVER_S)


def requeue(table: Deliveries, _: Any, delivery: Delivery) -> None:
    table.requeue(delivery)


def release(table: Deliveries, client: Any, delivery: Delivery) -> None:
    assert client.zrem(keys.LEASES, delivery.lease)
    client.zadd(keys.DELAYED, {delivery.lease: 1})
    table.release_due()


def park(table: Deliveries, client: Any, delivery: Delivery, reason: str = "approval") -> None:
    about = json.dumps({"server": "desk", "tool": "echo"})
    record: dict[str, Any] = {"reason": reason, "digest": "d", "needs": 1, "about": about, "allowance_s": 30.0}
    delivery.parking = Parking(record, client.time()[0] + 60, "")
    table.requeue(delivery)


def ask(table: Deliveries, client: Any, delivery: Delivery) -> None:
    park(table, client, delivery, reason="input_required")


def approve(table: Deliveries, client: Any, _: Delivery) -> None:
    view = load(client, "a")
    assert view is not None
    is_there = is_own(client)
    assert decide(client, view, is_approved=True, by="ann") is (Decided.APPROVED if is_there else Decided.GONE)
    wake_due(table.exchange)
    assert (load(client, "a") is not None) == is_there, "nothing is kept of one that is gone"


def answer(table: Deliveries, client: Any, _: Delivery) -> None:
    is_there = is_own(client)
    found = client.execute_command(*give_answers.command(tag="a", digest="d", answers="{}", by="ann"))
    assert found == (b"answered" if is_there else b"withdrawn")
    wake_due(table.exchange)
    assert (load(client, "a") is not None) == is_there, "nothing is kept of one that is gone"


def expire(table: Deliveries, client: Any, delivery: Delivery) -> None:
    client.zadd(keys.PARKED, {delivery.lease: 1})
    wake_due(table.exchange)


def pass_on(table: Deliveries, client: Any, delivery: Delivery) -> None:
    client.hset(SESSION, mapping={"principal": "sre", "holder": "w2"})
    assert forward(table.exchange, delivery, SESSION, "w2")


def lose_in_affinity_queue(table: Deliveries, client: Any, delivery: Delivery) -> None:
    pass_on(table, client, delivery)
    lose(table, client, take(table, AFFINE))


def bring_back(table: Deliveries, _: Any, __: Delivery) -> None:
    take_back(table.exchange, LEASE_S)


Act = Callable[[Deliveries, Any, Delivery], None]
WAYS: dict[str, tuple[Act | None, Act]] = {
    "its worker is lost": (None, lose),
    "it is requeued": (None, requeue),
    "its time has come": (None, release),
    "it was approved": (park, approve),
    "it was answered": (ask, answer),
    "nobody decided": (park, expire),
    "another worker has its session": (None, pass_on),
    "the worker with its session is lost": (pass_on, bring_back),
    "so it is after it was taken there": (lose_in_affinity_queue, bring_back),
}


@pytest.mark.parametrize("text", [MINE, FORGED, ""])
@pytest.mark.parametrize("way", WAYS)
def test_only_the_message_that_was_taken_goes_back(table: Deliveries, client: Any, way: str, text: str) -> None:
    prepare, go_back = WAYS[way]
    table.publish(OWN, "a", MINE)
    delivery = take(table)
    if prepare is not None:
        prepare(table, client, delivery)
    if text != MINE:
        replace(client, f"{OWN}\n\n{text}" if text else "damaged")
    go_back(table, client, delivery)
    in_lists = client.lrange(OWN, 0, -1) + client.lrange(AFFINE, 0, -1)
    assert set(in_lists) <= {MINE.encode()}
    if text == MINE:
        assert in_lists == [MINE.encode()]
    assert not client.exists(keys.DEAD_LETTERS), "an operator would send it again"


def test_a_message_that_waits_is_not_replaced(table: Deliveries, client: Any) -> None:
    table.publish(OWN, "a", MINE)
    replace(client, f"{OWN}\n\n{FORGED}")
    client.zadd(keys.waiting_key(OWN), {"a": 1})
    swept = table.sweep(LEASE_S, NEVER_S)
    assert (swept.restored, swept.dead_letters, swept.dropped) == ((), (), ("a",))
    assert client.lrange(OWN, 0, -1) == [MINE.encode()]
    assert take(table).queue == OWN
    assert client.hget(keys.UNACKED, "a") == f"{OWN}\n\n{MINE}".encode()


def test_a_message_in_ones_own_queue_vouches_for_no_other(table: Deliveries, client: Any) -> None:
    table.publish(OWN, "a", MINE)
    delivery = take(table)
    replace(client, f"{OWN}\n\n{FORGED}")
    client.lpush(OTHERS, FORGED)
    take(table, OTHERS)
    lose(table, client, delivery)
    assert not client.exists(OWN)


def test_a_delayed_call_is_protected_until_its_time_has_come(table: Deliveries, client: Any) -> None:
    table.publish(OWN, "a", MINE)
    month_s = 30 * 24 * 3600
    assert table.delay(take(table), wait_s=month_s)
    assert client.ttl(keys.call_marker("a")) > month_s
