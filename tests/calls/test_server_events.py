"""`on_event`: what happens to servers, in an agent's Python."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, Outcome, ServerEvent, ToolExecutor
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.errors import BrokerUnavailable
from tests.calls.deployment import DESK, Deployment
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import until, wait_until


@pytest.fixture(scope="module")
def deployment(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    with redis.Redis.from_url(redis_url) as client:
        yield Deployment(start_worker, tmp_path_factory.mktemp("shared"), client, [""])


class Heard:
    """The events that an agent heard."""

    def __init__(self) -> None:
        self.events: list[ServerEvent] = []

    def __call__(self, event: ServerEvent) -> None:
        self.events.append(event)

    def of(self, server: str, kind: str) -> list[ServerEvent]:
        return [event for event in self.events if (event.server, event.kind) == (server, kind)]

    def wait_for(self, server: str, kind: str, count: int = 1) -> ServerEvent:
        wait_until(lambda: len(self.of(server, kind)) >= count, f"{kind} of {server}: {self.events}")
        return self.of(server, kind)[-1]


def test_an_agent_hears_what_happens_to_servers(deployment: Deployment, tmp_path: Path) -> None:
    heard, of_desk = Heard(), Heard()
    ledger = Ledger(tmp_path / "shop")
    with ToolExecutor(timeout_s=30) as tools, ToolExecutor(["desk"], timeout_s=30) as only_desk:
        tools.on_event(heard)
        only_desk.on_event(of_desk)
        deployment.save({**DESK, "shop": witness(ledger), "broken": {"command": "no-such-program-here"}})
        connected = heard.wait_for("shop", "connected")
        assert (connected.tools, connected.sessions_opened) == (6, 1)
        assert connected.worker.startswith("w0@")
        assert abs(connected.at - deployment.client.time()[0]) < 60
        error = heard.wait_for("broken", "error")
        assert "no-such-program-here" in error.error
        assert error.code == "SERVER_MISCONFIGURED"

        assert tools.execute("shop.grow", {"key": "a"}).outcome is Outcome.OK
        grown = heard.wait_for("shop", "tools_changed")
        assert len(grown.added) == 1
        assert (grown.removed, grown.changed) == ((), ())

        [process] = deployment.workers[0].find_children(str(ledger.path))
        process.kill()
        heard.wait_for("shop", "disconnected")
        assert tools.execute("shop.look", {"key": "b"}).outcome is Outcome.OK
        assert heard.wait_for("shop", "connected", 2).sessions_opened == 2
        deployment.serve(DESK)
        heard.wait_for("shop", "disconnected", 2)
    assert {event.server for event in of_desk.events} <= {"desk"}


@pytest.fixture
def app(redis_url: str) -> Iterator[TarsyApp]:
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        yield app


def reconnect_desk(app: Any) -> None:
    app.control.broadcast("mcp_reconnect", arguments={"server": "desk"}, reply=True, timeout=5, limit=1)


def test_a_lost_subscription_is_opened_again(deployment: Deployment, app: TarsyApp) -> None:
    heard = Heard()
    with ToolExecutor(["desk"], timeout_s=30) as tools:
        tools.on_event(heard)
        own = {each.laddr.port for each in psutil.Process().net_connections() if each.laddr}
        for each in deployment.client.client_list(_type="pubsub"):
            if int(each["addr"].rpartition(":")[2]) in own:
                deployment.client.client_kill_filter(_id=each["id"])

        def is_heard() -> bool:
            reconnect_desk(app)
            return bool(heard.of("desk", "connected"))

        wait_until(is_heard, "it is heard again", 40)


def test_a_function_that_raises_is_called_again(
    deployment: Deployment, app: TarsyApp, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def fail(event: ServerEvent) -> None:
        calls.append(event.kind)
        raise ArithmeticError(event.kind)

    with ToolExecutor(["desk"], timeout_s=30) as tools:
        tools.on_event(fail)

        def is_called_again() -> bool:
            reconnect_desk(app)
            return len(calls) > 1 and "connected" in calls

        wait_until(is_called_again, "it is called again", 40)
    wait_until(lambda: "`on_event` failed for connected of MCP server desk" in caplog.text, "it is logged")
    assert deployment.workers[0].log


def test_what_was_ended_is_not_called(deployment: Deployment, app: TarsyApp) -> None:
    ended, closed, kept = Heard(), Heard(), Heard()
    with ToolExecutor(["desk"], timeout_s=30) as tools, ToolExecutor(["desk"], timeout_s=30) as other:
        tools.on_event(kept)
        end = tools.on_event(ended)
        other.on_event(closed)
        end()
        end()
        other.close()
        reconnect_desk(app)
        kept.wait_for("desk", "connected")
    assert not ended.events
    assert not closed.events
    assert deployment.workers[0].log


async def _hear(app: TarsyApp) -> list[str]:
    heard: list[str] = []

    async def hear(event: ServerEvent) -> None:
        await asyncio.to_thread(heard.append, event.kind)

    async with AsyncToolExecutor(["desk"], timeout_s=30) as tools:
        await tools.on_event(hear)
        await asyncio.to_thread(reconnect_desk, app)
        await until(lambda: heard[-1:] == ["connected"], 30)
    return heard


def test_asyncio_agents_hear_them_on_their_loop(deployment: Deployment, app: TarsyApp) -> None:
    assert asyncio.run(_hear(app))[-1] == "connected"
    assert deployment.workers[0].log


def test_a_user_with_older_rules_is_refused(deployment: Deployment, redis_url: str) -> None:
    client = deployment.client
    client.acl_setuser("older", enabled=True, passwords=["+older"], keys=["*"], commands=["+@all"], reset_channels=True)
    url = redis_url.replace(f"//{urlsplit(redis_url).username}:{urlsplit(redis_url).password}@", "//older:older@")
    with build_app({"broker_url": url, "result_backend": url}) as app, ToolExecutor(["desk"], app=app) as tools:  # noqa: SIM117
        with pytest.raises(BrokerUnavailable, match="tarsy-tasks acl"):
            tools.on_event(print)
    client.acl_deluser("older")
    client.acl_log_reset()
