"""A server that fails too many calls: all workers suspend it, it is tried, and it is back by itself."""

import json
import re
import sys
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
from tarsy_tasks.telemetry.health_records import read_health
from tests.cli.commands import run_command
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.servers import misbehaving_stdio
from tests.valkey import Valkey

SERVERS: dict[str, Any] = {
    # Its tool `act` ends the server in mid-call, `echo` answers.
    "frail": {
        "command": sys.executable,
        "args": [misbehaving_stdio.__file__, "dies-in-mid-call"],
        "error_budget": {"max_failure_rate": 0.5, "min_calls": 4},
    },
    "slow": {**DEMO_SERVER, "timeouts": {"call_s": 5}, "error_budget": {"max_failure_rate": 0.9}},
}
BUDGET = keys.error_budget_key("frail")


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=(AgentUser("sre", ("frail", "slow")), AgentUser("dev", ("frail",)))) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def workers(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        found: list[Worker] = []
        for name in ("w1", "w2"):
            worker = Worker(tmp_path_factory.mktemp(name), SERVERS, url_of(valkey.port), name=name)
            found.append(stack.enter_context(worker))
        for worker in found:
            worker.wait_until_ready()
        stack.enter_context(environment_of(found[0]))
        yield found
        for worker in found:
            worker.ask_to_stop()


@pytest.fixture(scope="module")
def admin(valkey: Valkey) -> Iterator[Any]:
    with closing(redis.Redis.from_url(url_of(valkey.port))) as client:
        yield client
        assert not client.acl_log(), "some part was denied what it needs"


@pytest.fixture(scope="module")
def apps(workers: list[Worker], valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    urls = {name: url_of(valkey.port, name) for name in ("sre", "dev", "operator")}
    apps = {name: build_app({"broker_url": url, "result_backend": url}) for name, url in urls.items()}
    yield apps
    for app in apps.values():
        app.close()


def call(app: TarsyApp, tool: str) -> ToolResult:
    with ToolExecutor(["frail"], timeout_s=60, app=app) as tools:
        return tools.execute(ToolCall(id="1", name=f"frail.{tool}", arguments={"text": "here"}))


def counted(admin: Any, agent: str, budget: str = BUDGET) -> tuple[int, int]:
    fields = {name.decode(): int(value) for name, value in admin.hgetall(budget).items() if name[:1].isdigit()}
    calls, failed = (
        sum(value for name, value in fields.items() if name.endswith(f" {what} {agent}")) for what in ("c", "f")
    )
    return calls, failed


def fail(app: TarsyApp, times: int) -> None:
    for _ in range(times):
        assert call(app, "act").error_code is ErrorCode.SESSION_LOST


def suspend(apps: dict[str, TarsyApp], admin: Any) -> str:
    """The text of a call then."""
    wait_until(lambda: [*verdicts(admin)] == [True, True], "both workers are connected")
    fail(apps["sre"], 2)
    fail(apps["dev"], 2)
    wait_until(lambda: admin.hget(BUDGET, "until"), "it is suspended")
    wait_until(lambda: [*verdicts(admin)] == [False, False], "both workers know")
    result = call(apps["dev"], "echo")
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)
    return result.content


def verdicts(admin: Any) -> Iterator[bool]:
    for record in read_health(admin, ["frail"])["frail"].workers.values():
        yield record.healthy


def answers(app: TarsyApp) -> bool:
    return call(app, "echo").outcome is Outcome.OK


def test_an_agent_alone_suspends_no_server(apps: dict[str, TarsyApp], admin: Any) -> None:
    assert answers(apps["dev"])
    wait_until(lambda: counted(admin, "dev") == (1, 0), "it is known that another one calls the server, too")
    fail(apps["sre"], 6)
    wait_until(lambda: counted(admin, "sre") == (6, 6), "the failures are counted")
    assert counted(admin, "dev") == (1, 0)
    assert answers(apps["sre"])
    assert not admin.hget(BUDGET, "until")
    admin.delete(BUDGET)


def test_all_workers_suspend_it_and_it_comes_back(
    apps: dict[str, TarsyApp], admin: Any, workers: list[Worker], tmp_path: Path
) -> None:
    text = suspend(apps, admin)
    why = "calls within 60 s failed, because it did not answer in time or its connection failed"
    assert re.search(f"MCP server `frail` is suspended: 4 of its [45] {why}; it is tried again in [0-9]+ s\\.", text)
    assert "The tool did not run. Try again later" in text
    shown = run_command("health", "--json", environment=workers[0].environment_of("operator"))
    assert shown.returncode == 1
    assert why in shown.stdout
    found = {name: record.error or "" for name, record in read_health(admin, ["frail"])["frail"].workers.items()}
    assert len(found) == 2
    assert all(why in error and "control mcp_reconnect frail` ends that" in error for error in found.values())
    wait_until(lambda: _alerts(admin)[-1:] == ["unhealthy"], "there is an alert", timeout_s=30)
    admin.hset(BUDGET, "until", "1.0")
    wait_until(lambda: not admin.hget(BUDGET, "until"), "it has been tried")
    wait_until(lambda: [*verdicts(admin)] == [True, True], "both workers have connected to it, without a call")
    assert all(answers(apps[agent]) for agent in ("sre", "dev"))


def _alerts(admin: Any) -> list[str]:
    return [json.loads(fields[b"alert"])["status"] for _, fields in admin.xrange(keys.ALERTS)]


def test_an_operator_ends_it_for_all_workers(apps: dict[str, TarsyApp], admin: Any) -> None:
    suspend(apps, admin)
    apps["operator"].control.broadcast("mcp_reconnect", arguments={"server": "frail"})
    wait_until(lambda: not admin.hget(BUDGET, "until"), "it has ended")
    wait_until(lambda: answers(apps["dev"]), "it answers")


def test_another_worker_tries_it_if_one_is_lost(apps: dict[str, TarsyApp], admin: Any) -> None:
    suspend(apps, admin)
    admin.hset(BUDGET, mapping={"prober": "a worker that is gone", "until": "1.0"})
    wait_until(lambda: not admin.hget(BUDGET, "until"), "it has been tried")
    wait_until(lambda: answers(apps["dev"]), "it answers")


def test_a_redis_that_has_lost_it_suspends_nothing(apps: dict[str, TarsyApp], admin: Any) -> None:
    suspend(apps, admin)
    admin.delete(BUDGET)
    wait_until(lambda: answers(apps["dev"]), "it answers")


def test_only_time_that_the_server_has_counts(apps: dict[str, TarsyApp], admin: Any) -> None:
    endings: list[str | None] = []
    for timeout_s in (0.3, 60):
        with ToolExecutor(["slow"], timeout_s=timeout_s, app=apps["sre"]) as tools:
            endings.append(tools.execute(ToolCall(name="slow.wait", arguments={"seconds": 20})).error_code)
    with ToolExecutor(["slow"], timeout_s=60, app=apps["sre"]) as tools:
        cancelled = tools.submit(ToolCall(name="slow.wait", arguments={"seconds": 20}))
        cancelled.cancel()
        endings.append(cancelled.result(60).error_code)
        endings.append(tools.execute(ToolCall(name="slow.order", arguments={})).error_code)
        assert tools.execute(ToolCall(name="slow.echo", arguments={"text": "x"})).outcome is Outcome.OK
    assert endings[1:] == [ErrorCode.CALL_TIMEOUT, ErrorCode.CANCELLED, ErrorCode.INVALID_ARGUMENTS]
    budget = keys.error_budget_key("slow")
    wait_until(lambda: counted(admin, "sre", budget)[0] >= 2, "they are counted")
    assert counted(admin, "sre", budget) == (2, 1)
