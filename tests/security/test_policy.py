"""The policy in a worker, against agents who each have a user of Redis and nothing else to get around it."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, read_audit
from tarsy_tasks.telemetry.metrics import read_metrics
from tests.cli.commands import run_command, run_forked
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

POLICY: dict[str, Any] = {
    "agents": {
        "sre": {"allow": ["desk.*"], "deny": ["*.order"]},
        "dev": {"capabilities": ["mcp_desk.ech?", "mcp_vault", "writing"]},
        "*": {"allow": []},
    },
    "servers": {"vault": {"tools": {"order": {"required_capabilities": ["writing"]}}}},
    "arguments": [
        {
            "agents": ["sre"],
            "tools": ["desk.echo"],
            "arguments": {"properties": {"text": {"const": "hello"}}},
            "text": 'Only the greeting {"text": "hello"} is permitted.',
        }
    ],
}
HELLO = {"text": "hello"}
ORDER = {"item": "pen", "count": 1}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    agents = AgentUser("sre", ("desk",)), AgentUser("dev", ("desk", "vault")), AgentUser("new", ("desk",))
    with Valkey(agents=agents) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def policy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(POLICY))
    return path


@pytest.fixture(scope="module")
def worker(valkey: Valkey, policy_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    servers = {"desk": DEMO_SERVER, "vault": DEMO_SERVER}
    environment = {"TARSY_POLICY": str(policy_path)}
    worker = Worker(tmp_path_factory.mktemp("worker"), servers, url_of(valkey.port), environment=environment)
    try:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker
    finally:
        worker.stop()


@pytest.fixture(scope="module")
def apps(worker: Worker, valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    """The application of each agent; `agent` is shared, so its calls are anonymous."""
    urls = {name: url_of(valkey.port, name) for name in ("sre", "dev", "new", "agent")}
    apps = {name: build_app({"broker_url": url, "result_backend": url}) for name, url in urls.items()}
    yield apps
    for app in apps.values():
        app.close()


@pytest.fixture(scope="module")
def admin(valkey: Valkey) -> Iterator[Any]:
    with closing(redis.Redis.from_url(url_of(valkey.port))) as client:
        yield client


def call(app: TarsyApp, name: str, arguments: Any, **more: Any) -> ToolResult:
    return ToolExecutor(timeout_s=60, app=app, **more).execute(ToolCall(id="1", name=name, arguments=arguments))


def entry_of(admin: Any, result: ToolResult) -> AuditEntry:
    return read_audit(admin, AuditFilter(task_id=result.task_id)).entries[0]


CALLS: list[tuple[str, str, Any, str]] = [
    ("sre", "desk.echo", HELLO, ""),
    ("sre", "desk.order", ORDER, "agents.sre.deny[0]"),
    ("sre", "desk.echo", {"text": "bye"}, "arguments[0]"),
    ("sre", "desk.echo", "text: bye", "arguments[0]"),
    ("sre", "desk.echo", {"text": "x" * 100_000}, "arguments[0]"),
    ("dev", "desk.echo", {"text": "bye"}, ""),
    ("dev", "desk.label", {"item": "x"}, "agents.dev.capabilities"),
    ("dev", "vault.order", ORDER, ""),
    ("new", "desk.echo", HELLO, 'agents["*"].allow'),
    ("agent", "desk.echo", HELLO, 'agents["*"].allow'),
    ("agent", "desk.nothing_like_this", {}, 'agents["*"].allow'),
]


@pytest.mark.parametrize(("agent", "name", "arguments", "rule"), CALLS)
def test_a_call_is_decided_by_who_made_it(
    apps: dict[str, TarsyApp], admin: Any, agent: str, name: str, arguments: Any, rule: str
) -> None:
    result = call(apps[agent], name, arguments)
    entry = entry_of(admin, result)
    assert (entry.rule or "", result.outcome) == (rule, Outcome.REJECTED if rule else Outcome.OK)
    assert entry.policy
    if rule:
        by_arguments = rule.startswith("arguments")
        assert result.error_code == (ErrorCode.ARGUMENTS_NOT_PERMITTED if by_arguments else ErrorCode.NOT_PERMITTED)
        assert entry.attempts == result.attempts == 0
        assert rule in result.content
        assert ("greeting" in result.content) == by_arguments


def test_a_shortened_name_means_a_permitted_tool_only(apps: dict[str, TarsyApp]) -> None:
    def shortened(tool: str) -> str:
        return f"desk.{tool}_{sha256(f'desk.{tool}'.encode()).hexdigest()[:12]}"

    assert call(apps["dev"], shortened("echo"), HELLO).outcome is Outcome.OK
    for name, arguments in (("label", {"item": "x"}), ("nothing_like_this", {})):
        denied = call(apps["dev"], shortened(name), arguments)
        assert (denied.outcome, denied.error_code) == (Outcome.REJECTED, ErrorCode.UNKNOWN_TOOL)
        assert "desk.label" not in denied.content.replace(shortened("label"), "")


def test_a_name_in_the_message_changes_nothing(apps: dict[str, TarsyApp], admin: Any) -> None:
    result = call(apps["sre"], "desk.order", ORDER, agent_id="dev")
    assert result.error_code is ErrorCode.NOT_PERMITTED
    assert entry_of(admin, result).rule == "agents.sre.deny[0]"


def test_no_form_of_a_message_gets_around_the_policy(apps: dict[str, TarsyApp]) -> None:
    app = apps["sre"]
    order = tool_signature("desk.order", ORDER, app=app)
    ways = [
        order.apply_async(expires=60),  # through Celery's own consumer
        order.apply_async(countdown=0.1),
        order.apply_async(link=tool_signature("desk.order", ORDER, app=app)),
        app.send_task("tarsy.call_tool", ("desk", "Order", ORDER), queue=order.options["queue"]),
        app.send_task("tarsy.call_tool", ("desk", "\uff4frder", ORDER), queue=order.options["queue"]),
    ]
    results = [way.get(timeout=60) for way in ways]
    assert {result["error_code"] for result in results} == {ErrorCode.NOT_PERMITTED}


def test_what_may_not_be_called_is_not_listed(apps: dict[str, TarsyApp]) -> None:
    listed: dict[str, list[str]] = {}
    for agent, app in apps.items():
        servers = ["desk", "vault"] if agent == "dev" else ["desk"]
        with ToolExecutor(servers, timeout_s=60, app=app) as tools:
            listed[agent] = sorted(tool.name for tool in tools.list_tools())
            assert not tools.failed_servers()
    every = ["echo", "label", "order", "quote", "wait"]
    assert listed == {
        "sre": [f"desk.{tool}" for tool in every if tool != "order"],
        "dev": ["desk.echo", *(f"vault.{tool}" for tool in every)],
        "new": [],
        "agent": [],
    }


def test_the_names_in_a_rejection_are_those_that_are_listed(apps: dict[str, TarsyApp]) -> None:
    result = call(apps["sre"], "desk.ordre", {})
    assert result.error_code is ErrorCode.UNKNOWN_TOOL
    assert "quote" in result.content
    assert "order" not in result.content


def test_an_executor_says_what_it_may_do(
    apps: dict[str, TarsyApp], policy_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = ToolExecutor(["desk"], timeout_s=60, app=apps["sre"])
    assert without.can_execute("desk.order").source == "nothing"
    without.list_tools()
    assert [bool(without.can_execute(f"desk.{tool}")) for tool in ("echo", "order")] == [True, False]
    assert without.can_execute("desk.order").source == "tools"
    assert without.can_execute("vault.echo").source == "selection"
    monkeypatch.setenv("TARSY_POLICY", str(policy_path))
    executor = AsyncToolExecutor(["desk"], app=apps["sre"])
    found = asyncio.run(executor.can_execute("desk.order"))
    assert (bool(found), found.source) == (False, "policy")
    assert "agents.sre.deny[0]" in found.reason
    policy_path.rename(policy_path.with_suffix(".gone"))
    try:
        assert asyncio.run(executor.can_execute("desk.quote"))  # no file is read again
    finally:
        policy_path.with_suffix(".gone").rename(policy_path)


def test_denials_are_counted_by_server_and_kind(apps: dict[str, TarsyApp], admin: Any) -> None:
    call(apps["sre"], "desk.order", ORDER)
    call(apps["agent"], f"desk.{uuid.uuid4().hex}", {})

    def counted() -> dict[str, dict[str, int]]:
        found = {
            each.tool: {str(kind): n for kind, n in each.denials.items()}
            for each in read_metrics(admin, ["desk"])["desk"]
        }
        return found if found.get("order", {}).get("deny") and found.get("", {}).get("allow") else {}

    found = wait_until(counted, "the denials are in Redis")
    assert found.keys() <= {"", "echo", "label", "order", "quote", "wait"}


def test_doctor_says_for_whom_the_policy_is_enforced(worker: Worker) -> None:
    for user, text in (
        ("admin", "these agents have no entry, so `*` decides: new"),
        ("admin", "it protects calls only: every agent may read names"),
        ("operator", "may not list users"),
    ):
        done = run_command("doctor", "--json", environment=worker.environment_of(user))
        found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "policy"]
        assert any(text in each["text"] for each in found), found


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--agent", "sre", "desk.echo", "text=hello"), 0, "permitted by agents.sre.allow[0]"),
        (("--agent", "sre", "desk.echo"), 0, "if its arguments fit arguments[0]: Only the greeting"),
        (("--agent", "sre", "desk.echo", "text=bye"), 1, "denied by arguments[0]"),
        (("desk.echo",), 1, 'denied by agents["*"].allow: the rule allows no tool'),
        (("desk.long_name_0a1b2c3d4e5f",), 1, "if this is a shortened function name"),
        (("deks.echo",), 2, "closest first: desk"),
    ],
)
def test_policy_check_says_what_a_worker_would_do(worker: Worker, words: tuple[str, ...], code: int, text: str) -> None:
    done = run_command("policy", "check", *words, environment=worker.environment)
    assert done.returncode == code
    assert text in done.stdout + done.stderr


def test_policy_show_has_the_version_of_the_audit(worker: Worker, apps: dict[str, TarsyApp], admin: Any) -> None:
    version = entry_of(admin, call(apps["sre"], "desk.order", ORDER)).policy
    shown = json.loads(run_command("policy", "show", "--json", environment=worker.environment).stdout)
    assert shown["version"] == version
    assert shown["policy"]["agents"].keys() == POLICY["agents"].keys()


def test_a_worker_does_not_start_with_a_wrong_policy(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"agents": {"sre": {"alow": []}, "*": {}}}')
    environment = {**worker.environment_of("worker"), "TARSY_POLICY": str(path)}
    done = run_forked(["-m", "celery", "-A", "tarsy_tasks", "worker"], environment, tmp_path)
    assert done.returncode == 2
    assert "agents.sre.alow: unknown key; did you mean `allow`?" in done.stderr


def test_a_search_finds_only_what_the_agent_may_call(
    apps: dict[str, TarsyApp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(tools: ToolExecutor) -> list[str]:
        return [tool.name for tool in tools.search("order some item, or its quote", limit=20)]

    with ToolExecutor(["desk"], timeout_s=60, app=apps["sre"]) as tools:
        assert "desk.quote" in find(tools)
        assert "desk.order" not in find(tools)
    with ToolExecutor(["desk"], tool_filter={"desk": ["label"]}, timeout_s=60, app=apps["sre"]) as tools:
        assert find(tools) == ["desk.label"]
    stricter = tmp_path / "policy.json"
    stricter.write_text(json.dumps({"agents": {"sre": {"deny": ["*.quote"]}, "*": {}}}))
    monkeypatch.setenv("TARSY_POLICY", str(stricter))
    with ToolExecutor(["desk"], timeout_s=60, app=apps["sre"]) as tools:
        assert "desk.quote" in [tool.name for tool in tools.list_tools()]
        assert find(tools)
        assert "desk.quote" not in find(tools)


def test_the_two_tools_of_a_search_keep_to_the_policy(apps: dict[str, TarsyApp], admin: Any) -> None:
    with ToolExecutor(["desk"], timeout_s=60, app=apps["sre"]) as tools:
        found = tools.execute("search_tools", {"query": "order some item, or its quote", "limit": 20})
        assert "desk.quote(" in found.content
        assert "desk.order" not in found.content
        denied = tools.execute("call_tool", {"name": "desk.order", "arguments": ORDER})
        assert (denied.error_code, denied.attempts) == (ErrorCode.NOT_PERMITTED, 0)
        assert (entry_of(admin, denied).server, entry_of(admin, denied).tool) == ("desk", "order")
        pending = tools.submit("call_tool", {"name": "desk__echo", "arguments": "text: hello"})
        assert (pending.call.name, pending.result().content) == ("desk__echo", "hello")
        results = tools.execute_many([("call_tool", {"name": "desk.echo", "arguments": {"text": "bye"}})] * 2)
        assert [(each.outcome, each.tool) for each in results] == [(Outcome.REJECTED, "echo")] * 2

    async def run() -> list[str]:
        async with AsyncToolExecutor(["desk"], timeout_s=60, app=apps["sre"]) as tools:
            found = await tools.execute("functions.search_tools", "the quote for an item")  # lists them first
            called = await tools.execute("call_tool", {"name": "desk:echo", "text": "hello"})
            return [found.content.partition("(")[0], called.content]

    assert asyncio.run(run()) == ["desk.quote", "hello"]
