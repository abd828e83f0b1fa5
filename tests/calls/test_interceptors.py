"""Interceptors of users: installed by entry points, ordered by the configuration, kept from doing harm."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from celery import Celery

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import parked_calls
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.masking.edits import MASK
from tests.calls import house_rules
from tests.calls.house_rules import SECRET
from tests.cli.commands import run_forked
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until

ENTRY_POINTS = """
[tarsy_tasks.interceptors]
refusing = house_rules:Refusing
failing = house_rules:Failing
blocking = house_rules:Blocking
not_blocking = house_rules:NotBlocking
changing = house_rules:Changing
harmful = house_rules:Harmful
postponing = house_rules:Postponing
swallowing = house_rules:Swallowing
waiting_message = house_rules:waiting_message
waiting_call = house_rules:waiting_call
waiting_attempt = house_rules:waiting_attempt
alpha = house_rules:alpha
omega = house_rules:omega
not_one = house_rules:not_one
missing = house_rules:Missing
unused = house_rules:Missing
"""
WAITING = ["waiting_message", "waiting_call", "waiting_attempt"]
USED = [
    "omega",
    "alpha",
    "refusing",
    "failing",
    "blocking",
    "not_blocking",
    "changing",
    "harmful",
    "postponing",
    "swallowing",
    *WAITING,
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH with the distribution of a user."""
    directory = tmp_path_factory.mktemp("installed")
    shutil.copy(house_rules.__file__, directory)
    for gate in house_rules.GATES.values():
        os.mkfifo(directory / gate.name)
    metadata = directory / "house_rules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return directory


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "calls")


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, installed: Path, ledger: Ledger) -> Worker:
    environment = {"PYTHONPATH": str(installed)}
    servers = {"desk": witness(ledger), "careful": witness(ledger, approval="always")}
    return start_worker(servers, interceptors=USED, environment=environment)


def call(key: str, tool: str = "look") -> ToolResult:
    with ToolExecutor(timeout_s=20) as tools:
        return tools.execute(f"desk.{tool}", {"key": key})


@contextmanager
def opened(gate: Path) -> Iterator[None]:
    """While it is open, an interceptor waits there; it has come to it when this begins."""

    def has_come() -> int | None:
        with suppress(OSError):  # nobody reads there yet
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)

    file = wait_until(has_come, f"an interceptor waits at {gate.name}")
    try:
        yield
    finally:
        os.close(file)


def test_a_call_passes_interceptors_in_the_configured_order() -> None:
    assert call("order").content == "omega then alpha"
    assert call("nothing-special").outcome is Outcome.OK


def test_an_interceptor_can_refuse_a_call(ledger: Ledger) -> None:
    result = call("refused")
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.REFUSED)
    assert result.content == "No look on desk today. Ask for something else."
    assert not ledger.runs()["refused"]


def test_an_interceptor_cannot_change_what_was_approved(ledger: Ledger, redis_url: str) -> None:
    before = ledger.runs()["another"]
    with redis.Redis.from_url(redis_url) as table, ToolExecutor(timeout_s=40, park=True) as tools:
        pending = tools.submit("careful.look", {"key": "changed"})
        view = wait_until(lambda: parked_calls.load(table, pending.id), "it is parked", 40)
        assert parked_calls.decide(table, view, is_approved=True, by="ann") is Decided.APPROVED
        result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.APPROVAL_REQUIRED)
    assert "approved with other arguments than those that would be sent" in result.content
    assert ledger.runs()["another"] == before


def test_one_that_raises_before_sending_closes_the_call(ledger: Ledger, worker: Worker) -> None:
    result = call("raises-early")
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.INTERCEPTOR_FAILED)
    assert "`failing` failed on `desk.look` (KeyError). The tool did not run." in result.content
    assert not ledger.runs()["raises-early"]
    assert "the interceptor failing failed on desk.look" in worker.log
    assert SECRET not in result.content


@pytest.mark.parametrize(
    ("key", "why"), [("raises-late", "KeyError"), ("returns-nothing", "it did not return an Ending")]
)
def test_one_that_fails_after_sending_does_not_hide_it(key: str, why: str, ledger: Ledger) -> None:
    result = call(key)
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.INTERNAL_ERROR)
    assert f"`failing` failed on `desk.look` ({why}). The tool may have run." in result.content
    assert ledger.runs()[key] == 1


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("exits", "SystemExit"),
        ("awaits-what-is-cancelled", "CancelledError"),
        ("sends-two-at-once", "RuntimeError"),
    ],
)
def test_one_that_does_harm_only_closes_its_call(key: str, why: str, ledger: Ledger) -> None:
    result = call(key, "add")
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.INTERCEPTOR_FAILED)
    assert f"`harmful` failed on `desk.add` ({why}). The tool did not run." in result.content
    assert call(f"after-{key}").outcome is Outcome.OK
    assert not ledger.runs()[key]


def test_what_may_have_run_is_not_requeued(ledger: Ledger) -> None:
    result = call("requeues", "add")
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.INTERNAL_ERROR)
    assert ledger.runs()["requeues"] == 1


def test_one_that_blocks_the_event_loop_is_named(worker: Worker, installed: Path) -> None:
    with ToolExecutor(timeout_s=60) as tools:
        waits = tools.submit("desk.look", {"key": "waits"})
        with opened(installed / "waits"):
            blocks = tools.submit("desk.look", {"key": "blocks"})
            with opened(installed / "blocks"):
                worker.wait_for_log("(house_rules.py, line ")  # that the event loop did not respond there
            assert blocks.result().outcome is Outcome.OK
        assert waits.result().outcome is Outcome.OK
    worker.wait_for_log("the interceptor blocking blocked the event loop, which all calls share, for ")
    # On a busy machine others may be held up for a moment, but not for all that time.
    named = re.findall(
        r"the interceptor (\w+) blocked the event loop, which all calls share, for \d{4,} ms", worker.log
    )
    assert set(named) <= {"blocking"}, "neither one that waits, nor one around it"


def test_arguments_can_be_changed_before_they_are_sent(ledger: Ledger) -> None:
    assert call("changed").outcome is Outcome.OK
    assert (ledger.runs()["changed"], ledger.runs()["another"]) == (0, 1)


def test_a_result_of_an_interceptor_is_masked() -> None:
    with ToolExecutor(timeout_s=20) as tools:
        result = tools.execute(ToolCall(id="own", name="desk.look", arguments={"key": "leaks"}))
    assert (result.outcome, result.call_id, result.name, result.attempts) == ("tool_error", "own", "desk.look", 1)
    assert result.model_dump_json().count(MASK) == 5
    assert SECRET not in result.model_dump_json()


def test_what_an_interceptor_requeues_comes_back_a_second_later(worker: Worker) -> None:
    delivery_count, shortest_s = call("comes-back").content.split()
    assert (delivery_count, float(shortest_s) >= 1) == ("1", True)
    assert re.findall(r"requeue=True: not yet\n(Traceback)?", worker.log) == ["", ""], "each is one line in the log"


def test_only_what_is_harmless_is_sent_twice(ledger: Ledger) -> None:
    assert call("twice").outcome is Outcome.OK
    assert ledger.runs()["twice"] == 2
    ledger.path.write_text("")
    unsafe = call("twice", "add")
    assert (unsafe.outcome, unsafe.error_code) == (Outcome.UNKNOWN, ErrorCode.INTERNAL_ERROR)
    assert "`changing`" in unsafe.content
    assert ledger.runs()["twice"] == 1


def test_a_swallowed_cancel_sends_nothing(ledger: Ledger) -> None:
    with ToolExecutor(timeout_s=20) as tools:
        pending = tools.submit(ToolCall(name="desk.look", arguments={"key": "long", "wait_s": 30}))
        wait_until(lambda: ledger.runs()["long"], "the call runs")
        pending.cancel()
        assert pending.result(timeout_s=20).outcome is Outcome.CANCELLED
    assert call("another-one").outcome is Outcome.OK
    assert not ledger.runs()["sent-after-its-end"]


@pytest.mark.parametrize("stage", ["message", "call", "attempt"])
def test_one_that_waits_too_long_keeps_no_call_alive(stage: str, ledger: Ledger, redis_url: str) -> None:
    """The caller is another producer, which withdraws nothing at the deadline."""
    foreign = Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False)
    keys = [f"{does}-at-{stage}" for does in ("waits", "late", "keeps")]
    sent = [
        foreign.send_task("tarsy.call_tool", ["desk", "look", {"key": key}, {"timeout_s": seconds}], queue="mcp.desk")
        for key, seconds in zip(keys, (1, 1, 4), strict=True)
    ]
    waits, late, keeps = (ToolResult.model_validate(each.get(timeout=20)) for each in sent)
    for result in (waits, late):
        assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.DEADLINE_PASSED)
        assert "The tool did not run" in result.content
    assert (keeps.outcome, keeps.error_code) == (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
    assert [ledger.runs()[key] for key in keys] == [0, 0, 1]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere", "interceptors: 'nowhere' is not installed. Installed entry points in tarsy_tasks.interceptors:"),
        ("missing", "interceptors: 'missing' cannot be loaded: AttributeError"),
        ("not_one", "interceptors: 'not_one' is not an interceptor"),
    ],
)
def test_a_worker_refuses_interceptors_that_it_cannot_use(
    name: str, why: str, installed: Path, worker: Worker, tmp_path: Path
) -> None:
    (tmp_path / "mcp.json").write_text(f'{{"mcpServers": {{}}, "interceptors": ["{name}"]}}')
    environment = {**worker.environment_of("worker"), "TARSY_MCP_CONFIG": str(tmp_path / "mcp.json")}
    command = ["-m", "celery", "-A", "tarsy_tasks", "worker"]
    done = run_forked(command, environment, installed)  # and finds what is there
    assert done.returncode == 2
    assert why in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_nor_once_no_server_asks_for_approval(ledger: Ledger, redis_url: str, worker: Worker) -> None:
    before = ledger.runs()["another"]
    with redis.Redis.from_url(redis_url) as table, ToolExecutor(timeout_s=40, park=True) as tools:
        pending = tools.submit("careful.look", {"key": "changed"})
        view = wait_until(lambda: parked_calls.load(table, pending.id), "it is parked", 40)
        configured = json.loads(worker.config_path.read_text())
        del configured["mcpServers"]["careful"]["approval"]
        worker.config_path.write_text(json.dumps(configured))
        wait_until(lambda: "taken: " in worker.log, "the worker has taken the configuration", 40)
        assert parked_calls.decide(table, view, is_approved=True, by="ann") is Decided.APPROVED
        assert pending.result().error_code is ErrorCode.APPROVAL_REQUIRED
    assert ledger.runs()["another"] == before
