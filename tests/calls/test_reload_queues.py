"""Workers that take some queues only (`-Q`, `-X`), while servers come and go."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tests.calls.deployment import DESK, Deployment
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import wait_until

ONLY, EXCEPT = ["-Q", "mcp.desk,mcp.books"], ["-X", "mcp.books,mcp.books.check"]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledgers") / "books")


@pytest.fixture(scope="module")
def deployment(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory, books: Ledger
) -> Iterator[Deployment]:
    directory, servers = tmp_path_factory.mktemp("shared"), {**DESK, "books": witness(books)}
    with redis.Redis.from_url(redis_url) as client:
        yield Deployment(start_worker, directory, client, arguments=[ONLY, EXCEPT], servers=servers)


def serving(deployment: Deployment, server: str) -> set[str]:
    """The workers that report a server, by the first part of their names."""
    return {record.worker.partition("@")[0] for record in deployment.records(server)}


def outcome(server: str, key: str) -> Any:
    with ToolExecutor([server], timeout_s=30) as tools:
        result = tools.execute(ToolCall(name=f"{server}.look", arguments={"key": key}))
        return result.error_code or result.outcome


def test_each_worker_keeps_to_its_queues(deployment: Deployment, books: Ledger, tmp_path: Path) -> None:
    new, other = Ledger(tmp_path / "new"), Ledger(tmp_path / "other")
    wait_until(lambda: serving(deployment, "books") == {"w0"}, "only the one with -Q serves it")
    deployment.serve({**DESK, "books": witness(books), "new": witness(new)})
    wait_until(lambda: serving(deployment, "new") == {"w1"}, "only the one with -X serves what it does not exclude")
    assert outcome("new", "a") is Outcome.OK
    assert outcome("books", "a") is Outcome.OK
    assert (new.starts, books.starts) == (1, 1)

    with ToolExecutor(["books"], timeout_s=30) as behind:
        deployment.serve(DESK)
        wait_until(lambda: not serving(deployment, "books") | serving(deployment, "new"), "both are gone")
        late = behind.execute(ToolCall(name="books.look", arguments={"key": "late"}))
        assert late.error_code is ErrorCode.SERVER_REMOVED
    assert not books.runs()["late"]

    deployment.serve({**DESK, "books": witness(other), "new": witness(new)})
    wait_until(lambda: serving(deployment, "books") == {"w0"}, "it is served again by the same worker")
    wait_until(lambda: serving(deployment, "new") == {"w1"}, "and this one by the other")
    assert outcome("books", "b") is Outcome.OK
    assert other.runs() == {"b": 1}
    assert (other.starts, new.starts) == (1, 2)
    for worker, ledger in zip(deployment.workers, (new, other), strict=True):
        assert not worker.find_children(str(ledger.path))
