"""Limits in four workers, against agents who each have a user of Redis and nothing else to get around them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import TarsyApp
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, StepName, read_audit
from tarsy_tasks.telemetry.limit_report import read_reports, read_use
from tarsy_tasks.telemetry.metrics import read_metrics
from tests.cli.commands import run_command
from tests.processes import DEMO_SERVER, Flower, Worker, wait_until
from tests.redis_users import url_of
from tests.security.fleet import agents_apps, agents_valkey, start_fleet, stopped
from tests.valkey import Valkey

LEASE_S = 2
POLICY: dict[str, Any] = {
    "limits": [
        {"agents": ["sre"], "tools": ["desk.echo"], "rate": "3/day", "burst": 3, "each": ["agent"]},
        {"tools": ["desk.wait"], "concurrency": 2, "when_over": "wait"},
        {"tools": ["vault.*"], "rate": "20/s", "burst": 4, "each": ["agent"], "when_over": "wait"},
        {"agents": ["anonymous"], "calls_per_day": 2},
        {"tools": ["desk.order"], "rate": "0/s"},
        {"tools": ["desk.label"], "bytes_per_day": "100 B", "each": ["agent"]},
        {"tools": ["vault.wait"], "concurrency": 1, "each": ["agent"]},
    ]
}
HELLO = {"text": "hello"}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with agents_valkey() as valkey:
        yield valkey


@pytest.fixture(scope="module")
def workers(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    settings = f"broker_transport_options = {{'visibility_timeout': {LEASE_S}}}\n"
    with start_fleet(valkey, tmp_path_factory, POLICY, DEMO_SERVER, settings) as workers:
        yield workers


@pytest.fixture(scope="module")
def apps(workers: list[Worker], valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    assert workers
    with agents_apps(valkey) as apps:
        yield apps


@pytest.fixture
def admin(valkey: Valkey, apps: dict[str, TarsyApp]) -> Iterator[Any]:
    """Redis. Before each test nothing is counted."""
    assert apps
    with closing(redis.Redis.from_url(url_of(valkey.port))) as client:
        counted = [key for key in client.keys("tarsy:limit:*") if key != keys.LIMIT_REPORT.encode()]
        if counted:
            client.delete(*counted)
        yield client
        assert not [key for key in client.keys("tarsy:limit:*") if client.ttl(key) == -1]
        assert not client.acl_log()


def call_many(app: TarsyApp, name: str, arguments: Any, count: int, **claims: Any) -> list[ToolResult]:
    with ToolExecutor(timeout_s=60, app=app, **claims) as tools:
        return tools.execute_many([ToolCall(id=str(n), name=name, arguments=arguments) for n in range(count)])


def codes(results: list[ToolResult]) -> list[str]:
    return sorted(str(result.error_code or result.outcome) for result in results)


def entry_of(admin: Any, result: ToolResult) -> AuditEntry:
    return read_audit(admin, AuditFilter(task_id=result.task_id)).entries[0]


def sent_at(admin: Any, results: list[ToolResult]) -> list[float]:
    """When calls were sent, by the clock of Redis as far as workers know it, in order."""
    entries = (entry_of(admin, result) for result in results)
    return sorted(step.at for entry in entries for step in entry.steps if step.name is StepName.SENT)


def test_four_workers_keep_to_one_rate(apps: dict[str, TarsyApp], admin: Any) -> None:
    results = call_many(apps["sre"], "desk.echo", HELLO, 24)
    assert codes(results) == ["RATE_LIMITED"] * 21 + ["ok"] * 3
    over = next(result for result in results if result.is_error)
    assert over.outcome is Outcome.REJECTED
    assert over.attempts == 0
    assert over.retry_after_s is not None
    assert 8 * 3600 - 120 < over.retry_after_s <= 8 * 3600
    assert "did not run" in over.content
    assert "Do not try again for" in over.content
    assert entry_of(admin, over).rule == "limits[0]"
    assert codes(call_many(apps["dev"], "desk.echo", HELLO, 4)) == ["ok"] * 4


def test_no_claim_and_no_form_of_a_message_gets_around_a_limit(apps: dict[str, TarsyApp], admin: Any) -> None:
    app = apps["sre"]
    assert codes(call_many(app, "desk.echo", HELLO, 3)) == ["ok"] * 3
    assert codes(call_many(app, "desk.echo", HELLO, 1, agent_id="dev", run_id="r")) == ["RATE_LIMITED"]
    echo = tool_signature("desk.echo", HELLO, app=app)
    queue = echo.options["queue"]
    headers = {"principal": "dev", "signer": "dev", "queue": "mcp.desk:a:dev"}
    ways = [
        echo.apply_async(expires=60),  # through Celery's own consumer
        echo.apply_async(countdown=0.1),
        echo.apply_async(link=tool_signature("desk.echo", HELLO, app=app)),
        echo.apply_async(priority=9),
        app.send_task("tarsy.call_tool", ("desk", "echo", HELLO, {"agent_id": "dev"}), queue=queue, headers=headers),
        app.send_task("tarsy.call_tool", ("desk", "Echo", HELLO), queue=queue),
        app.send_task("tarsy.call_tool", ("desk", "\uff45cho", HELLO), queue=queue),
    ]
    found = [way.get(timeout=60)["error_code"] for way in ways]
    assert found == ["RATE_LIMITED"] * 5 + ["UNKNOWN_TOOL"] * 2
    assert codes(call_many(apps["dev"], "desk.echo", HELLO, 1)) == ["ok"]


def test_both_doors_count_once(apps: dict[str, TarsyApp], admin: Any) -> None:
    echo = tool_signature("desk.echo", HELLO, app=apps["sre"])
    assert echo.apply_async(expires=60).get(timeout=60)["outcome"] == "ok"
    assert codes(call_many(apps["sre"], "desk.echo", HELLO, 3)) == ["RATE_LIMITED", "ok", "ok"]


def test_calls_over_a_rate_wait_in_their_queue(apps: dict[str, TarsyApp], admin: Any) -> None:
    seconds, microseconds = admin.time()
    with ThreadPoolExecutor() as threads:
        dev = threads.submit(call_many, apps["dev"], "vault.echo", HELLO, 30)
        ops = threads.submit(call_many, apps["ops"], "vault.echo", HELLO, 2)
    assert codes(dev.result()) == ["ok"] * 30
    assert codes(ops.result()) == ["ok"] * 2
    times = sent_at(admin, dev.result())
    # After the burst one each 50 ms; workers know the time of Redis to some milliseconds.
    first = seconds + microseconds / 1e6  # or before: the worker of the first call may have been slow to send it
    assert all(at - first >= (n - 4) * 0.05 - 0.04 for n, at in enumerate(times))


def test_calls_that_wait_are_withdrawn_with_their_agent(apps: dict[str, TarsyApp], admin: Any) -> None:
    rate = next(limit for limit in reports(admin).limits if limit.place == "limits[2]").id
    now = admin.time()[0]
    admin.zadd(f"tarsy:limit:{rate}:rate", {"dev": now + 100})
    admin.expire(f"tarsy:limit:{rate}:rate", 100)
    with ToolExecutor(timeout_s=60, app=apps["dev"]) as tools:
        waiting = tools.submit("vault.echo", HELLO)
        wait_until(lambda: admin.llen(keys.agent_queue("vault", "dev")) == 1, "it waits")
        waiting.cancel()
        assert waiting.result().error_code is ErrorCode.CANCELLED
        assert admin.llen(keys.agent_queue("vault", "dev")) == 0


def test_no_more_run_at_once_than_may_in_all_workers(apps: dict[str, TarsyApp], admin: Any) -> None:
    with ThreadPoolExecutor() as threads:
        found = [threads.submit(call_many, apps[name], "desk.wait", {"seconds": 0.3}, 4) for name in ("dev", "ops")]
    results = [result for each in found for result in each.result()]
    assert codes(results) == ["ok"] * 8
    spans: list[tuple[float, int]] = []
    for result in results:
        at = {step.name: step.at for step in entry_of(admin, result).steps}
        # A lease ends with the answer; in the worker's clock that is some milliseconds apart.
        spans += [(at[StepName.SENT] + 0.03, 1), (at[StepName.ANSWERED] - 0.03, -1)]
    running = most = 0
    for _, change in sorted(spans):
        running += change
        most = max(most, running)
    assert most <= 2


def test_what_a_killed_worker_held_is_free_again(apps: dict[str, TarsyApp], workers: list[Worker], admin: Any) -> None:
    with ToolExecutor(timeout_s=60, app=apps["ops"]) as tools:
        held = tools.submit("vault.wait", {"seconds": 6})
        running = wait_until(lambda: admin.hget(keys.call_marker(held.id), "owner"), "it runs")
        assert tools.execute("vault.wait", {"seconds": 0}).error_code is ErrorCode.RATE_LIMITED
        owner = next(each for each in workers if running.decode().startswith(f"{instance_of(each)}@"))
        with stopped(owner):
            assert held.result().outcome is Outcome.OK  # another worker has run it
            wait_until(lambda: not tools.execute("vault.wait", {"seconds": 0}).is_error, "another may run")


def instance_of(worker: Worker) -> str:
    return worker.log_path.stem


def test_the_shared_user_has_limits_of_its_own(apps: dict[str, TarsyApp], admin: Any) -> None:
    assert codes(call_many(apps["agent"], "desk.echo", HELLO, 4)) == ["RATE_LIMITED"] * 2 + ["ok"] * 2
    over = call_many(apps["agent"], "desk.echo", HELLO, 1)[0]
    assert "quota of calls is used up" in over.content
    assert over.retry_after_s is not None
    assert over.retry_after_s <= 24 * 3600


def test_a_limit_of_zero_says_so(apps: dict[str, TarsyApp], admin: Any) -> None:
    over = call_many(apps["dev"], "desk.order", {"item": "pen", "count": 1}, 1)[0]
    assert over.error_code is ErrorCode.RATE_LIMITED
    assert over.retry_after_s is None
    assert "does not permit any calls of it" in over.content


def test_the_bytes_of_results_are_counted(apps: dict[str, TarsyApp], admin: Any) -> None:
    item = {"item": "x"}
    label = tool_signature("desk.label", item, app=apps["sre"])
    assert label.apply_async(expires=60).get(timeout=60)["outcome"] == "ok"  # Celery stores it
    assert codes(call_many(apps["dev"], "desk.label", item, 1)) == ["ok"]
    for agent in ("sre", "dev"):
        assert codes(call_many(apps[agent], "desk.label", item, 1)) == ["RATE_LIMITED"]


def test_what_redis_refuses_to_count_is_not_sent(apps: dict[str, TarsyApp], admin: Any) -> None:
    admin.execute_command("ACL", "SETUSER", "worker", "-zincrby")  # rules of an older version
    try:
        [result] = call_many(apps["agent"], "desk.echo", HELLO, 1)
        assert call_many(apps["dev"], "desk.echo", HELLO, 1)[0].outcome is Outcome.OK  # it has no quota
    finally:
        admin.execute_command("ACL", "SETUSER", "worker", "+zincrby")
        admin.acl_log_reset()
    assert (result.error_code, result.attempts) == (ErrorCode.INTERCEPTOR_FAILED, 0)
    assert "cannot be checked" in result.content


def reports(admin: Any) -> Any:
    return wait_until(lambda: read_reports(admin), "a worker has reported its limits")


def test_operators_see_what_is_used(apps: dict[str, TarsyApp], workers: list[Worker], admin: Any) -> None:
    call_many(apps["sre"], "desk.echo", HELLO, 4)
    shown = json.loads(run_command("limits", "--server", "desk", "--json", environment=workers[0].environment).stdout)
    assert [each["place"] for each in shown["limits"]] == [f"limits[{n}]" for n in (0, 1, 3, 4, 5)]
    [used] = shown["limits"][0]["used"]
    assert (used["counter"], used["burst_used"]) == ("sre", 3)
    assert used["next_in_s"] > 8 * 3600 - 120
    table = run_command("limits", environment=workers[0].environment).stdout
    assert "3 of 3 at once, next in 8 h 0 min" in table or "3 of 3 at once, next in 7 h" in table
    with closing(redis.Redis.from_url(url_of(admin.connection_pool.connection_kwargs["port"], "flower"))) as flower:
        found = read_reports(flower)
        assert found is not None
        assert read_use(flower, found.limits, LEASE_S)[found.limits[0].id][0].counter == "sre"

    def counted() -> dict[str, int]:
        return {place: n for each in read_metrics(admin, ["desk"])["desk"] for place, n in each.limited.items()}

    assert wait_until(lambda: counted().get("limits[0]"), "the rejections are in Redis") >= 1


def test_the_page_of_a_server_shows_what_is_used(
    apps: dict[str, TarsyApp], workers: list[Worker], admin: Any, valkey: Valkey, tmp_path: Path
) -> None:
    call_many(apps["sre"], "desk.echo", HELLO, 4)
    reports(admin)
    with Flower(tmp_path, url_of(valkey.port), (), {"FLOWER_UNAUTHENTICATED_API": "true"}) as flower:

        def read() -> str:
            with urlopen(f"{flower.url}/mcp/servers/desk", timeout=30) as page:
                text = page.read().decode()
            return text if "limits[0]" in text else ""

        text = wait_until(read, "the page has the limits", 30)
    assert "3/day, 3 at once" in text
    assert "<bdi>sre</bdi></code>: 3 of 3 at once" in text
    assert "limits[2]" not in text  # of another server


def test_policy_check_names_the_limits(workers: list[Worker]) -> None:
    words = ("policy", "check", "--agent", "sre", "desk.echo", "text=hello")
    said = run_command(*words, environment=workers[0].environment).stdout
    assert "within limits[0]: 3/day, 3 at once, counted as sre" in said
    said = run_command("policy", "check", "vault.wait", environment=workers[0].environment).stdout
    assert "within limits[2]: 20/s, 4 at once, counted as anonymous, and waits when over it" in said
    done = run_command("policy", "check", "desk.order", environment=workers[0].environment)
    assert done.returncode == 1
    assert "denied by limits[4]: it permits no call at all\nthe model reads: " in done.stdout
    shown = run_command("policy", "show", environment=workers[0].environment).stdout
    assert "no call at all" in shown
