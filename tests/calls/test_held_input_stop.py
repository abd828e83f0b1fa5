"""A worker that is stopped while sessions wait for input: what their callers learn, and what is asked again."""

import signal
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.broker import parked_views
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, curious_server
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger
from tests.processes import wait_until


def test_a_stopped_worker_says_what_became_of_its_questions(
    start_worker: StartWorker, table: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger")
    # A session a call, because both are to be asked at once.
    servers = {"old": curious_server(ledger, "--handshake", session="per_call")}
    environment = {"TARSY_SHUTDOWN_GRACE_S": "1"}
    first = start_worker(servers, settings=SHORT_LEASE, environment=environment)
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True) as tools:
        unsafe, harmless = tools.submit("old.order", {"key": "unsafe"}), tools.submit("old.look", {"key": "harmless"})
        for each in (unsafe, harmless):
            assert each.questions()
        before = harmless.parked
        start_worker(servers, settings=SHORT_LEASE, environment=environment)
        first.ask_to_stop(signal.SIGTERM)
        result = unsafe.result()
        assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.WORKER_STOPPED)
        assert "waited for the answer to a question of its MCP server" in result.content
        assert "Check its effects before you call it again; the server then asks again." in result.content
        again = wait_until(
            lambda: harmless.parked if harmless.parked != before else None, "it is asked again", TIMEOUT_S
        )
        assert again is not None
        tools.resume(harmless, {harmless.questions()[0].name: {"size": 3}})
        result = harmless.result()
    assert (result.outcome, result.content) == (Outcome.OK, "harmless: 3")
    assert ledger.runs("order")["unsafe"] <= 1
    wait_until(lambda: parked_views.load_waiting(table, 10)[0] == [], "nobody is asked what no session waits for")
