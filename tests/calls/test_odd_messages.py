"""Whatever is sent to a worker, to its queues or to all workers, costs that message only."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tests.calls.odd_messages import BOMB, Generator, build_message
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.security.attacker import DESK

QUEUE, COMMANDS, EVENTS = "mcp.desk", "/0.celery.pidbox", "/0.celeryev/worker.heartbeat"
SEED = 17
BATCH = 250
QUEUED = 5000
PUBLISHED = 5200
SLOTS = 4


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    arguments = ["-c", str(SLOTS)]
    return start_worker({"desk": DEMO_SERVER}, arguments=arguments, environment={"TARSY_CANVAS": "same_queue"})


@pytest.fixture
def queues(redis_url: str, worker: Worker) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client
        # What has an ETA, or was refused and waits to become a dead letter.
        client.delete(keys.UNACKED, keys.LEASES, keys.QUEUES)
        client.delete(*(name for queue in (QUEUE, "tarsy") for name in (queue, keys.waiting_key(queue))))


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=30)


def lives(worker: Worker, tools: ToolExecutor, queues: Any) -> None:
    """The same worker answers, in all its slots, and did not connect again."""
    wait_until(lambda: queues.llen(QUEUE) == 0, "the queue is empty", 60)
    results = tools.execute_many([("desk.echo", {"text": "hello"})] * 2 * SLOTS)
    assert {result.outcome for result in results} == {Outcome.OK}
    assert worker.process.poll() is None
    assert worker.log.count(" ready.") == 1
    assert "Connection to broker lost" not in worker.log
    assert "failed outside its body" not in worker.log  # it would be delivered again, and is quarantined then
    assert max(map(len, worker.log.splitlines())) < 20_000


def peak_mb(worker: Worker) -> int:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def without(part: str, name: str) -> dict[str, Any]:
    message = build_message()
    del message[part][name]
    return message


def with_properties(**properties: Any) -> dict[str, Any]:
    message = build_message()
    message["properties"].update(properties)
    return message


DECIMAL = {"__type__": "decimal", "__value__": "zz"}
HALF = "\ud83d"
"""Of a character: JSON has it, and nothing can be sent with it."""
FOLLOWS = {**DESK, "options": {"queue": QUEUE, "task_id": HALF}}
ATTACKS: dict[str, Callable[[], dict[str, Any]]] = {
    "a body without end": lambda: build_message(b"[" * 100_000),
    "a deep body": lambda: build_message(deep(900)),
    "deep arguments": lambda: build_message([["desk", "echo", json.loads(deep(400))], {}, {}]),
    "a deep header": lambda: build_message(odd=json.loads(deep(400))),
    "an object for kombu in the body": lambda: build_message([["desk", "echo", DECIMAL], {}, {}]),
    "an object for kombu in a header": lambda: build_message(odd=DECIMAL),
    "a bomb": lambda: build_message(BOMB, compression="application/x-bz2"),
    "a bomb by its encoding": lambda: {
        **build_message(BOMB),
        "content-type": "application/data",
        "content-encoding": "bz2_codec",
    },
    "pickle": lambda: {
        **build_message(b"cos\nsystem\n(S'true'\ntR."),
        "content-type": "application/x-python-serialize",
    },
    "a type that is a list": lambda: {**build_message(), "content-type": []},
    "an unknown encoding of the body": lambda: with_properties(body_encoding="zz"),
    "no tag": lambda: without("properties", "delivery_tag"),
    "a delivery that is a list": lambda: with_properties(delivery_info=[1]),
    "a task that is a list": lambda: build_message(task=["x"]),
    "a task that is none": lambda: build_message(task=None),
    "no id": lambda: without("headers", "id"),
    "a name that is a list": lambda: build_message(shadow=["x"]),
    "an old message whose name is a list": lambda: {
        **build_message({"task": "tarsy.call_tool", "id": "old", "args": [], "kwargs": {}, "shadow": [1]}),
        "headers": {},
    },
    "a header that hides one of the body": lambda: {
        **build_message({"task": "tarsy.call_tool", "id": "old", "kwargs": {}, "shadow": ["x"]}),
        "headers": {"shadow": None},
    },
    "an ETA beside an old message": lambda: {
        **build_message({"task": "tarsy.call_tool", "id": "old", "args": [], "kwargs": {}}),
        "headers": {"eta": "2999-01-01T00:00:00+00:00"},
    },
    "limits that are a text": lambda: build_message(timelimit="abc"),
    "one limit": lambda: build_message(timelimit=[1]),
    "limits of another type": lambda: build_message(timelimit=["a", {}]),
    "an ETA that is an object": lambda: build_message(eta={}),
    "an ETA at the end of time": lambda: build_message(eta="9999-12-31T23:59:59.999999-12:00"),
    "an ETA at its beginning": lambda: build_message(eta="0001-01-01T00:00:00+14:00"),
    "expired before time": lambda: build_message(expires="0001-01-01T00:00:00+14:00"),
    "a clock that is a text": lambda: build_message(clock="zz"),
    "a body that is not a list": lambda: build_message(b"7"),
    "a body of one": lambda: build_message([[]]),
    "what follows is a number": lambda: build_message([["desk", "echo", {}], {}, 7]),
    "a chain that is an object": lambda: build_message([["desk", "echo", {"text": "x"}], {}, {"chain": {"a": 1}}]),
    "named arguments are a list": lambda: build_message([[], [1], {}]),
    "an id with half of a character": lambda: build_message(id=f"{HALF}1"),
    "an empty id": lambda: {**build_message(id=""), "properties": build_message()["properties"]},
    "an empty id and tag": lambda: build_message(id=""),
    "an old message with an empty id": lambda: {
        **build_message({"task": "tarsy.call_tool", "id": "", "args": [], "kwargs": {}}),
        "headers": {},
    },
    "an id that is long in bytes": lambda: build_message(id="é" * 600),
    "a tag with half of a character": lambda: with_properties(delivery_tag=HALF),
    "a parent with half of a character": lambda: build_message(parent_id=HALF, root_id=HALF, group=HALF),
    "a callback with half of a character": lambda: build_message(
        [["desk", "echo", {"text": "x"}], {}, {"callbacks": [FOLLOWS]}]
    ),
    "a long id": lambda: build_message(id="x" * 1_000_000),
    "a long name": lambda: build_message(shadow="x" * 1_000_000),
    "stamps that are none": lambda: build_message(stamped_headers=["a"], stamps=None),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_costs_its_message_only(worker: Worker, tools: ToolExecutor, queues: Any, attack: str) -> None:
    before = peak_mb(worker)
    # More than there are slots: what costs one each time would stop the worker.
    for number in range(2 * SLOTS):
        message = ATTACKS[attack]()
        if message["headers"].get("id") == "odd":
            message["headers"]["id"] = message["properties"]["delivery_tag"] = f"{attack} {number}"
        text = json.dumps(message)
        queues.lpush(QUEUE, text)
        assert queues.publish(COMMANDS, text), "a worker listens"
        assert queues.publish(EVENTS, text), "a worker listens"
    lives(worker, tools, queues)
    assert peak_mb(worker) - before < 400


def test_10_000_odd_messages_leave_a_worker_that_answers(worker: Worker, tools: ToolExecutor, queues: Any) -> None:
    odd = Generator(SEED)
    for _ in range(QUEUED // BATCH):
        queues.lpush(QUEUE, *(odd.task() for _ in range(BATCH)))
        for write, name in ((odd.command, COMMANDS), (odd.event, EVENTS)):
            with queues.pipeline(transaction=False) as pipeline:
                for _ in range(PUBLISHED * BATCH // QUEUED // 2):
                    pipeline.publish(name, write())
                pipeline.execute()
        wait_until(lambda: queues.llen(QUEUE) == 0, "the queue is empty", 60)
    lives(worker, tools, queues)
