"""Messages with an ETA: they wait in Redis, are handled soon after it, and none is lost, whichever worker is killed."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from celery.exceptions import InvalidTaskError, TaskRevokedError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.delivery import CallState
from tarsy_tasks.celery_app import build_app
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.redis_users import as_user
from tests.unit.deliveries.table import withdraw

SERVERS = {"desk": DEMO_SERVER}
QUEUE = "mcp.desk"
SLOTS = 16
SETTINGS = 'broker_transport_options = {"visibility_timeout": 2}\nimports = ["own_tasks"]\n'
OWN_TASKS = """
import time

from celery import shared_task


@shared_task(name="reports.build", bind=True)
def build(self):
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    return self.request.retries


@shared_task(name="reports.look")
def look():
    return time.time()
"""
TIMEOUT_S = 60
VERSIONS = (1, 1.5, 2)
ZONES = (None, UTC, timezone(timedelta(hours=5, minutes=30)))


@pytest.fixture(scope="module")
def start(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Worker]:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "own_tasks.py").write_text(OWN_TASKS)
    # Else only the package's own tasks may be in the queue of a server.
    environment = {"PYTHONPATH": str(folder), "TARSY_CANVAS": "any"}
    return partial(start_worker, SERVERS, arguments=["-c", str(SLOTS)], settings=SETTINGS, environment=environment)


@pytest.fixture(scope="module")
def worker(start: Callable[[], Worker]) -> Worker:
    return start()


@pytest.fixture(scope="module")
def foreign(redis_url: str) -> Iterator[Celery]:
    with Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False) as found:
        yield found


def build_message(eta: Any, *, task: str = "tarsy.call_tool", version: float = 2) -> tuple[str, str]:
    """A message and its id, as any producer may write it, in a version of Celery's protocol."""
    task_id = str(uuid4())
    arguments = ["desk", "echo", {"text": "here"}] if task == "tarsy.call_tool" else []
    facts = {"task": task, "id": task_id, "eta": eta}
    body: Any = [arguments, {}, {}] if version == 2 else {**facts, "args": arguments, "kwargs": {}}
    message = {
        "body": json.dumps(body),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {1: {}, 1.5: {"task": task, "id": task_id}, 2: facts}[version],
        "properties": {"delivery_tag": task_id, "delivery_info": {"exchange": "", "routing_key": QUEUE}},
    }
    return json.dumps(message), task_id


def push(table: Any, eta: Any, **options: Any) -> str:
    message, task_id = build_message(eta, **options)
    table.lpush(QUEUE, message)
    return task_id


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def is_delayed(table: Any, task_id: str) -> bool:
    return table.zscore(keys.DELAYED, f"{QUEUE}\n{task_id}") is not None


def kill(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()


def test_a_countdown_and_a_retry_are_kept(worker: Worker, foreign: Celery) -> None:
    eta = soon(1)
    sent = foreign.send_task("reports.build", queue=QUEUE, eta=eta)
    assert sent.get(timeout=TIMEOUT_S) == 1
    assert sent.date_done >= eta + timedelta(seconds=1)


def test_an_eta_is_kept_in_any_zone_and_protocol(worker: Worker, table: Any, foreign: Celery) -> None:
    eta = soon(6)
    texts = [(eta.astimezone(zone) if zone else eta.replace(tzinfo=None)).isoformat() for zone in ZONES]
    sent = {
        (text, version): foreign.AsyncResult(push(table, text, version=version))
        for text, version in product(texts, VERSIONS)
    }
    wait_until(lambda: all(is_delayed(table, each.id) for each in sent.values()), "they are delayed")
    outcomes = {kind: each.get(timeout=TIMEOUT_S)["outcome"] for kind, each in sent.items()}
    assert outcomes == dict.fromkeys(sent, "ok")
    assert [kind for kind, each in sent.items() if each.date_done < eta] == []


@pytest.mark.parametrize("eta", ["", "1999-12-31", "0001-01-01T00:00:00+14:00", "2024-02-29T24:00:00Z"])
def test_what_is_due_long_since_runs_at_once(worker: Worker, table: Any, foreign: Celery, eta: str) -> None:
    assert foreign.AsyncResult(push(table, eta)).get(timeout=TIMEOUT_S)["outcome"] == "ok"


@pytest.mark.parametrize(
    "eta", ["soon", 7, ["2030"], {"year": 2030}, "9999-12-31T23:59:59+00:00", "2024-01-01T00:00+99:99", "2" * 100_000]
)
def test_an_eta_that_cannot_be_kept_is_refused(worker: Worker, table: Any, foreign: Celery, eta: Any) -> None:
    for version in VERSIONS:
        sent = foreign.AsyncResult(push(table, eta, version=version))
        if version == 2:
            with pytest.raises(InvalidTaskError, match="its ETA is"):
                sent.get(timeout=TIMEOUT_S)
        else:
            wait_until(
                lambda task=sent.id: not table.hexists(keys.UNACKED, task) and not table.llen(QUEUE), "it is gone"
            )
    assert foreign.AsyncResult(push(table, "1999-12-31")).get(timeout=TIMEOUT_S)["outcome"] == "ok"


def test_a_delayed_call_is_withdrawn_at_once(worker: Worker, table: Any, redis_url: str) -> None:
    task_id = push(table, soon(3600).isoformat())
    wait_until(lambda: is_delayed(table, task_id), "it is delayed")
    with redis.Redis.from_url(as_user(redis_url, "agent")) as agent:
        assert withdraw(agent, task_id) == (CallState.NONE, False), "the agent records it"
    assert not is_delayed(table, task_id)
    assert not table.hexists(keys.UNACKED, task_id)


def test_a_revoked_or_expired_message_does_not_run(worker: Worker, table: Any, foreign: Celery) -> None:
    send = partial(foreign.send_task, "tarsy.call_tool", ["desk", "echo", {"text": "here"}], queue=QUEUE)
    with build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]}) as app:
        sent = [send(countdown=6), send(countdown=6, expires=1)]
        wait_until(lambda: all(is_delayed(table, each.id) for each in sent), "they are delayed")
        app.control.revoke(sent[0].id, reply=True)
    for each in sent:
        with pytest.raises(TaskRevokedError):
            each.get(timeout=TIMEOUT_S)


def test_workers_hold_no_more_than_they_run_and_lose_nothing(
    start: Callable[[], Worker], worker: Worker, table: Any
) -> None:
    dying = start()
    eta = soon(5)
    tasks = ["tarsy.call_tool", *["reports.look"] * 9] * 200
    texts, ids = zip(*(build_message(eta.isoformat(), task=task) for task in tasks), strict=True)
    held: list[int] = []

    def left(at_most: int, *places: str) -> bool:
        held.append(table.zcard(keys.LEASES))
        return table.llen(QUEUE) + table.hlen(keys.UNACKED) - sum(map(table.zcard, places)) <= at_most

    for first in range(0, len(texts), 500):
        table.lpush(QUEUE, *texts[first : first + 500])
    wait_until(lambda: left(1200, keys.DELAYED), "many are delayed", TIMEOUT_S)
    kill(dying)
    wait_until(lambda: left(1600), "some have run", TIMEOUT_S)
    kill(worker)
    start()
    wait_until(lambda: left(0), "all have run", 2 * TIMEOUT_S)
    assert max(held) <= 3 * SLOTS  # those of the two that are killed lapse later
    results = [json.loads(text) for text in table.mget(map(keys.result_key, ids))]
    assert {each["status"] for each in results} == {"SUCCESS"}
    assert min(datetime.fromisoformat(each["date_done"]) for each in results) >= eta
