"""Bound agents against each other: whose call it is says the queue that only their Redis user may write into, and
nothing that they write."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.security.fleet import agents_apps
from tests.valkey import Valkey

AGENTS = ("sre", "dev", "ops")
TIMEOUT_S = 60
MODULE = """
import asyncio

from tarsy_tasks.interceptors import CallRefused


class Naming:
    stage = "message"

    async def __call__(self, call, proceed):
        text = str(call.raw_arguments)
        if "held" in text and call.delivery_count == 1:
            await asyncio.Event().wait()
        if "held" in text or "who" in text:
            raise CallRefused(f"{call.principal} from {call.queue}")
        return await proceed()
"""
ENTRY_POINT = "[tarsy_tasks.interceptors]\nnaming = naming:Naming\n"
SETTINGS = 'broker_transport_options = {"visibility_timeout": 2}\n'


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    agents = tuple(AgentUser(name, ("desk",)) for name in AGENTS)
    keeping = {"persist": True, "data_dir": tmp_path_factory.mktemp("valkey"), "config": {"appendonly": "yes"}}
    with Valkey(agents=agents, **keeping) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def start(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    installed = tmp_path_factory.mktemp("installed")
    (installed / "naming.py").write_text(MODULE)
    metadata = installed / "naming-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: naming\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    started: list[Worker] = []

    def start(*arguments: str) -> Worker:
        directory: Path = tmp_path_factory.mktemp("worker")
        worker = Worker(
            directory,
            {"desk": {**DEMO_SERVER, "max_concurrency": 4}},
            url_of(valkey.port),
            environment={"PYTHONPATH": str(installed)},
            interceptors=["naming"],
            settings=SETTINGS,
            arguments=list(arguments),
            name=f"w{len(started)}",
        )
        started.append(worker)
        worker.wait_until_ready()
        return worker

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture(scope="module")
def worker(start: Any) -> Iterator[Worker]:
    worker = start()
    with environment_of(worker):
        yield worker


@pytest.fixture(scope="module")
def apps(worker: Worker, valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    with agents_apps(valkey, AGENTS) as found:
        yield found


@pytest.fixture
def admin(valkey: Valkey) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(url_of(valkey.port))) as client:
        yield client


def who(app: TarsyApp, text: str = "who", **claims: Any) -> ToolResult:
    return ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=app, **claims).execute("desk.echo", {"text": text})


def test_the_queue_says_whose_call_it_is(apps: dict[str, TarsyApp]) -> None:
    for name in AGENTS:
        assert f"{name} from mcp.desk:a:{name}" in who(apps[name]).content
    assert "anonymous from mcp.desk" in who(apps["agent"]).content


def test_what_a_message_says_of_its_sender_counts_for_nothing(apps: dict[str, TarsyApp]) -> None:
    assert "sre from" in who(apps["sre"], agent_id="dev").content
    headers = {"principal": "dev", "signer": "dev", "queue": "mcp.desk:a:dev", "delivery": {"queue": "mcp.desk:a:dev"}}
    sent = apps["sre"].send_task(
        "tarsy.call_tool",
        ["desk", "echo", {"text": "who"}, {"agent_id": "dev"}],
        headers=headers,
        principal="dev",
    )
    assert "sre from mcp.desk:a:sre" in sent.get(timeout=TIMEOUT_S)["content"]


def test_an_entry_that_names_the_queue_of_another_moves_nothing(
    apps: dict[str, TarsyApp], worker: Worker, valkey: Valkey, admin: redis.Redis
) -> None:
    message = {
        "body": json.dumps([["desk", "echo", {"text": "who"}, {}], {}, {}]),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": "tarsy.call_tool", "id": "forged"},
        "properties": {"delivery_tag": "forged", "delivery_info": {"exchange": "", "routing_key": "mcp.desk:a:dev"}},
    }
    with closing(redis.Redis.from_url(url_of(valkey.port, "sre"))) as sre:
        # As if it had been lost on its way from the queue of another agent.
        sre.hsetnx(keys.UNACKED, "forged", f"mcp.desk:a:dev\n\n{json.dumps(message)}")
        sre.zadd(keys.waiting_key("mcp.desk:a:sre"), {"forged": 1})
        sre.zadd(keys.QUEUES, {"mcp.desk:a:sre": 1, "mcp.desk:a:dev": 1})
    worker.wait_for_log("dropped 1 message(s) that were in no queue of their agents: ('forged',)", TIMEOUT_S)
    assert not admin.exists(keys.result_key("forged"), keys.call_marker("forged"))
    assert not admin.hexists(keys.UNACKED, "forged")


def test_what_follows_a_call_stays_with_its_agent(apps: dict[str, TarsyApp]) -> None:
    first = tool_signature("desk.echo", {"text": "x"}, app=apps["sre"])
    own = tool_signature("desk.echo", {"text": "who"}, app=apps["sre"])
    shared = own.clone(queue="mcp.desk")
    for following in (own, shared):
        content = (first.clone() | following).delay().get(timeout=TIMEOUT_S)["content"]
        assert "sre from mcp.desk:a:sre" in content
    others = own.clone(queue="mcp.desk:a:dev")
    with pytest.raises(Exception, match="must not be set"):
        (first.clone() | others).delay().get(timeout=TIMEOUT_S)


def test_a_call_of_an_agent_can_be_withdrawn_and_listed(apps: dict[str, TarsyApp], admin: redis.Redis) -> None:
    with ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=apps["sre"]) as tools:
        assert {tool.tool for tool in tools.list_tools()} >= {"echo", "wait"}
        calls = [tools.submit(ToolCall(id=str(n), name="desk.wait", arguments={"seconds": 30})) for n in range(6)]
        own = keys.agent_queue("desk", "sre")
        wait_until(lambda: admin.llen(own) == 2, "the server is at its limit")
        for call in reversed(calls):
            call.cancel()
        assert {call.result().error_code for call in calls} == {ErrorCode.CANCELLED}
        assert admin.llen(own) == 0


def test_a_delayed_call_keeps_its_agent(apps: dict[str, TarsyApp]) -> None:
    arguments = ["desk", "echo", {"text": "who"}, {}]
    sent = apps["dev"].send_task("tarsy.call_tool", arguments, countdown=1)
    assert "dev from mcp.desk:a:dev" in sent.get(timeout=TIMEOUT_S)["content"]


def test_names_made_up_by_an_agent_delay_no_other(apps: dict[str, TarsyApp], valkey: Valkey) -> None:
    with closing(redis.Redis.from_url(url_of(valkey.port, "sre"))) as sre:
        for n in range(20):
            sre.sadd(keys.agents_key("desk"), "dev", "ops", "*", *(f"junk{n}-{m}" for m in range(2000)))
        assert "dev from" in who(apps["dev"]).content


def test_after_a_restart_of_redis_agents_are_served(apps: dict[str, TarsyApp], valkey: Valkey) -> None:
    tools = ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=apps["sre"])
    running = [tools.submit(ToolCall(id=str(n), name="desk.wait", arguments={"seconds": 1})) for n in range(12)]
    running[0].result()
    valkey.stop()
    valkey.start()
    assert {call.result().outcome for call in running} == {Outcome.OK}
    assert "dev from" in who(apps["dev"]).content


def test_calls_of_a_killed_worker_return_to_their_agents(
    start: Any, worker: Worker, apps: dict[str, TarsyApp], admin: redis.Redis
) -> None:
    with ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=apps["sre"]) as sre:
        held = [ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=apps[name]) for name in AGENTS]
        calls = [tools.submit("desk.echo", {"text": "held"}) for tools in held]
        wait_until(lambda: admin.zcard(keys.LEASES) == len(AGENTS), "all are held")
        worker.process.kill()
        worker.process.wait()
        start()
        found = [call.result().content for call in calls]
        assert sre.execute("desk.echo", {"text": "x"}).content == "x"
    for name, content in zip(AGENTS, found, strict=True):
        assert f"{name} from mcp.desk:a:{name}" in content
