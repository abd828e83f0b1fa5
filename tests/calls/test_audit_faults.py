"""The audit when things fail: one entry per call, also of a lost worker; a failed write is logged, or stops calls."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.telemetry.audit import AuditEntry
from tarsy_tasks.telemetry.metrics import read_metrics
from tests.calls.audit_entries import only_entry
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, environment_of, wait_until
from tests.valkey import Valkey

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'


class Deployment:
    """Workers with short leases on a Redis of their own."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.directory = directory
        self.valkey = stack.enter_context(Valkey())
        self.url = f"{self.valkey.connection_url}/0"
        self.client: Any = stack.enter_context(redis.Redis.from_url(self.url))
        self.desk, self.vault = Ledger(directory / "desk.ledger"), Ledger(directory / "vault.ledger")
        self.file = directory / "later" / "audit.jsonl"
        self._stack = stack
        self._count = 0

    def start(self, server: str, **environment: str) -> Worker:
        self._count += 1
        unserved = {"command": "true", "masking": {"patterns": ["door-code ([0-9-]+)"]}}
        servers = {"desk": witness(self.desk), "vault": witness(self.vault), "unserved": unserved}
        worker = Worker(
            self.directory / f"worker{self._count}",
            servers,
            self.url,
            arguments=["-Q", keys.queue(server)],
            environment=environment,
            name=f"w{self._count}",
            settings=SHORT_LEASE,
        )
        self._stack.enter_context(worker)
        worker.wait_until_ready()
        return worker


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(stack, tmp_path_factory.mktemp("deployment"))


@pytest.fixture(scope="module")
def worker(deployment: Deployment) -> Iterator[Worker]:
    """One that serves `desk`, calls or no audit."""
    worker = deployment.start("desk")
    with environment_of(worker):
        yield worker


@pytest.fixture(scope="module")
def strict(deployment: Deployment, worker: Worker) -> Worker:
    """One that serves `vault` and makes no call that cannot be written down."""
    return deployment.start("vault", TARSY_AUDIT_REQUIRED="1", TARSY_AUDIT_FILE=str(deployment.file))


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=30)


@pytest.fixture
def app(deployment: Deployment) -> Iterator[TarsyApp]:
    with build_app({"broker_url": deployment.url, "result_backend": deployment.url}) as app:
        yield app


@pytest.fixture
def unwritable(deployment: Deployment) -> Iterator[None]:
    """A stream that takes nothing."""
    deployment.client.delete(keys.AUDIT)
    deployment.client.set(keys.AUDIT, "a text", ex=600)
    yield
    deployment.client.delete(keys.AUDIT)


def look(tools: ToolExecutor, server: str, key: str, tool: str = "look") -> Any:
    return tools.submit(ToolCall(id=key, name=f"{server}.{tool}", arguments={"key": key}))


def test_a_failing_audit_is_logged_once_and_calls_go_on(
    deployment: Deployment, worker: Worker, tools: ToolExecutor, unwritable: None
) -> None:
    for number in range(3):
        assert look(tools, "desk", f"free{number}").result().outcome is Outcome.OK
    complaint = "audit entries cannot be written to Redis: WRONGTYPE"
    worker.wait_for_log(complaint)
    assert worker.log.count(complaint) == 1
    wait_until(lambda: unaudited(deployment.client) == 3, "they are counted")
    deployment.client.delete(keys.AUDIT)
    pending = look(tools, "desk", "again")
    assert pending.result().outcome is Outcome.OK
    only_entry(deployment.client, pending.id)
    worker.wait_for_log("resolved after 3 failures: audit entries cannot be written to Redis")


def unaudited(client: Any) -> int:
    return sum(each.unaudited for each in read_metrics(client, ["desk"])["desk"])


def test_where_the_audit_is_required_no_call_is_made_without_it(
    deployment: Deployment, strict: Worker, tools: ToolExecutor
) -> None:
    result = look(tools, "vault", "no-directory").result()
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.AUDIT_UNAVAILABLE)
    assert "did not run" in result.content
    strict.wait_for_log("audit entries cannot be written to the audit file")
    deployment.file.parent.mkdir()
    assert look(tools, "vault", "writable").result().outcome is Outcome.OK
    assert set(deployment.vault.runs()) == {"writable"}
    wait_until(lambda: deployment.file.read_text().count("\n") == 2, "the line, which comes after the answer")
    lines = deployment.file.read_text().splitlines()
    codes = [AuditEntry.model_validate_json(line).error_code for line in lines]
    assert codes == [ErrorCode.AUDIT_UNAVAILABLE, None], "what could not be written then is written now"


def test_a_required_audit_needs_a_writable_stream(
    deployment: Deployment, strict: Worker, tools: ToolExecutor, unwritable: None
) -> None:
    deployment.file.parent.mkdir(exist_ok=True)
    result = look(tools, "vault", "no-stream").result()
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.AUDIT_UNAVAILABLE)
    strict.wait_for_log("audit entries cannot be written to Redis: WRONGTYPE")
    deployment.client.delete(keys.AUDIT)
    pending = look(tools, "vault", "stream")
    assert pending.result().outcome is Outcome.OK
    only_entry(deployment.client, pending.id)
    assert deployment.client.xlen(keys.AUDIT) == 1, "of the attempt before nothing is left"
    assert deployment.client.ttl(keys.AUDIT) > 0
    assert "no-stream" not in deployment.vault.runs()


def test_a_redis_that_is_full_takes_entries_as_it_takes_answers(
    deployment: Deployment, strict: Worker, tools: ToolExecutor
) -> None:
    deployment.file.parent.mkdir(exist_ok=True)
    arguments = {"key": "full", "wait_s": 1}
    pending = [
        tools.submit(ToolCall(id="full", name=f"{server}.look", arguments=arguments)) for server in ("desk", "vault")
    ]
    deployment.client.config_set("maxmemory", 1)
    try:
        assert {each.result().outcome for each in pending} == {Outcome.OK}
        for each in pending:
            only_entry(deployment.client, each.id)
    finally:
        deployment.client.config_set("maxmemory", 0)


def test_a_withdrawn_call_dropped_by_a_worker_has_an_entry(
    deployment: Deployment, worker: Worker, app: TarsyApp
) -> None:
    deployment.client.hset(keys.call_marker("taken-back"), "mark", "withdrawn")
    deployment.client.expire(keys.call_marker("taken-back"), 600)
    app.send_task("tarsy.call_tool", ["desk", "look", {"key": "taken-back"}, {"call_id": "w"}], task_id="taken-back")
    entry = only_entry(deployment.client, "taken-back")
    assert (entry.outcome, entry.error_code, entry.call_id) == (Outcome.CANCELLED, ErrorCode.CANCELLED, "w")
    assert "did not run" in (entry.error or "")
    assert "taken-back" not in deployment.desk.runs()


def test_a_call_after_its_deadline_is_dropped_with_an_entry(
    deployment: Deployment, worker: Worker, app: TarsyApp
) -> None:
    exchange = RedisExchange(deployment.client.connection_pool)
    deliveries = Deliveries(lambda: exchange)
    app.send_task(
        "tarsy.call_tool", ["nowhere", "look", '{"password": "hunter-2"}'], task_id="old", queue="mcp.nowhere"
    )
    text = deliveries.entry_of("old", "mcp.nowhere").decode().split("\n", 2)
    deployment.client.hset(keys.UNACKED, "old", f"{text[0]}\n1.0\n{text[2]}")
    deliveries.publish("mcp.nowhere", "damaged", "no message", garbage_at=1.0)
    entry = only_entry(deployment.client, "old")
    assert (entry.outcome, entry.error_code) == (Outcome.UNAVAILABLE, ErrorCode.NOT_STARTED)
    assert (entry.name, "hunter" in entry.arguments) == ("nowhere.look", False)
    entry = only_entry(deployment.client, "damaged")
    assert (entry.server, entry.tool, entry.error_code) == ("nowhere", "", ErrorCode.NOT_STARTED)
    assert not deployment.client.exists("mcp.nowhere")


def test_entries_are_masked_as_a_server_asks_that_nobody_serves(
    deployment: Deployment, worker: Worker, app: TarsyApp
) -> None:
    exchange = RedisExchange(deployment.client.connection_pool)
    deliveries = Deliveries(lambda: exchange)
    arguments = ["unserved", "look", {"note": "the door-code 47-11-0815"}]
    app.send_task("tarsy.call_tool", arguments, task_id="unserved", queue="mcp.unserved")
    text = deliveries.entry_of("unserved", "mcp.unserved").decode().split("\n", 2)
    deployment.client.hset(keys.UNACKED, "unserved", f"{text[0]}\n1.0\n{text[2]}")
    entry = only_entry(deployment.client, "unserved")
    assert entry.name == "unserved.look"
    assert "the " in entry.arguments
    assert "0815" not in entry.arguments


def test_calls_that_a_killed_worker_had_have_one_entry_each(
    deployment: Deployment, worker: Worker, tools: ToolExecutor
) -> None:
    kinds = {"look": Outcome.OK, "add": Outcome.UNKNOWN}
    pending = {tool: look(tools, "desk", f"held-{tool}", tool) for tool in kinds}
    arguments = {"key": "answered", "wait_s": 0.01}
    answered = tools.submit(ToolCall(id="a", name="desk.look", arguments=arguments))
    assert answered.result().outcome is Outcome.OK
    wait_until(lambda: len(deployment.desk.lines("run", "add", "held-add")) == 1, "the calls run")
    os.kill(worker.pid, signal.SIGKILL)
    worker.process.wait()
    deployment.start("desk")
    for tool, outcome in kinds.items():
        assert pending[tool].result().outcome is outcome
        entry = only_entry(deployment.client, pending[tool].id)
        assert (entry.outcome, entry.worker.partition("@")[0]) == (outcome, "w3"), "the one that said so"
    assert only_entry(deployment.client, answered.id).worker.startswith("w1@")


def test_an_answer_that_waits_for_redis_takes_its_entry_along(deployment: Deployment, tools: ToolExecutor) -> None:
    pending = tools.submit(ToolCall(id="r", name="desk.look", arguments={"key": "away", "wait_s": 4}))
    wait_until(lambda: deployment.desk.runs()["away"], "it runs")
    deployment.valkey.terminate()
    deployment.valkey.start()
    assert pending.result().outcome is Outcome.OK
    only_entry(deployment.client, pending.id)
