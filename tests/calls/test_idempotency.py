"""A call with an idempotency key runs once, however often and by however many agents it is submitted."""

import asyncio
import json
from pathlib import Path

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.agent.idempotency import claim
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.celery_app import build_app
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("witness") / "ledger")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, ledger: Ledger) -> Worker:
    return start_worker({"desk": witness(ledger)})


@pytest.fixture
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=20, agent_id="one")


def add(call_id: str, key: str, idempotency_key: str) -> ToolCall:
    return ToolCall(id=call_id, name="desk.add", arguments={"key": key}, idempotency_key=idempotency_key)


def another_process(redis_url: str) -> ToolExecutor:
    """An executor with a reader of its own, like one in another process."""
    return ToolExecutor(
        timeout_s=20, agent_id="one", app=build_app({"broker_url": redis_url, "result_backend": redis_url})
    )


def test_the_same_key_again_gets_the_same_answer(tools: ToolExecutor, ledger: Ledger, redis_url: str) -> None:
    first = tools.execute(add("1", "same", "k1"))
    again = tools.execute(add("2", "same", "k1"))
    elsewhere = another_process(redis_url).execute(add("3", "same", "k1"))
    assert [result.content for result in (first, again, elsewhere)] == ["same"] * 3
    assert [result.call_id for result in (first, again, elsewhere)] == ["1", "2", "3"]
    assert ledger.runs()["same"] == 1


def test_the_same_key_while_the_call_runs_waits_for_it(
    worker: Worker, tools: ToolExecutor, ledger: Ledger, redis_url: str
) -> None:
    # The first process of a ledger does not answer what begins with `held`: it is ended once all wait.
    executors = [tools, tools, another_process(redis_url)]
    look = ToolCall(id="h", name="desk.look", arguments={"key": "held-k2"}, idempotency_key="k2")
    pending = [executor.submit(look) for executor in executors]
    wait_until(lambda: ledger.runs()["held-k2"] == 1, "the call runs")
    assert len({call.id for call in pending}) == 1
    kill_server(worker, ledger)
    assert [call.result().content for call in pending] == ["held-k2"] * 3
    assert ledger.runs()["held-k2"] == 2, "once, and once more because it is harmless to repeat"


def test_the_key_of_another_call_is_refused(tools: ToolExecutor, ledger: Ledger) -> None:
    tools.execute(add("1", "mine", "k3"))
    for other in (
        add("2", "other", "k3"),
        ToolCall(id="3", name="desk.look", arguments={"key": "mine"}, idempotency_key="k3"),
    ):
        result = tools.execute(other)
        assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.IDEMPOTENCY_CONFLICT)
        assert "Nothing was sent" in result.content
    assert ledger.runs()["other"] == 0


def test_agents_have_keys_of_their_own(tools: ToolExecutor, ledger: Ledger) -> None:
    tools.execute(add("1", "shared", "k4"))
    assert ToolExecutor(timeout_s=20, agent_id="two").execute(add("1", "shared", "k4")).outcome is Outcome.OK
    assert ledger.runs()["shared"] == 2


def test_a_call_that_never_began_may_be_made_again(worker: Worker, tmp_path: Path, redis_url: str) -> None:
    servers = json.loads(worker.config_path.read_text())["mcpServers"]
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {**servers, "unserved": servers["desk"]}}))
    call = ToolCall(id="1", name="unserved.add", arguments={"key": "late"}, idempotency_key="k5")
    with pytest.MonkeyPatch.context() as patch, redis.Redis.from_url(redis_url) as client:
        patch.setenv("TARSY_MCP_CONFIG", str(path))
        tools = ToolExecutor(timeout_s=3)
        before = set(client.keys(f"{keys.IDEMPOTENCY}*"))
        assert tools.execute(call).error_code is ErrorCode.NO_WORKER
        assert set(client.keys(f"{keys.IDEMPOTENCY}*")) == before, "the key is free again"


def test_an_agent_with_less_time_does_not_end_the_shared_call(
    worker: Worker, tools: ToolExecutor, ledger: Ledger
) -> None:
    call = ToolCall(id="1", name="desk.look", arguments={"key": "patient", "wait_s": 6}, idempotency_key="k6")
    patient = tools.submit(call)
    wait_until(lambda: ledger.runs()["patient"] == 1, "the call runs")
    hasty = ToolExecutor(timeout_s=2, agent_id="one").execute(call)
    assert (hasty.outcome, hasty.error_code) == (Outcome.TIMEOUT, ErrorCode.NO_ANSWER)
    leaving = ToolExecutor(timeout_s=20, agent_id="one").submit(call)
    leaving.cancel()
    assert leaving.result().outcome is Outcome.CANCELLED
    assert patient.result().content == "patient"
    assert ledger.runs()["patient"] == 1


def test_a_patient_agent_learns_that_a_withdrawn_call_never_ran(worker: Worker, tmp_path: Path) -> None:
    servers = json.loads(worker.config_path.read_text())["mcpServers"]
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {**servers, "unserved": servers["desk"]}}))
    call = ToolCall(id="1", name="unserved.add", arguments={"key": "shared"}, idempotency_key="k7")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARSY_MCP_CONFIG", str(path))
        executors = [ToolExecutor(timeout_s=seconds) for seconds in (3, 5)]
        hasty, patient = (each.submit(call) for each in executors)
        assert hasty.id == patient.id
        assert hasty.result().error_code is ErrorCode.NO_WORKER
        result = patient.result()
    assert result.outcome is Outcome.UNAVAILABLE
    assert "did not run" in result.content


def test_a_claim_whose_reply_was_lost_is_made_once(redis_url: str) -> None:
    async def claim_again() -> None:
        exchange = AsyncRedisExchange(lambda: redis.ConnectionPool.from_url(redis_url))
        for task_id, is_new in (("one", True), ("one", True), ("two", False)):
            claimed = await claim(exchange, ("desk", "add", None), agent_id="one", key="k8", task_id=task_id)
            assert (claimed.task_id, claimed.is_new) == ("one", is_new)
        exchange.close()

    asyncio.run(claim_again())


def kill_server(worker: Worker, ledger: Ledger) -> None:
    for child in worker.find_children(str(ledger.path)):
        child.kill()
