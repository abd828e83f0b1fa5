"""Every call that a worker ends has one entry in the audit, whatever became of it."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Queue

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, StepName, build_canonical, build_digest, read_audit
from tests.calls.audit_entries import only_entry
from tests.calls.test_endings import hold, recording_server
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, wait_for_runs, witness
from tests.faults.test_stdio_faults import server_process
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.servers import misbehaving_stdio
from tests.servers.misbehaving_stdio import SECRET

UNMASKED = "of-which-1-answer-makes-no-secret"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def ledgers(directory: Path) -> dict[str, Ledger]:
    return {name: Ledger(directory / name) for name in ("safe", "unsafe")}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, directory: Path, ledgers: dict[str, Ledger]) -> Worker:
    servers: dict[str, Any] = {
        "desk": DEMO_SERVER,
        "recorder": recording_server(directory),
        "blab": {"command": sys.executable, "args": [misbehaving_stdio.__file__, "tells-secrets"]},
        "stillborn": {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]},
        "open": {**DEMO_SERVER, "masking": {"enabled": False}},
        "patterned": {**DEMO_SERVER, "masking": {"patterns": ["ticket-[0-9]{6}"]}},
        "slow": {**DEMO_SERVER, "timeouts": {"tools": {"wait": 0.3}}},
        **{name: witness(ledger) for name, ledger in ledgers.items()},
    }
    return start_worker(servers, environment={"TARSY_AUDIT_FILE": str(directory / "audit.jsonl")})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=30, agent_id="sre", run_id="r7")


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture(scope="module")
def foreign(redis_url: str) -> Celery:
    return Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False)


def names(entry: AuditEntry) -> list[StepName]:
    return [step.name for step in entry.steps]


def call(tools: ToolExecutor, name: str, arguments: Any = None) -> str:
    """Makes a call and returns its task id."""
    pending = tools.submit(ToolCall(id="c1", name=name, arguments=arguments))
    pending.result()
    return pending.id


def test_an_entry_says_who_called_what_and_how_it_went(tools: ToolExecutor, client: Any) -> None:
    began = time.time()
    pending = tools.submit(ToolCall(id="c1", name="desk.echo", arguments='text: "hello"'))
    result = pending.result()
    entry = only_entry(client, pending.id)
    assert entry.source == "worker"
    assert (entry.call_id, entry.agent_id, entry.run_id, entry.name) == ("c1", "sre", "r7", "desk.echo")
    assert (entry.outcome, entry.error_code, entry.error) == (Outcome.OK, None, None)
    assert entry.arguments == '{"text":"hello"}'
    assert entry.arguments_digest == build_digest(build_canonical({"text": "hello"}))
    assert entry.repairs == result.repairs != ()
    assert (entry.attempts, entry.duration_s) == (1, result.duration_s)
    assert entry.worker.startswith("w0@")
    assert entry.bytes == len(client.get(keys.result_key(pending.id)))
    assert names(entry) == [StepName.QUEUED, StepName.PICKED_UP, StepName.SENT, StepName.ANSWERED]
    times = [step.at for step in entry.steps]
    # The first is the agent's: each process reads Redis' clock by itself, as exactly as a round trip allows.
    assert times[1:] == sorted(times[1:])
    assert began - 5 < times[0] < times[-1] == entry.at < time.time() + 5


@pytest.mark.parametrize(
    ("name", "arguments", "outcome", "code", "attempts"),
    [
        ("desk.order", {"item": "unicorn", "count": 1}, Outcome.TOOL_ERROR, ErrorCode.TOOL_ERROR, 1),
        ("desk.order", {"item": "lamp"}, Outcome.REJECTED, ErrorCode.INVALID_ARGUMENTS, 0),
        ("desk.invented", {}, Outcome.REJECTED, ErrorCode.UNKNOWN_TOOL, 0),
        ("stillborn.act", {}, Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE, 0),
        ("slow.wait", {"seconds": 20}, Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT, 1),
        ("blab.die", {"text": ""}, Outcome.UNKNOWN, ErrorCode.SESSION_LOST, 1),
    ],
)
def test_each_way_to_end_has_one_entry(
    tools: ToolExecutor, client: Any, name: str, arguments: Any, outcome: Outcome, code: ErrorCode, attempts: int
) -> None:
    entry = only_entry(client, call(tools, name, arguments))
    assert (entry.name, entry.outcome, entry.error_code, entry.attempts) == (name, outcome, code, attempts)
    assert entry.error
    assert entry.arguments == build_canonical(arguments)
    assert names(entry)[-1] is StepName.ANSWERED


def test_a_recovered_call_shows_its_attempts_and_the_new_session(
    tools: ToolExecutor, worker: Worker, ledgers: dict[str, Ledger], client: Any
) -> None:
    ledger = ledgers["safe"]
    pending = tools.submit(ToolCall(id="1", name="safe.look", arguments={"key": "held"}))
    wait_for_runs(ledger, 1)
    server_process(worker, ledger).kill()
    assert pending.result().outcome is Outcome.OK
    entry = only_entry(client, pending.id)
    assert entry.attempts == 2
    assert names(entry) == [
        StepName.QUEUED,
        StepName.PICKED_UP,
        StepName.SENT,
        StepName.RECOVERED,
        StepName.SENT,
        StepName.ANSWERED,
    ]


def test_a_call_that_was_revoked_while_it_ran_is_cancelled(tools: ToolExecutor, directory: Path, client: Any) -> None:
    pending = hold(tools, directory, "revoked")
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    entry = only_entry(client, pending.id)
    assert (entry.outcome, entry.error_code, entry.name) == (Outcome.CANCELLED, ErrorCode.CANCELLED, "recorder.hold")
    assert "If it had begun" in (entry.error or "")
    assert StepName.SENT in names(entry)


def test_a_call_without_a_stored_result_has_an_entry_too(foreign: Celery, worker: Worker, client: Any) -> None:
    sent = foreign.send_task("tarsy.call_tool", ["desk", "echo", {"text": "x"}], queue="mcp.desk", ignore_result=True)
    entry = only_entry(client, sent.id)
    assert (entry.outcome, entry.bytes, entry.agent_id) == (Outcome.OK, None, None)
    assert names(entry) == [StepName.PICKED_UP, StepName.SENT, StepName.ANSWERED]


def test_what_a_foreign_producer_gets_wrong_has_an_entry(foreign: Celery, worker: Worker, client: Any) -> None:
    sent = foreign.send_task(
        "tarsy.call_tool", ["desk", "echo", {"text": "x"}, {"timeout_s": "soon"}], queue="mcp.desk"
    )
    sent.get(timeout=20)
    entry = only_entry(client, sent.id)
    assert (entry.outcome, entry.error_code, entry.name) == (Outcome.REJECTED, ErrorCode.INVALID_MESSAGE, "desk.echo")
    sent = foreign.send_task("tarsy.call_tool", [["desk"], 7, "x", 5], queue="mcp.desk")
    sent.get(timeout=20)
    entry = only_entry(client, sent.id)
    assert (entry.error_code, entry.server, entry.tool) == (ErrorCode.INVALID_MESSAGE, "desk", "")


def test_a_message_that_is_not_a_call_has_an_entry(foreign: Celery, worker: Worker, client: Any) -> None:
    sent = foreign.send_task("nobody.knows", [f"password={SECRET}"], queue="mcp.desk")
    entry = only_entry(client, sent.id)
    assert (entry.outcome, entry.error_code, entry.server) == (Outcome.REJECTED, ErrorCode.INVALID_MESSAGE, "desk")
    assert "no task of that name" in (entry.error or "")
    with foreign.connection_for_write() as connection, connection.Producer(serializer="json") as producer:
        headers = {"id": "no-list", "task": "tarsy.call_tool", "lang": "py", "argsrepr": "", "kwargsrepr": ""}
        queue = Queue("mcp.desk", routing_key="mcp.desk")
        producer.publish(
            [7, {}, {}], routing_key="mcp.desk", exchange="", headers=headers, declare=[queue], correlation_id="n"
        )
    assert only_entry(client, "no-list").error_code == ErrorCode.INTERNAL_ERROR, "Celery cannot even begin it"


def test_listings_and_checks_are_not_audited(tools: ToolExecutor, foreign: Celery, client: Any) -> None:
    before = client.xlen(keys.AUDIT)
    tools.list_tools()
    foreign.send_task("tarsy.list_tools", ["desk"], queue="mcp.desk").get(timeout=20)
    assert client.xlen(keys.AUDIT) == before


def test_no_secret_is_in_the_audit(tools: ToolExecutor, client: Any, directory: Path) -> None:
    arguments = {"text": f"password={SECRET}", "password": SECRET}
    for name in ("blab.act", "blab.refuse", f"blab.password={SECRET}"):
        only_entry(client, call(tools, name, arguments))
    with_secret_ids = ToolExecutor(timeout_s=20, agent_id=f"password={SECRET}", run_id=f"api_key: {SECRET}")
    only_entry(client, call(with_secret_ids, "desk.echo", f"password: {SECRET}"))
    stored = b"".join(fields[keys.AUDIT_FIELD.encode()] for _, fields in client.xrange(keys.AUDIT))
    assert MASK.encode() in stored
    assert SECRET.encode() not in stored
    assert SECRET not in (directory / "audit.jsonl").read_text()


def test_the_audit_masks_even_where_masking_is_off(tools: ToolExecutor, client: Any) -> None:
    pending = tools.submit(ToolCall(id="o", name="open.order", arguments={"item": f"password={UNMASKED}", "count": 1}))
    assert UNMASKED in pending.result().content
    assert UNMASKED not in only_entry(client, pending.id).encode()
    entry = only_entry(client, call(tools, "patterned.echo", {"text": "see ticket-123456"}))
    assert entry.arguments == f'{{"text":"see {MASK}"}}'


def test_large_arguments_are_cut_and_nothing_of_a_secret_stays(tools: ToolExecutor, client: Any) -> None:
    arguments = {"a_path": "notes.txt", "password": SECRET * 3000, "text": "x" * 100_000}
    entry = only_entry(client, call(tools, "desk.echo", arguments))
    assert len(entry.arguments) <= 2001
    assert "notes.txt" in entry.arguments
    assert SECRET not in entry.arguments
    assert entry.arguments_digest == build_digest(build_canonical(arguments))


def test_the_file_has_the_same_entries_a_line_each(client: Any, tools: ToolExecutor, directory: Path) -> None:
    task_id = call(tools, "desk.echo", {"text": "for the file"})
    file = directory / "audit.jsonl"
    count = client.xlen(keys.AUDIT)
    wait_until(lambda: task_id in (text := file.read_text()) and text.count("\n") == count, "all lines")
    lines = [AuditEntry.model_validate(json.loads(line)) for line in file.read_text().splitlines()]
    entries = read_audit(client, AuditFilter(), limit=10_000, newest_first=False).entries
    told = {entry.task_id: entry.model_copy(update={"id": ""}) for entry in entries}
    assert {line.task_id: line for line in lines} == told
    assert len(lines) == len(told)
