"""Servers of the 2026 era that ask for input: the call waits in Redis, and goes on as the same task."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger
from tests.processes import Worker, wait_until
from tests.servers import curious
from tests.warm_start import warm_command

TIMEOUT_S = 40
SETTINGS = 'broker_transport_options = {"visibility_timeout": 2}\n'


def curious_server(ledger: Ledger, *options: str, **settings: Any) -> dict[str, Any]:
    return {**warm_command("-m", curious.__name__, str(ledger.path), *options), **settings}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, ledger: Ledger) -> Worker:
    return start_worker({"shop": curious_server(ledger)}, settings=SETTINGS, arguments=["-c", "2"])


@pytest.fixture(scope="module")
def table(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as found:
        yield found


def test_a_call_goes_on_with_its_answer(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    pending = tools.submit("shop.order", {"key": "shoes"})
    found = pending.questions()
    assert found, (pending.done() and pending.result(), pending.parked)
    [question] = found
    assert question.message == "Which size for shoes?"
    assert question.mode == "form"
    assert set(question.requested_schema["properties"]) == {"size", "color"}
    assert pending.parked is not None
    assert pending.parked.reason == "input_required"
    assert not pending.done()
    assert not table.exists(keys.LEASES), "nothing of it is in a worker"
    tools.resume(pending, {question.name: {"size": 5}})
    assert pending.result().content == "shoes: 5 red"
    assert ledger.runs("order")["shoes"] == 1
