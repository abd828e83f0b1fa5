"""Parked calls and lost workers, killed in each state; a Redis that restarts. Each approved call runs once."""

import json
from pathlib import Path
from typing import Any

import pytest
from celery import chain

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.broker import parked_calls, parked_views
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.broker.parked_views import ParkedCallView
from tests.calls.waiting_calls import TIMEOUT_S, Start, kill, restartable
from tests.faults.ledger import Ledger, wait_for_runs, witness
from tests.processes import wait_until


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def find_parked(table: Any) -> list[ParkedCallView]:
    return parked_views.load_waiting(table, 1000)[0]


def wait_for_parked(table: Any, count: int = 1) -> list[ParkedCallView]:
    wait_until(lambda: len(find_parked(table)) == count, f"{count} calls are parked", TIMEOUT_S)
    return find_parked(table)


def approve(table: Any, view: ParkedCallView) -> None:
    assert parked_calls.decide(table, view, is_approved=True, by="ann") is Decided.APPROVED


@pytest.fixture
def start(start_mortal: Start, ledger: Ledger) -> Start:
    """All serve `desk`."""
    return lambda *options, **more: start_mortal({"desk": witness(ledger, *options, approval="always", **more)})


def build_tools() -> ToolExecutor:
    return ToolExecutor(["desk"], timeout_s=TIMEOUT_S, park=True)


def test_a_worker_that_is_lost_loses_no_parked_call(start: Start, ledger: Ledger, table: Any) -> None:
    worker = start()
    with build_tools() as tools:
        pending = tools.submit("desk.add", {"key": "parked"})
        [view] = wait_for_parked(table)
        kill(worker)
        approve(table, view)
        assert table.llen("mcp.desk") == 1, "it waits for a worker"
        start()
        result = pending.result()
    assert (result.outcome, result.content) == (Outcome.OK, "parked")
    assert ledger.runs("add")["parked"] == 1


@pytest.mark.parametrize("tool", ["add", "look"])
def test_an_approved_call_whose_worker_is_lost_is_not_repeated(
    start: Start, ledger: Ledger, table: Any, tool: str
) -> None:
    """One approval is for one run, also of a tool that is harmless to repeat."""
    worker = start()
    with build_tools() as tools:
        pending = tools.submit(f"desk.{tool}", {"key": "held"})
        [view] = wait_for_parked(table)
        approve(table, view)
        wait_for_runs(ledger, 1)
        kill(worker)
        start()
        result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.WORKER_LOST)
    assert ledger.runs(tool)["held"] == 1
    assert find_parked(table) == [], "nobody is asked again"


def test_an_approved_call_that_was_not_sent_runs_elsewhere(start: Start, ledger: Ledger, table: Any) -> None:
    worker = start("--mute", "2", session="per_call")
    wait_until(lambda: ledger.starts == 1, "the session that lists the tools")
    with build_tools() as tools:
        pending = tools.submit("desk.add", {"key": "unsent"})
        [view] = wait_for_parked(table)
        assert ledger.starts == 1, "a call that waits for a person opens no session"
        approve(table, view)
        wait_until(lambda: ledger.starts == 2, "the session of the call is being opened")
        kill(worker)
        start("--mute", "2", session="per_call")
        assert pending.result().outcome is Outcome.OK
    assert ledger.runs("add")["unsent"] == 1
    assert find_parked(table) == [], "nobody is asked again"


def test_a_chain_goes_on_after_its_worker_was_lost(start: Start, ledger: Ledger, table: Any) -> None:
    worker = start()
    last = chain(*(tool_signature("desk.add", {"key": key}, park=True) for key in ("one", "two"))).delay()
    [view] = wait_for_parked(table)
    kill(worker)
    start()
    approve(table, view)
    wait_until(lambda: [each for each in find_parked(table) if each.id == last.id], "the second is parked", TIMEOUT_S)
    [view] = find_parked(table)
    approve(table, view)
    assert ToolResult.model_validate(last.get(timeout=TIMEOUT_S)).content == "two"
    assert ledger.runs("add") == {"one": 1, "two": 1}


def test_parked_calls_outlive_a_restart_of_everything(tmp_path: Path, ledger: Ledger) -> None:
    count = 50
    with restartable(tmp_path, {"desk": witness(ledger, approval="always")}) as everything, build_tools() as tools:
        pending = [tools.submit("desk.add", {"key": str(number)}) for number in range(count)]
        wait_for_parked(everything.table, count)
        everything.restart()
        for view in wait_for_parked(everything.table, count):
            approve(everything.table, view)
        results = [each.result() for each in pending]
    assert {result.outcome for result in results} == {Outcome.OK}, json.dumps([each.content for each in results])
    assert ledger.runs("add") == {str(number): 1 for number in range(count)}
