"""The mechanisms of recovery, each shown by a test that fails without it."""

from pathlib import Path

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until

HTTP_SERVERS = {
    # The reply is an event stream, as of most servers of the handshake era.
    "drained": "old-sse-forgets-404",
    "compared": "old-json-forgets-not-found",
    "budgeted": "old-sse-cut-forgets",
}

UNREAD = 80
"""More calls than the transport queues for a server that does not read."""


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, witness_url: str, directory: Path) -> Worker:
    servers = {name: {"url": f"{witness_url}/{path.replace('-', '/', 2)}"} for name, path in HTTP_SERVERS.items()}
    deaf = witness(Ledger(directory / "deaf"), "--stops-reading", timeouts={"tools": {"add": 3}})
    return start_worker({**servers, "deaf": deaf})


def call(name: str, key: str = "") -> ToolCall:
    return ToolCall(id=key or "c", name=name, arguments={"key": key})


def begin(tools: ToolExecutor, ledger: Ledger, name: str, key: str) -> PendingCall:
    """A call that has reached its server."""
    pending = tools.submit(call(name, key))
    wait_until(lambda: ledger.lines("request", "tools/call", key), f"{name} has reached the server")
    return pending


def test_a_replaced_session_is_closed_after_its_running_calls(tools: ToolExecutor, directory: Path) -> None:
    ledger = Ledger(directory / HTTP_SERVERS["drained"])
    sibling = begin(tools, ledger, "drained.linger", "sibling")
    assert tools.execute(call("drained.forget")).outcome is Outcome.OK
    assert tools.execute(call("drained.add", "after")).outcome is Outcome.OK
    assert ledger.starts == 2
    assert tools.execute(call("drained.release")).outcome is Outcome.OK
    result = sibling.result()
    assert (result.outcome, result.content, result.attempts) == (Outcome.OK, "sibling", 1)
    assert ledger.runs("linger") == {"sibling": 1}
    wait_until(lambda: ledger.lines("delete"), "the old session is closed when its last call is through")


def test_a_session_that_was_replaced_is_not_replaced_again(tools: ToolExecutor, directory: Path) -> None:
    ledger = Ledger(directory / HTTP_SERVERS["compared"])
    assert tools.execute(call("compared.forget")).outcome is Outcome.OK
    latecomer = begin(tools, ledger, "compared.add", "late")
    assert tools.execute(call("compared.add", "first")).outcome is Outcome.OK
    assert ledger.starts == 2
    assert tools.execute(call("compared.release")).outcome is Outcome.OK
    assert latecomer.result().outcome is Outcome.OK
    assert ledger.runs("add") == {"first": 1, "late": 1}
    assert ledger.starts == 2


def test_retries_of_unsent_calls_are_counted_on_their_own(tools: ToolExecutor, directory: Path) -> None:
    # Its reply is cut off, and then the server does not know its session: both happen when such a server is restarted.
    ledger = Ledger(directory / HTTP_SERVERS["budgeted"])
    result = tools.execute(call("budgeted.look", "twice"))
    assert (result.outcome, result.attempts) == (Outcome.OK, 3), result.content
    assert ledger.runs() == {"twice": 2}
    assert ledger.starts == 2


def test_calls_that_cannot_be_written_end_and_replace_the_server(directory: Path) -> None:
    # The limit is 3 s. The SDK's own timeout begins when a request is handed on, which it is not behind 2 MB that
    # nobody reads; and then it tries for 5 s to tell the server.
    tools = ToolExecutor(timeout_s=20)
    ledger = Ledger(directory / "deaf")
    keys = ["x" * 2_000_000, *map(str, range(UNREAD))]
    results = tools.execute_many(call("deaf.add", key) for key in keys)
    assert {(result.outcome, result.error_code) for result in results} == {(Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)}
    assert max(result.duration_s for result in results) < 7.5

    def another_answers() -> str:
        # The first ones may still be sent to the process that does not read.
        found = tools.execute(call("deaf.add", "after"))
        return found.content if found.outcome is Outcome.OK else ""

    assert wait_until(another_answers, "another process answers", 40) == "after"
    assert ledger.runs() == {"after": 1}
    assert ledger.starts == 2
