"""Functions of a module as a server of a worker: what holds for every call holds for theirs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tests.conftest import StartWorker
from tests.gates import make_gate, open_gate
from tests.plants import know
from tests.processes import Worker, wait_until
from tests.servers import native_tools

know("of native tools", native_tools.SECRET)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    policy = tmp_path_factory.mktemp("policy") / "policy.json"
    policy.write_text(json.dumps({"agents": {"*": {"deny": ["ops.forbidden"]}}}))
    found = {"native": native_tools.__name__, "cwd": str(ROOT)}
    servers = {
        "ops": {**found, "timeouts": {"tools": {"block": 1, "hang": 1}}},
        "broken": {"native": "no_such_package.tools", "required": False},
    }
    return start_worker(servers, environment={"TARSY_POLICY": str(policy)})


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(["ops"], timeout_s=30, agent_id="sre", run_id="native") as tools:
        yield tools


def test_functions_are_the_tools_of_a_server(tools: ToolExecutor) -> None:
    listed = tools.list_tools()
    names = ["plan", "in-order", "account", "fail", "fail_later", "block", "hang"]
    assert [tool.name for tool in listed] == [f"ops.{name}" for name in names], "without what the policy denies"
    assert (listed[0].description, listed[0].annotations) == ("Plan some days.", {"readOnlyHint": True})
    assert listed[0].input_schema["required"] == ["day"]
    wait_until(lambda: tools.server("ops").tools, "the worker has reported what it lists")
    assert tools.tool_info("ops.plan").runs_in == "worker"
    for name in ("ops.plan", "ops__plan", "mcp_ops_plan"):
        result = tools.execute(name, "day: 2026-11-24, level: high, count: 1")
        steps = [{"at": "2026-11-24", "what": "work"}]
        assert (result.outcome, result.structured) == (Outcome.OK, {"level": "high", "steps": steps})
    result = tools.execute("ops.in-order", {"items": [3, 1, 2]})
    assert (result.content, result.structured) == ("[1, 2, 3]", [1, 2, 3])


def test_limits_policy_masking_and_audit_hold_for_functions(tools: ToolExecutor, redis_url: str) -> None:
    denied = tools.execute("ops.forbidden")
    assert (denied.outcome, denied.attempts) == (Outcome.REJECTED, 0)
    for arguments in ({"day": "2026-11-24", "count": 9}, {}, {"day": "2026-11-24", "no_such": 1}):
        assert tools.execute("ops.plan", arguments).error_code is ErrorCode.INVALID_ARGUMENTS
    wrong = tools.execute("ops.plan", {"day": "2026-02-30"})
    assert (wrong.error_code, "so it was not called" in wrong.content) == (ErrorCode.TOOL_ERROR, True)
    assert tools.execute("ops.account").content == "password: __MASKED__"
    with redis.Redis.from_url(redis_url) as client:
        found = read_audit(client, AuditFilter(tool="ops.account"), limit=1).entries
    assert (found[0].agent_id, found[0].run_id, found[0].source) == ("sre", "native", "worker")


@pytest.mark.parametrize("tool", ["ops.fail", "ops.fail_later"])
def test_a_function_that_fails_fails_only_its_call(tools: ToolExecutor, tool: str) -> None:
    ways = ["raise", "exit", "stop", "cancel", "not json"]
    results = tools.execute_many([(tool, {"how": how}) for how in ways])
    assert {result.error_code for result in results} == {ErrorCode.TOOL_ERROR}
    assert "LookupError: no such user" in results[0].content
    assert native_tools.SECRET not in results[0].content
    assert "SystemExit" in results[1].content
    assert "is not valid JSON" in results[4].content


def test_functions_that_do_not_return_end_at_the_limit(tools: ToolExecutor, tmp_path: Path) -> None:
    began, cancelled, gate = tmp_path / "began", tmp_path / "cancelled", make_gate(tmp_path / "gate")
    calls = [
        ("ops.block", {"began": str(began), "wait_for": str(gate)}),
        ("ops.hang", {"cancelled": str(cancelled)}),
        ("ops.in-order", {"items": [2, 1]}),
    ]
    blocked, hung, fine = tools.execute_many(calls)
    assert [blocked.error_code, hung.error_code] == [ErrorCode.CALL_TIMEOUT] * 2
    assert fine.content == "[1, 2]"
    wait_until(began.exists, "it has begun")
    wait_until(cancelled.exists, "what is awaited is cancelled")
    open_gate(gate)


def test_a_module_that_cannot_be_imported_fails_its_server_only(worker: Worker, tools: ToolExecutor) -> None:
    worker.wait_for_log("native: `no_such_package.tools` cannot be imported: ModuleNotFoundError: No module named")
    assert tools.execute("ops.in-order", {"items": [1]}).outcome is Outcome.OK
