"""A call that kills each worker that runs it becomes a dead letter and costs no other call; an operator handles it."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import QUARANTINE_FROM_DELIVERY
from tarsy_tasks.celery_app import agent_app
from tarsy_tasks.telemetry.audit import read_audit
from tests.cli.commands import run_command
from tests.faults.ledger import Ledger, submit_calls, wait_for_runs, witness
from tests.processes import Worker, environment_of, free_port, wait_until

INNOCENT = [f"held{number}" for number in range(20)]
SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
TIMEOUT_S = 60
StartOne = Callable[..., Worker]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("desk") / "ledger")


@pytest.fixture(scope="module")
def workers() -> list[Worker]:
    """All that were started."""
    return []


@pytest.fixture(scope="module")
def start(
    redis_url: str, ledger: Ledger, workers: list[Worker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartOne]:
    """Starts workers whose leases lapse soon."""
    with ExitStack() as stack, redis.Redis.from_url(redis_url) as client:

        def start(*options: str) -> Worker:
            directory: Path = tmp_path_factory.mktemp("worker")
            worker = Worker(directory, {"desk": witness(ledger, *options)}, redis_url, settings=SHORT_LEASE)
            workers.append(stack.enter_context(worker))
            worker.wait_until_ready()
            return worker

        yield start
        client.flushall()


@pytest.fixture(scope="module")
def deadly(start: StartOne, ledger: Ledger) -> Iterator[tuple[str, ToolResult, list[ToolResult]]]:
    """The id of the call that kills, how it ended, and how the calls beside it ended."""
    worker = start()
    with environment_of(worker), ToolExecutor(timeout_s=TIMEOUT_S, agent_id="sre") as tools:
        beside = submit_calls(tools, "desk", INNOCENT, ("look", "renew"))
        wait_for_runs(ledger, len(INNOCENT))
        arguments = {"key": "deadly", "kills_worker": True, "length": 5, "password": "hunter-2-secret"}
        call = tools.submit(ToolCall(id="d", name="desk.look", arguments=json.dumps(arguments)))
        for _ in range(QUARANTINE_FROM_DELIVERY):
            killed = worker
            wait_until(lambda: killed.process.poll() is not None, "the call kills its worker", TIMEOUT_S)  # noqa: B023
            worker = start()
        ended = call.id, call.result(), [each.result() for each in beside]
        worker.stop()
        yield ended


@pytest.fixture(scope="module")
def merciful(start: StartOne) -> Worker:
    """A worker that the call does not kill."""
    return start("--merciful")


@pytest.fixture(scope="module")
def damaged(merciful: Worker, redis_url: str) -> str:
    """The id of a message whose entry cannot be read."""
    with redis.Redis.from_url(redis_url) as client:
        client.hset(keys.UNACKED, "torn", "nonsense")
        client.zadd(keys.waiting_key("mcp.desk"), {"torn": 1})
        client.zadd(keys.QUEUES, {"mcp.desk": 1})
        wait_until(lambda: client.exists(keys.dead_letter_key("torn")), "a sweep finds it")
    return "torn"


def dead_letters(worker: Worker, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command("dead-letters", *words, environment=worker.environment, cwd=worker.log_path.parent)


def test_a_call_that_kills_its_workers_becomes_a_dead_letter(
    deadly: tuple[str, ToolResult, list[ToolResult]], ledger: Ledger
) -> None:
    call_id, result, beside = deadly
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.SET_ASIDE)
    assert f"tarsy-tasks dead-letters show {call_id}" in result.content
    assert "may have run" in result.content
    assert {each.outcome for each in beside} == {Outcome.OK}
    assert ledger.runs()["deadly"] == QUARANTINE_FROM_DELIVERY


def test_the_audit_has_one_entry_for_it_and_for_each_beside_it(
    deadly: tuple[str, ToolResult, list[ToolResult]], redis_url: str
) -> None:
    call_id, *_ = deadly
    with redis.Redis.from_url(redis_url) as client:
        entries = wait_until(
            lambda: by_outcome(client) if len(by_outcome(client)) > len(INNOCENT) else None, "all have one"
        )
    assert entries.pop("d") == (call_id, Outcome.UNKNOWN, ErrorCode.SET_ASIDE, "sre", "desk.look")
    assert {each[1] for each in entries.values()} == {Outcome.OK}
    assert set(entries) == set(INNOCENT)


def by_outcome(client: redis.Redis) -> dict[str, tuple[object, ...]]:
    """What the entries say, by the ids of the calls; fails when a call has two."""
    entries = read_audit(client, limit=1000).entries
    assert len({entry.call_id for entry in entries}) == len(entries)
    assert not any("hunter" in entry.arguments for entry in entries)
    return {
        entry.call_id: (entry.task_id, entry.outcome, entry.error_code, entry.agent_id, entry.name) for entry in entries
    }


def test_an_operator_sees_a_dead_letter_masked_and_requeues_it(
    deadly: tuple[str, ToolResult, list[ToolResult]], merciful: Worker, ledger: Ledger
) -> None:
    call_id, *_ = deadly
    listed = json.loads(dead_letters(merciful, "list", "--json").stdout)
    assert [(each["id"], each["tool"], each["damage"]) for each in listed["messages"]] == [(call_id, "desk.look", None)]
    plain = dead_letters(merciful, "show", call_id)
    assert (plain.returncode, "agent_id" in plain.stdout, "deadly" in plain.stdout) == (0, True, False)
    shown = dead_letters(merciful, "show", call_id, "--arguments", "--json").stdout
    assert json.loads(shown)["arguments"]["key"] == "deadly"
    assert "hunter" not in shown
    assert dead_letters(merciful, "retry", call_id).returncode == 0
    again = agent_app().AsyncResult(call_id).get(timeout=TIMEOUT_S)
    assert (again["outcome"], again["call_id"]) == ("ok", "d")
    assert ledger.runs()["deadly"] == QUARANTINE_FROM_DELIVERY + 1


def test_a_dead_letter_is_logged_once_with_its_cause(
    deadly: tuple[str, ToolResult, list[ToolResult]], merciful: Worker, damaged: str, workers: list[Worker]
) -> None:
    merciful.wait_for_log(f"message {damaged} was moved to the dead letters: it cannot be read")
    found = [line for worker in workers for line in worker.log.splitlines() if "moved to the dead letters" in line]
    causes = [line.rpartition(": ")[2] for line in found if deadly[0] in line]
    assert causes == ["every worker that took it was lost"]


def test_missing_and_damaged_dead_letters_are_reported(merciful: Worker, damaged: str) -> None:
    assert "no string" not in dead_letters(merciful, "list").stdout
    for words, said in (
        (("show", "unknown"), "no message unknown"),
        (("retry", "unknown", damaged), "damaged"),
        (("drop", "unknown"), "not found"),
    ):
        done = dead_letters(merciful, *words)
        assert (done.returncode, said in done.stdout + done.stderr) == (1, True)
    assert "damage" in dead_letters(merciful, "show", damaged, "--arguments").stdout
    assert dead_letters(merciful, "drop", damaged).returncode == 0
    assert json.loads(dead_letters(merciful, "list", "--json").stdout) == {"messages": [], "total": 0}
    merciful.environment["TARSY_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    gone = dead_letters(merciful, "list")
    assert (gone.returncode, "Redis could not be reached" in gone.stderr) == (3, True)
