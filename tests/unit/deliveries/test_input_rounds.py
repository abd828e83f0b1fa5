"""Questions of sessions that wait: they never take the place of the answer of their call."""

import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.input_rounds import hold, let_go
from tests.unit.deliveries.table import MESSAGE, QUEUE, RESULT, begin, on_a_loop, pop

STATE = '{"status": "PARKED"}'
DIGEST = "d" * 64


def ask(client: redis.Redis) -> bool:
    record = {"reason": "input_required", "digest": DIGEST, "held": 1}
    held = on_a_loop(
        client,
        lambda table: hold.run_async(
            table.exchange,
            tag="a",
            ends_at=client.time()[0] + 60,
            record=record,
            kept={"round": "1", "asked": "[]", "sent": ""},
            state=STATE,
            channel="channel",
        ),
    )
    return bool(held)


def stop_asking(client: redis.Redis) -> None:
    on_a_loop(client, lambda table: let_go.run_async(table.exchange, tag="a", digest=DIGEST))


def test_a_question_after_the_answer_does_not_replace_it(table: Deliveries, client: redis.Redis) -> None:
    table.publish(QUEUE, "a", MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, "a", lambda: "")
    begin(client, delivery, "me 1")
    assert ask(client)
    assert client.get(RESULT) == STATE.encode()
    table.answer(delivery, RESULT, "done", 60)
    client.hset(keys.UNACKED, "a", f"{QUEUE}\n\n{MESSAGE}")  # as a copy of its message
    for _ in range(2):
        assert not ask(client)
        stop_asking(client)
        assert client.get(RESULT) == b"done"
        client.hdel(keys.UNACKED, "a")
        client.delete(keys.call_marker("a"))
    assert not client.zscore(keys.ASKING, "a")
