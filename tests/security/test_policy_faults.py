"""Policies, limits and error budgets while workers are replaced, killed, or have wrong clocks."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tests.chaos.stage import can_fake_clocks, wrong_clock
from tests.cli.commands import run_forked
from tests.gates import make_gate, open_gate
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.servers import misbehaving_stdio
from tests.valkey import Valkey

AGENTS = ("sre", "dev")
DESK: dict[str, Any] = {"desk": DEMO_SERVER}
SETTINGS = "broker_transport_options = {'visibility_timeout': 2}\n"
HELLO = {"text": "hello"}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=tuple(AgentUser(name, ("desk", "frail")) for name in AGENTS)) as valkey:
        yield valkey


@pytest.fixture
def admin(valkey: Valkey) -> Iterator[Any]:
    with closing(redis.Redis.from_url(url_of(valkey.port))) as client:
        yield client
        assert not [key for key in client.keys("tarsy:*") if client.ttl(key) == -1 and key != keys.QUEUES.encode()]
        client.flushall()


@pytest.fixture
def start(valkey: Valkey, tmp_path: Path) -> Iterator[Any]:
    """Starts workers; the policy of a worker is a file of that name, or there is none."""
    started: list[Worker] = []

    def start(policy: str | None, servers: dict[str, Any] = DESK, **environment: str) -> Worker:
        if policy is not None:
            environment["TARSY_POLICY"] = str(tmp_path / policy)
        name = f"w{len(started)}"
        options: dict[str, Any] = {"settings": SETTINGS, "name": name, "environment": environment}
        worker = Worker(tmp_path / name, servers, url_of(valkey.port), **options)
        started.append(worker)
        worker.wait_until_ready()
        return worker

    yield start
    for worker in started:
        worker.ask_to_stop()
    for worker in started:
        worker.stop()


@pytest.fixture
def agents(valkey: Valkey, tmp_path: Path) -> Iterator[dict[str, TarsyApp]]:
    with ExitStack() as stack:
        found: dict[str, TarsyApp] = {}
        for name in AGENTS:
            url = url_of(valkey.port, name)
            found[name] = stack.enter_context(closing(build_app({"broker_url": url, "result_backend": url})))
        yield found


def write(path: Path, policy: Any) -> None:
    path.write_text(policy if isinstance(policy, str) else json.dumps(policy))


def tools_of(app: TarsyApp, timeout_s: float = 60, server: str = "desk") -> ToolExecutor:
    return ToolExecutor([server], timeout_s=timeout_s, app=app)


def codes(results: list[ToolResult]) -> Counter[str]:
    return Counter(str(result.error_code or result.outcome) for result in results)


def test_a_wrong_policy_stops_no_worker_that_runs(start: Any, agents: dict[str, TarsyApp], tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write(path, {"agents": {"sre": {}, "*": {"allow": []}}})
    worker = start("policy.json")
    with environment_of(worker):
        for wrong, why in (
            ("", "is empty"),
            ("{", "not valid JSON"),
            ("[]", "found a list"),
            ('{"agents": {"sre": {"deny": ["desk.*"]}}}', 'the entry "*" is missing'),
            (b"\xff\xfe".decode("latin-1"), "not valid JSON"),
        ):
            write(path, wrong)
            environment = worker.environment_of("worker")
            done = run_forked(["-m", "celery", "-A", "tarsy_tasks", "worker"], environment, tmp_path)
            assert done.returncode == 2
            assert str(path) in done.stderr
            assert why in done.stderr
        for name, code in (("sre", None), ("dev", ErrorCode.NOT_PERMITTED)):
            with tools_of(agents[name]) as tools:
                assert tools.execute("desk.echo", HELLO).error_code == code


def test_a_policy_that_is_removed_under_load_blocks_nothing(
    start: Any, agents: dict[str, TarsyApp], admin: Any, tmp_path: Path
) -> None:
    limits = [
        {"tools": ["desk.wait"], "rate": "6/min", "burst": 2, "when_over": "wait"},
        {"tools": ["desk.order"], "rate": "1/day"},
        {"tools": ["desk.echo"], "concurrency": 2, "when_over": "wait"},
    ]
    write(tmp_path / "policy.json", {"limits": limits})
    older = start("policy.json")
    with environment_of(older), tools_of(agents["sre"]) as tools, tools_of(agents["dev"]) as others:
        waiting = [tools.submit("desk.wait", {"seconds": 0.01}) for _ in range(6)]
        assert others.execute("desk.order", {"item": "x", "count": 1}).outcome is Outcome.OK
        assert others.execute("desk.order", {"item": "x", "count": 1}).error_code is ErrorCode.RATE_LIMITED
        load = [each.submit("desk.echo", HELLO) for _ in range(100) for each in (tools, others)]
        newer = start(None)
        assert older.stop() == 0
        assert codes([call.result() for call in load]) == {"ok": 200}
        # These would have waited for 40 s.
        for key in admin.zrange(keys.DELAYED, 0, -1):
            admin.zadd(keys.DELAYED, {key: 1})
        assert codes([call.result() for call in waiting]) == {"ok": 6}
        assert others.execute("desk.order", {"item": "x", "count": 1}).outcome is Outcome.OK
        assert "Traceback" not in newer.log


def test_a_worker_that_is_killed_gives_its_places_back(
    start: Any, agents: dict[str, TarsyApp], admin: Any, tmp_path: Path
) -> None:
    write(tmp_path / "policy.json", {"limits": [{"tools": ["desk.wait"], "concurrency": 1}]})
    first = start("policy.json")
    with environment_of(first), tools_of(agents["sre"]) as tools:
        held = tools.submit("desk.wait", {"seconds": 5, "steps": 1})
        wait_until(lambda: admin.hget(keys.call_marker(held.id), "owner"), "it runs")
        assert tools.execute("desk.wait", {"seconds": 0}).error_code is ErrorCode.RATE_LIMITED
        second = start("policy.json")
        first.process.kill()
        first.process.wait()
        # The call holds its place until its lease ends, and again while the other worker runs it.
        assert held.result().outcome is Outcome.OK
        assert tools.execute("desk.wait", {"seconds": 0}).outcome is Outcome.OK
        assert second.process.poll() is None


def test_another_worker_tries_a_server_if_the_first_is_killed(
    start: Any, agents: dict[str, TarsyApp], admin: Any, tmp_path: Path
) -> None:
    hold, budget = tmp_path / "hold", keys.error_budget_key("frail")
    program = f"{sys.executable} {misbehaving_stdio.__file__} dies-in-mid-call"
    script = f"test -e {hold} && read -r line < {hold}; exec {program}"
    entry = {
        "command": "sh",
        "args": ["-c", script],
        "error_budget": {"max_failure_rate": 0.5, "min_calls": 2},
    }
    workers = [start(None, {"frail": entry}) for _ in range(2)]
    with environment_of(workers[0]), ExitStack() as stack:
        tools = [stack.enter_context(tools_of(agents[name], server="frail")) for name in AGENTS]
        for _ in range(2):
            for each in tools:
                each.execute(ToolCall(name="frail.act", arguments={"text": "x"}))
        wait_until(lambda: admin.hget(budget, "until"), "it is suspended")
        make_gate(hold)
        admin.hset(budget, "until", "1.0")
        prober = wait_until(lambda: admin.hget(budget, "prober"), "a worker tries it").decode()
        lost = next(worker for worker in workers if prober.startswith(f"{worker.log_path.stem}@"))
        wait_until(lambda: lost.find_children(script), "its start is in progress")
        lost.process.kill()
        lost.process.wait()
        open_gate(hold)
        assert admin.hget(budget, "prober") == prober.encode()
        admin.hset(budget, "until", "1.0")  # the time that it had is over
        wait_until(lambda: not admin.hget(budget, "until"), "the other one has tried it")

        def answers() -> bool:
            return not tools[0].execute(ToolCall(name="frail.echo", arguments={"text": "x"})).is_error

        wait_until(answers, "it answers")


def test_workers_with_wrong_clocks_keep_to_one_limit(
    start: Any, agents: dict[str, TarsyApp], admin: Any, tmp_path: Path
) -> None:
    if not can_fake_clocks() and not os.environ.get("CI"):
        pytest.skip("there is no libfaketime on this machine: apt-get install faketime")
    write(tmp_path / "policy.json", {"limits": [{"rate": "5/h", "burst": 5, "calls_per_day": 1000}]})
    workers = [start("policy.json", **wrong_clock(offset)) for offset in ("+26h", "-26h")]
    with environment_of(workers[0]), tools_of(agents["sre"]) as tools:
        results: list[ToolResult] = []

        def both_took_some() -> bool:
            results.extend(tools.execute_many([("desk.echo", HELLO)] * 60))
            entries = read_audit(admin, AuditFilter(principal="sre"), limit=1000).entries
            return len({entry.worker for entry in entries}) == 2

        wait_until(both_took_some, "both workers took some")
    assert codes(results) == {"ok": 5, "RATE_LIMITED": len(results) - 5}
    waits = [result.retry_after_s for result in results if result.retry_after_s is not None]
    assert all(11 * 60 < wait <= 12 * 60 for wait in waits), waits
    assert len(admin.keys("tarsy:limit:*:calls:*")) == 1, "the day is that of Redis"
