"""Keys that agents may write, filled with what they should not hold: workers clean up, and go on meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.redis_users import as_user

HIGHEST = "18446744073709551615-18446744073709551615"
ENTRY = {keys.AUDIT_FIELD: "{}"}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    return start_worker({"desk": DEMO_SERVER})


@pytest.fixture
def admin(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def agent(redis_url: str, worker: Worker) -> Iterator[Any]:
    with redis.Redis.from_url(as_user(redis_url, "agent")) as found:
        yield found


def is_open(agent: Any) -> bool:
    """Agents can write to the stream of their audit; an entry was added."""
    try:
        return bool(agent.xadd(keys.AGENT_AUDIT, ENTRY))
    except ResponseError:
        return False


def test_the_agents_audit_is_open_again_after_the_highest_id(agent: Any, admin: Any, worker: Worker) -> None:
    agent.xadd(keys.AGENT_AUDIT, ENTRY)
    agent.xadd(keys.AGENT_AUDIT, ENTRY, id=HIGHEST)
    wait_until(lambda: is_open(agent), "agents can record calls")
    assert admin.xlen(keys.AGENT_AUDIT) == 3
    worker.wait_for_log("tarsy:audit:agents was repaired")


def test_an_entry_of_thousands_of_fields_does_not_keep_it_closed(agent: Any, admin: Any, worker: Worker) -> None:
    agent.xadd(keys.AGENT_AUDIT, {f"f{number}": "v" for number in range(5000)})
    agent.xadd(keys.AGENT_AUDIT, ENTRY, id=HIGHEST)
    wait_until(lambda: is_open(agent), "agents can record calls")
    assert all(b"f0" not in fields for _, fields in admin.xrange(keys.AGENT_AUDIT))
    worker.wait_for_log("1 without a text were left out")


def test_very_many_names_of_queues_are_removed(agent: Any, admin: Any, worker: Worker) -> None:
    for first in range(0, 300_000, 10_000):
        agent.zadd(keys.QUEUES, {f"mcp.none-{number}": number for number in range(first, first + 10_000)})
    wait_until(lambda: admin.zcard(keys.QUEUES) < 1000, "they are removed", 60)
    with ToolExecutor(timeout_s=30) as tools:
        assert tools.execute("desk.echo", {"text": "here"}).outcome is Outcome.OK
