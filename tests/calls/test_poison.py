"""A call that kills each worker that runs it becomes a dead letter and costs no other call; an operator handles it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import MAX_DELIVERIES
from tarsy_tasks.celery_app import agent_app
from tarsy_tasks.telemetry.audit import read_audit
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
def start(redis_url: str, ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartOne]:
    """Starts workers whose leases lapse soon."""
    with ExitStack() as stack, redis.Redis.from_url(redis_url) as client:

        def start(*options: str) -> Worker:
            directory: Path = tmp_path_factory.mktemp("worker")
            worker = Worker(directory, {"desk": witness(ledger, *options)}, redis_url, settings=SHORT_LEASE)
            stack.enter_context(worker)
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
        for _ in range(MAX_DELIVERIES):
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


def poison(worker: Worker, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("tarsy-tasks")), "poison", *words],
        capture_output=True,
        text=True,
        env=worker.environment,
        cwd=worker.log_path.parent,
        timeout=60,
    )


def test_a_call_that_kills_its_workers_becomes_a_dead_letter(
    deadly: tuple[str, ToolResult, list[ToolResult]], ledger: Ledger
) -> None:
    call_id, result, beside = deadly
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.SET_ASIDE)
    assert f"tarsy-tasks poison show {call_id}" in result.content
    assert "may have run" in result.content
    assert {each.outcome for each in beside} == {Outcome.OK}
    assert ledger.runs()["deadly"] == MAX_DELIVERIES


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
    listed = json.loads(poison(merciful, "list", "--json").stdout)
    assert [(each["id"], each["tool"], each["damage"]) for each in listed["messages"]] == [(call_id, "desk.look", None)]
    plain = poison(merciful, "show", call_id)
    assert (plain.returncode, "agent_id" in plain.stdout, "deadly" in plain.stdout) == (0, True, False)
    shown = poison(merciful, "show", call_id, "--arguments", "--json").stdout
    assert json.loads(shown)["arguments"]["key"] == "deadly"
    assert "hunter" not in shown
    assert poison(merciful, "retry", call_id).returncode == 0
    again = agent_app().AsyncResult(call_id).get(timeout=TIMEOUT_S)
    assert (again["outcome"], again["call_id"]) == ("ok", "d")
    assert ledger.runs()["deadly"] == MAX_DELIVERIES + 1


def test_missing_and_damaged_dead_letters_are_reported(merciful: Worker, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(keys.dead_letter_key("broken"), "nonsense", ex=600)
        client.zadd(keys.DEAD_LETTERS, {"broken": 1.0})
        client.expire(keys.DEAD_LETTERS, 600)
    assert "no string" not in poison(merciful, "list").stdout
    for words, said in (
        (("show", "stranger"), "no message stranger"),
        (("retry", "stranger", "broken"), "damaged"),
        (("drop", "stranger"), "not found"),
    ):
        done = poison(merciful, *words)
        assert (done.returncode, said in done.stdout + done.stderr) == (1, True)
    assert "damage" in poison(merciful, "show", "broken", "--arguments").stdout
    assert poison(merciful, "drop", "broken").returncode == 0
    assert json.loads(poison(merciful, "list", "--json").stdout) == {"messages": [], "total": 0}
    merciful.environment["TARSY_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    gone = poison(merciful, "list")
    assert (gone.returncode, "Redis could not be reached" in gone.stderr) == (3, True)
