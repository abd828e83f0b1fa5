"""`session: per_call` keeps callers apart on a server that holds state, and leaves nothing behind."""

from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.gates import make_gate, open_gate
from tests.processes import Worker, wait_until

PARTY = 8
HTTP_PATH = "old/sse/none"


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, witness_url: str, directory: Path) -> Worker:
    def stdio(name: str, **settings: str) -> dict[str, object]:
        return witness(Ledger(directory / name), "--gate", str(directory / "gate"), **settings)

    return start_worker(
        {
            "apart": stdio("apart", session="per_call"),
            "apart-old": witness(Ledger(directory / "apart-old"), "--probe", "refused", session="per_call"),
            "together": stdio("together"),
            "http": {"url": f"{witness_url}/{HTTP_PATH}", "session": "per_call"},
        }
    )


def count(tools: ToolExecutor, server: str) -> str:
    """How often `count` was called in the session that this call is in."""
    result = tools.execute(ToolCall(id="c", name=f"{server}.count", arguments={}))
    assert result.outcome is Outcome.OK, result.content
    return result.content


@pytest.mark.parametrize("server", ["apart", "apart-old", "http"])
def test_calls_do_not_see_each_others_state(tools: ToolExecutor, server: str) -> None:
    assert [count(tools, server) for _ in range(3)] == ["1", "1", "1"]


def test_calls_of_a_shared_session_do(tools: ToolExecutor) -> None:
    assert [count(tools, "together") for _ in range(3)] == ["1", "2", "3"]


def test_calls_run_at_the_same_time(tools: ToolExecutor, directory: Path) -> None:
    gate = make_gate(directory / "gate")
    calls = [tools.submit(ToolCall(id=str(number), name="apart.meet", arguments={})) for number in range(PARTY)]
    begun = Ledger(directory / "apart")
    wait_until(lambda: len(begun.lines("run", "meet")) == PARTY, "all have begun before any is answered")
    open_gate(gate)
    assert [call.result().content for call in calls] == ["met"] * PARTY


def test_the_process_of_each_call_is_gone_afterwards(tools: ToolExecutor, worker: Worker, directory: Path) -> None:
    count(tools, "apart")
    path = str(directory / "apart")

    def is_tidy() -> bool:
        # One stays: the session that knows the server's tools.
        return len(worker.find_children(path)) == 1

    wait_until(is_tidy, "only the shared process of the server is left")


def test_the_http_session_of_each_call_is_ended(tools: ToolExecutor, directory: Path) -> None:
    ledger = Ledger(directory / HTTP_PATH.replace("/", "-"))
    count(tools, "http")
    # As many as calls, which each had a session; the one that knows the server's tools stays.
    wait_until(lambda: len(ledger.lines("delete")) == len(ledger.lines("run")), "each session was ended")
    assert ledger.starts - 1 == len(ledger.lines("run"))
