"""Watches of agents who each have a user of Redis: what one of them watches is nobody else's, and no longer permitted
is no longer watched."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import BrokerUnavailable, ErrorCode, OutcomeError, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.plants import know
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.security.fleet import agents_apps
from tests.servers import noticeboard
from tests.servers.noticeboard import NOTICE
from tests.valkey import Valkey
from tests.warm_start import warm_command

AGENTS = ("sre", "dev")
SERVERS = ("board", "own", "tight")
FORBIDDEN = "notice://board/forbidden"
POLICY: dict[str, Any] = {
    "agents": {"sre": {}, "dev": {"deny": ["board.resources/subscribe"]}, "*": {"allow": []}},
    "arguments": [
        {
            "agents": ["sre"],
            "tools": ["board.resources/subscribe"],
            "arguments": {"properties": {"uri": {"not": {"const": FORBIDDEN}}}},
            "text": "That one is not for you.",
        }
    ],
}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=(AgentUser("sre", SERVERS), AgentUser("dev", SERVERS))) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("watches")
    (directory / "policy.json").write_text(json.dumps(POLICY))
    for agent in AGENTS:
        folder = directory / "secrets" / agent
        folder.mkdir(parents=True)
        (folder / "TOKEN").write_text(know(f"credential of {agent}", f"key-{agent}-0123456789abcdef"))
        (folder / "TOKEN").chmod(0o600)
    return directory


@pytest.fixture(scope="module")
def start(valkey: Valkey, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes one more worker."""
    of_agents = {
        "command": sys.executable,
        "args": [noticeboard.__file__, str(directory / "own"), "--handshake"],
        "env": {"TOKEN": "${agent:TOKEN}"},
        "agent_credentials": {"idle_s": 60},
        "cache": {"resources": 600},
    }
    servers = {
        "board": warm_command(noticeboard.__file__, str(directory / "board"), "--handshake"),
        "own": of_agents,
        "tight": {**of_agents, "agent_credentials": {"idle_s": 60, "max_sessions": 1}},
    }
    environment = {"TARSY_POLICY": str(directory / "policy.json"), "TARSY_AGENT_SECRETS": str(directory / "secrets")}
    settings = 'broker_transport_options = {"visibility_timeout": 2}\n'
    return lambda: Worker(
        tmp_path_factory.mktemp("worker"), servers, url_of(valkey.port), environment=environment, settings=settings
    )


@pytest.fixture(scope="module")
def worker(start: Any) -> Iterator[Worker]:
    with start() as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker


@pytest.fixture(scope="module")
def apps(worker: Worker, valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    assert worker
    with agents_apps(valkey, AGENTS) as apps:
        yield apps


@pytest.fixture
def table(valkey: Valkey) -> Iterator[Any]:
    with redis.Redis.from_url(url_of(valkey.port)) as found:
        yield found


def pin(tools: ToolExecutor, server: str, text: str) -> None:
    assert tools.execute(f"{server}.pin", {"uri": NOTICE, "text": text}).content == text


def test_a_watch_is_its_agents_alone(apps: dict[str, TarsyApp], valkey: Valkey, table: Any) -> None:
    with ToolExecutor(timeout_s=20, app=apps["sre"]) as tools, tools.watch_resource(NOTICE, server="board") as watch:
        [record] = table.keys("tarsy:watch:*")
        channel = keys.events_channel(record.decode().rpartition(":")[2], "sre")
        for user in ("dev", "agent"):
            with redis.Redis.from_url(url_of(valkey.port, user)) as other:
                for command in (
                    *(("DEL", record), ("EXPIRE", record, 1), ("HGETALL", record)),
                    *(("ZRANGE", keys.WATCHES, 0, -1), ("SUBSCRIBE", channel)),
                ):
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        other.execute_command(*command)
        with redis.Redis.from_url(url_of(valkey.port, "sre")) as own:
            for command in (("HGETALL", record), ("HSET", record, "watch", "x"), ("PUBLISH", channel, "x")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    own.execute_command(*command)
        pin(tools, "board", "for sre")
        assert next(watch).is_certain


def test_what_the_policy_denies_is_not_watched(apps: dict[str, TarsyApp], table: Any) -> None:
    for agent, uri, code in (
        ("dev", NOTICE, ErrorCode.NOT_PERMITTED),
        ("sre", FORBIDDEN, ErrorCode.ARGUMENTS_NOT_PERMITTED),
        ("agent", NOTICE, ErrorCode.NOT_PERMITTED),
    ):
        with ToolExecutor(timeout_s=20, app=apps[agent]) as tools, pytest.raises(OutcomeError) as denied:
            tools.watch_resource(uri, server="board")
        assert denied.value.result.error_code is code
    wait_until(lambda: not table.zcard(keys.WATCHES), "nothing is watched")


def test_a_watch_uses_its_agents_own_session(apps: dict[str, TarsyApp], start: Any, worker: Worker, table: Any) -> None:
    """Also when another worker has taken it over."""
    tools, others = (ToolExecutor(timeout_s=40, app=apps[agent]) for agent in AGENTS)
    with tools, others, tools.watch_resource(NOTICE, server="own") as watch:
        pin(others, "own", "of dev, in a process of its own")
        for text in ("of sre", "of sre again"):
            pin(tools, "own", text)
            assert next(watch).is_certain
            assert tools.read_resource(NOTICE, server="own").content == text
        with start() as second:
            second.wait_until_ready()
            worker.process.kill()
            worker.process.wait()
            assert not next(watch).is_certain
            pin(others, "own", "of dev")
            pin(tools, "own", "of sre")
            assert next(watch).is_certain
            second.ask_to_stop()


def test_a_call_takes_the_place_of_a_watch(
    apps: dict[str, TarsyApp], start: Any, valkey: Valkey, directory: Path
) -> None:
    """Which goes on when there is a place again, and ends when its agent has no credential any more."""
    tools, others = (ToolExecutor(timeout_s=40, app=apps[agent]) for agent in AGENTS)
    with start() as worker, tools, others:
        worker.wait_until_ready()
        with tools.watch_resource(NOTICE, server="tight") as watch:
            assert inspect_watched(valkey, "tight") == 1
            pin(others, "tight", "of dev, in the only place")
            assert not next(watch).is_certain
            pin(tools, "tight", "of sre")
            assert next(watch).is_certain
            (directory / "secrets" / "sre" / "TOKEN").unlink()
            with pytest.raises(OutcomeError, match="has no credential") as ended:
                list(watch)
            assert ended.value.result.error_code is ErrorCode.NO_CREDENTIAL
        assert inspect_watched(valkey, "tight") == 0
        worker.ask_to_stop()


def inspect_watched(valkey: Valkey, server: str) -> int:
    url = url_of(valkey.port, "operator")
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        [answer] = app.control.broadcast("mcp_sessions", reply=True, timeout=20, limit=1)
    return next(iter(answer.values()))[server]["watched"]


def test_a_watch_ends_when_it_is_no_longer_permitted(
    apps: dict[str, TarsyApp], start: Any, directory: Path, table: Any
) -> None:
    """It changes the policy."""
    with start() as worker:
        worker.wait_until_ready()
        tools = ToolExecutor(timeout_s=40, app=apps["sre"])
        with tools, tools.watch_resource(NOTICE, server="board") as watch:
            changed = {**POLICY, "agents": {"sre": {"deny": ["board.resources/*"]}, "*": {}}}
            (directory / "policy.json").write_text(json.dumps(changed))
            with pytest.raises(OutcomeError) as ended:
                next(watch)
            assert ended.value.result.error_code is ErrorCode.NOT_PERMITTED
        wait_until(lambda: not table.zcard(keys.WATCHES), "nothing is watched")
        worker.ask_to_stop()


def test_a_watch_ends_when_redis_refuses_its_agent(apps: dict[str, TarsyApp], start: Any, table: Any) -> None:
    """The last test: nobody is let in again."""
    with start() as worker:
        worker.wait_until_ready()
        with ToolExecutor(timeout_s=40, app=apps["dev"]) as tools, tools.watch_resource(NOTICE, server="own") as watch:
            table.acl_deluser("dev")
            with pytest.raises(BrokerUnavailable, match="refuses this user"):
                list(watch)
        worker.ask_to_stop()
