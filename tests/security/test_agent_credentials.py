"""Servers that each agent uses with a credential of its own: what each of them reaches, and never what another's does.

The queue says whose call it is, for only its Redis user may write into it. The server
counts whom it saw in whose session.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys, task_names
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.config import load_config
from tarsy_tasks.doctor.secret_files import check_secret_files
from tarsy_tasks.health import statuses
from tarsy_tasks.settings import Settings
from tests.cli.commands import run_command
from tests.plants import know
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.security.fleet import agents_apps
from tests.servers import keyed as keyed_server
from tests.servers.keyed import Keyed, keyed
from tests.valkey import Valkey

AGENTS = tuple(f"agent{n:02}" for n in range(20))
NAMELESS = "stranger"
"""It has no credential."""
ANYONE = "agent"
"""The shared user, whose calls are anonymous."""
SERVERS = ("web", "process", "checked", "narrow", "renewed")
POOL = 4
CALLS = 20
TIMEOUT_S = 60


def token_of(agent: str, number: int = 1) -> str:
    return know(f"credential of {agent}", f"key-{agent}-{number:04}0123456789abcdef")


def give(directory: Path, agent: str, token: str) -> None:
    folder = directory / agent
    folder.mkdir(exist_ok=True)
    (folder / "TOKEN").write_text(f"{token}\n")
    (folder / "TOKEN").chmod(0o600)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=tuple(AgentUser(name, SERVERS) for name in (*AGENTS, NAMELESS))) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Keyed]:
    with keyed() as server:
        server.tokens = {token_of(agent) for agent in (*AGENTS, "worker")}
        yield server


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("agents")
    for agent in (*AGENTS, "worker"):
        give(directory, agent, token_of(agent))
    (directory / NAMELESS).mkdir()
    return directory


@pytest.fixture(scope="module")
def workers(
    valkey: Valkey, server: Keyed, secrets: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Worker]]:
    web = {"url": f"{server.url}/mcp", "headers": {"Authorization": "Bearer ${agent:TOKEN}"}, "max_concurrency": 8}
    servers: dict[str, dict[str, Any]] = {
        "web": {**web, "cache": {"tools": {"mine": 600}}},
        "process": {
            "command": sys.executable,
            "args": ["-S", "-E", keyed_server.__file__],
            "env": {"TOKEN": "${agent:TOKEN}"},
            "agent_credentials": {"idle_s": 1},
        },
        "checked": {
            "url": f"{server.url}/mcp",
            "auth": {"type": "bearer", "token": "${agent:TOKEN}"},
            "agent_credentials": {"service": True},
        },
        "narrow": {**web, "agent_credentials": {"max_sessions": POOL}},
        "renewed": {**web, "isolated": {"restart": True}},
    }
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                Worker(
                    tmp_path_factory.mktemp("worker"),
                    servers,
                    url_of(valkey.port),
                    environment={"TARSY_AGENT_SECRETS": str(secrets), "TARSY_STARTUP": "strict"},
                    settings='broker_transport_options = {"visibility_timeout": 2}\n',
                    name=f"w{n}",
                )
            )
            for n in range(2)
        ]
        for worker in started:
            worker.wait_until_ready()
        stack.enter_context(environment_of(started[0]))
        yield started
        for worker in started:
            worker.ask_to_stop()


@pytest.fixture(scope="module")
def agents(workers: list[Worker], valkey: Valkey) -> Iterator[dict[str, ToolExecutor]]:
    assert workers
    with agents_apps(valkey, (*AGENTS, NAMELESS)) as apps, ExitStack() as stack:
        yield {
            name: stack.enter_context(ToolExecutor(SERVERS, timeout_s=TIMEOUT_S, app=app)) for name, app in apps.items()
        }


def sessions(valkey: Valkey, server: str) -> list[dict[str, Any]]:
    """What each worker says of a server."""
    url = url_of(valkey.port, "operator")
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        replies = app.control.broadcast("mcp_sessions", reply=True, limit=2, timeout=10)
    return [answer[server] for reply in replies for answer in reply.values()]


def who(tools: ToolExecutor, name: str = "web") -> str:
    result = tools.execute(f"{name}.whoami")
    assert result.outcome is Outcome.OK, result.content
    return result.content.split()[0]


def test_each_agent_reaches_a_server_with_its_own_credential(agents: dict[str, ToolExecutor]) -> None:
    for agent in AGENTS[:3]:
        assert [who(agents[agent], name) for name in SERVERS] == [agent] * len(SERVERS)


def test_an_agent_without_a_credential_is_rejected(agents: dict[str, ToolExecutor], workers: list[Worker]) -> None:
    for name, why in ((NAMELESS, "has no credential"), (ANYONE, "is not verified")):
        result = agents[name].execute("web.whoami")
        assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.NO_CREDENTIAL)
        assert why in result.content
        assert "operator must" in result.content
    assert any(f"{NAMELESS}/TOKEN does not exist" in worker.log for worker in workers)


def test_tools_and_kept_answers_are_those_of_the_credential(agents: dict[str, ToolExecutor]) -> None:
    first, second = AGENTS[:2]
    for agent, other in ((first, second), (second, first)):
        names = {tool.name for tool in agents[agent].list_tools()}
        assert {f"web.of_{agent}", f"checked.of_{agent}"} <= names
        assert not any(name.endswith((f"of_{other}", "of_worker")) for name in names)
        assert agents[agent].execute(f"web.of_{other}").error_code is ErrorCode.UNKNOWN_TOOL
        found = [agents[agent].execute("web.mine") for _ in range(2)]
        assert [(result.content, result.cached) for result in found] == [(agent, False), (agent, True)]
    assert agents[NAMELESS].list_tools().failed_servers.keys() == set(SERVERS)


def test_a_credential_is_masked_in_results(agents: dict[str, ToolExecutor]) -> None:
    for name in ("web", "process"):
        assert agents[AGENTS[0]].execute(f"{name}.reveal").content == "the token is __MASKED__"


def test_the_status_says_what_health_means(
    agents: dict[str, ToolExecutor], workers: list[Worker], valkey: Valkey
) -> None:
    assert who(agents[AGENTS[0]]) == AGENTS[0]

    url = url_of(valkey.port, "beat")
    with closing(build_app({"broker_url": url, "result_backend": url})) as beat:
        for server in ("web", "checked"):
            beat.send_task(task_names.CHECK_SERVER, [server], ignore_result=True)

    def has_reported() -> Any:
        found = statuses(["web", "checked"])
        return found if all(each.healthy and len(each.workers) == len(workers) for each in found.values()) else None

    found = wait_until(has_reported, "both are healthy")
    assert {record.state for record in found["web"].workers.values()} == {"per_agent"}
    assert {record.state for record in found["checked"].workers.values()} == {"connected"}
    assert "healthy (per agent)" in run_command("health", environment=workers[0].environment_of("operator")).stdout
    assert {each["state"] for each in sessions(valkey, "web")} == {"per_agent"}
    assert sum(each["agents"] for each in sessions(valkey, "web"))


def test_sessions_are_bounded_and_idle_ones_closed(agents: dict[str, ToolExecutor], valkey: Valkey) -> None:
    for agent in AGENTS[: 3 * POOL]:
        assert who(agents[agent], "narrow") == agent
        assert who(agents[agent], "process") == agent
    assert all(each["agents"] <= POOL for each in sessions(valkey, "narrow"))
    wait_until(lambda: not any(each["agents"] for each in sessions(valkey, "process")), "they are closed")


def test_a_changed_credential_is_noticed(agents: dict[str, ToolExecutor], server: Keyed, secrets: Path) -> None:
    agent = AGENTS[0]
    tools, renewed = agents[agent], token_of(agent, 2)
    assert who(tools) == agent
    opened = server.opened[agent]
    server.tokens |= {renewed}
    give(secrets, agent, renewed)
    wait_until(lambda: who(tools) and server.opened[agent] > opened, "a new session, with the new credential")
    # The old one is refused from now on; a server may also refuse it before its file was looked at.
    server.tokens -= {token_of(agent)}
    again = token_of(agent, 3)
    server.tokens |= {again}
    server.tokens -= {renewed}
    give(secrets, agent, again)
    assert who(tools) == agent
    (secrets / agent / "TOKEN").unlink()
    wait_until(lambda: tools.execute("web.whoami").error_code is ErrorCode.NO_CREDENTIAL, "it is gone")
    give(secrets, agent, again)
    wait_until(lambda: tools.execute("web.whoami").outcome is Outcome.OK, "it is back")


@pytest.mark.parametrize("name", ["web", "process", "renewed"])
def test_an_open_session_of_a_run_notices_a_changed_credential(
    valkey: Valkey, workers: list[Worker], server: Keyed, secrets: Path, name: str
) -> None:
    assert workers
    agent, call = AGENTS[17], f"{name}.whoami"
    numbers = count(100 * (1 + ["web", "process", "renewed"].index(name)))

    def renew() -> None:
        token = token_of(agent, next(numbers))
        server.tokens |= {token}  # those of before are still taken: only the file says that there is another one
        give(secrets, agent, token)

    def use(tools: ToolExecutor) -> str:
        result = tools.execute(call)
        return result.content if result.outcome is Outcome.OK else f"{result.error_code}: {result.content}"

    renew()
    with (
        agents_apps(valkey, [agent]) as apps,
        ToolExecutor([name], session="run", timeout_s=60, app=apps[agent]) as run,
    ):
        assert [use(run) for _ in range(2)] == [f"{agent} 1", f"{agent} 2"]
        renew()
        told = wait_until(
            lambda: None if (said := use(run)).startswith(agent) and said != f"{agent} 1" else said, "it is noticed"
        )
        if name == "renewed":
            assert told == f"{agent} 1"
        else:
            assert told.startswith("SESSION_LOST")
            assert "the credential of its agent was changed. This call was not sent" in told
            assert use(run) == f"{agent} 1", "a new session, with the new credential"
        (secrets / agent / "TOKEN").unlink()
        wait_until(lambda: use(run).startswith("NO_CREDENTIAL"), "it is gone")
        renew()
        found = wait_until(
            lambda: None if (said := use(run)).startswith("NO_CREDENTIAL") else said, "there is one again"
        )
        assert found == f"{agent} 1" if name == "renewed" else "the credential of its agent was removed" in found
        wait_until(lambda: use(run).startswith(agent), "it goes on")
    assert server.crossed == []


def denied(tools: ToolExecutor) -> ToolResult | None:
    result = tools.execute("web.whoami")
    return None if result.outcome is Outcome.OK else result


def test_what_others_can_change_is_not_used(
    agents: dict[str, ToolExecutor], secrets: Path, workers: list[Worker], tmp_path: Path
) -> None:
    agent = AGENTS[19]
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"web": {"url": "http://h/", "headers": {"A": "${agent:TOKEN}"}}}}))
    servers, settings = load_config(config).servers.values(), Settings(agent_secrets=secrets)
    path = secrets / agent / "TOKEN"
    path.chmod(0o602)
    assert any("so workers do not use it" in each.text for each in check_secret_files(servers, settings))
    result = wait_until(lambda: denied(agents[agent]), "it is not used")
    assert result.error_code is ErrorCode.SERVER_MISCONFIGURED
    assert any(f"{path}: every user of this machine can change it" in worker.log for worker in workers)
    # Nor does a link lead to the credential of another.
    path.unlink()
    path.symlink_to(secrets / AGENTS[18] / "TOKEN")
    assert agents[agent].execute("web.whoami").error_code is ErrorCode.SERVER_MISCONFIGURED
    path.unlink()
    give(secrets, agent, token_of(agent))
    wait_until(lambda: not denied(agents[agent]), "it is used again")
    assert any("credentials of" in each.text for each in check_secret_files(servers, settings))


def test_nothing_is_crossed_when_a_worker_is_killed(
    agents: dict[str, ToolExecutor], server: Keyed, workers: list[Worker], valkey: Valkey
) -> None:
    names = ["narrow", *["web"] * (CALLS - 1)]
    calls = [(agent, agents[agent].submit(f"{name}.whoami")) for name in names for agent in AGENTS]
    assert calls[len(calls) // 4][1].result().outcome is Outcome.OK
    workers[1].process.kill()
    seen = [(agent, call.result()) for agent, call in calls]
    assert Counter(str(result.error_code or result.outcome) for _, result in seen) == {"ok": len(AGENTS) * CALLS}
    assert [(agent, result.content) for agent, result in seen if result.content.split()[0] != agent] == []
    assert server.crossed == []
    with closing(redis.Redis.from_url(url_of(valkey.port))) as admin:
        assert not admin.acl_log()
        assert not admin.hkeys(keys.UNACKED)
