"""A server that asks to wait: what one worker has read keeps all workers from it, and no call is lost for that."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tarsy_tasks.telemetry.metrics import read_metrics
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, submit_calls
from tests.processes import Worker, wait_until

SHORT, LONG = "new-json-status-429-seconds", "new-json-status-429-late"
KEYS = [f"key{n}" for n in range(24)]


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, witness_url: str) -> Worker:
    servers = {name: {"url": f"{witness_url}/{name.replace('-', '/', 2)}"} for name in (SHORT, LONG)}
    first, _ = (start_worker(servers) for _ in range(2))
    return first


def call(tools: ToolExecutor, server: str) -> list[ToolResult]:
    return [pending.result() for pending in submit_calls(tools, server, KEYS)]


def test_no_worker_sends_a_call_while_the_server_asks_to_wait(
    tools: ToolExecutor, directory: Path, redis_url: str
) -> None:
    with closing(redis.Redis.from_url(redis_url)) as client:
        asked = tools.execute(f"{LONG}.look", {"key": "first"})
        assert asked.error_code is ErrorCode.SERVER_UNAVAILABLE
        seconds, _ = client.time()
        until = wait_until(lambda: client.zscore(keys.PAUSES, LONG), "the other worker can know of it")
        assert 290 < until - seconds <= 301  # of the hour that it asked for

        def refused_by() -> set[str]:
            found = [each for each in call(tools, LONG) if each.error_code is ErrorCode.RATE_LIMITED]
            entries = [read_audit(client, AuditFilter(task_id=each.task_id)).entries[0] for each in found]
            return {str(entry.worker) for entry in entries} if len(found) == len(KEYS) else set()

        wait_until(lambda: len(refused_by()) == 2, "both workers keep to it")
        before = len(Ledger(directory / LONG).lines("request", "tools/call"))
        results = call(tools, LONG)
        assert {result.outcome for result in results} == {Outcome.REJECTED}
        assert all(result.retry_after_s and result.retry_after_s <= 300 for result in results)
        assert "asked to wait. Do not try again for" in results[0].content
        assert len(Ledger(directory / LONG).lines("request", "tools/call")) == before

        def pauses() -> int:
            return sum(each.pauses for each in read_metrics(client, [LONG])[LONG])

        assert wait_until(pauses, "it is counted") >= 1


def test_calls_that_can_wait_are_sent_afterwards(tools: ToolExecutor, directory: Path) -> None:
    results = call(tools, SHORT)
    assert {result.outcome for result in results} == {Outcome.OK}
    ledger: Any = Ledger(directory / SHORT)
    assert ledger.runs() == dict.fromkeys(KEYS, 1)
    assert ledger.lines("early") == []
