"""A person signs in, and workers call: `tarsy-tasks auth` against an authorization server, real workers, and Redis."""

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest
import redis

from tarsy_tasks import ErrorCode, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.oauth import store
from tarsy_tasks.oauth.sealed import Sealer
from tarsy_tasks.oauth.sign_in import SignIn
from tests.cli.browser import BROWSER
from tests.cli.commands import TARSY_TASKS, run_command
from tests.conftest import StartWorker
from tests.plants import know, read_keys
from tests.processes import Worker, wait_until
from tests.redis_users import as_user
from tests.servers.login_server import LoginServer, login_server

KEY = know("the key of tokens", b64encode(b"a key of tokens, 32 bytes long!!").decode())


class Unfollowed(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The test follows it itself, or says where it leads."""


def approve(url: str) -> str:
    """Sign in with a browser; returns the address that it is sent to."""
    try:
        build_opener(Unfollowed).open(Request(url), timeout=10)
    except Exception as error:
        return str(error.headers["Location"])  # type: ignore[attr-defined]
    raise AssertionError("no redirect")


@pytest.fixture(scope="module")
def server() -> Iterator[LoginServer]:
    with login_server() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def workers(start_worker: StartWorker, server: LoginServer) -> list[Worker]:
    quick = {"auth": {"type": "oauth"}, "timeouts": {"recreate_s": 1, "connect_s": 15}}
    servers = {name: {"url": f"{server.url}/mcp/{name}", **quick} for name in ("desk", "other")}
    environment = {"TARSY_TOKEN_KEY": KEY}
    return [start_worker(servers, environment=environment) for _ in range(2)]


@pytest.fixture(scope="module")
def tools(workers: list[Worker]) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=30) as tools:
        yield tools


def call(tools: ToolExecutor, server: str = "desk") -> ToolResult:
    return tools.execute(f"{server}.whoami", {})


def works(tools: ToolExecutor, server: str) -> bool:
    """Whether all workers have noticed that somebody signed in."""
    return {result.outcome for result in tools.execute_many([(f"{server}.whoami", {})] * 8)} == {"ok"}


def connected(server: LoginServer, name: str) -> int:
    """How many workers have connected with a token."""
    path = f"/mcp/{name}"
    return sum(
        each.path == path and '"server/discover"' in each.body and "authorization" in each.headers
        for each in server.requests
    )


def auth(workers: list[Worker], *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command("auth", *words, environment={**workers[0].environment, **environment})


def login_by_paste(workers: list[Worker], server: str, *words: str) -> tuple[int, str]:
    """Sign in with a browser elsewhere; returns the exit code and all that was printed."""
    command = [TARSY_TASKS, "auth", "login", server, "--no-browser", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=workers[0].environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if line.startswith("http"):
            process.stdin.write(f"{approve(line.strip())}\n")
            process.stdin.flush()
            break
    seen += process.communicate(timeout=30)[0]
    return process.returncode, seen


def states(workers: list[Worker]) -> dict[str, Any]:
    done = auth(workers, "status", "--json")
    return {row["server"]: row for row in json.loads(done.stdout)}


def test_nobody_has_signed_in(tools: ToolExecutor, workers: list[Worker]) -> None:
    result = call(tools)
    assert result.error_code == ErrorCode.SERVER_REFUSED
    assert "nobody has signed in; an operator signs in with `tarsy-tasks auth login desk`" in result.content
    done = auth(workers, "status")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].split("\t")[:2] == ["desk", "not signed in"]


def test_a_person_signs_in_with_a_browser(tools: ToolExecutor, workers: list[Worker], server: LoginServer) -> None:
    done = auth(workers, "login", "desk", BROWSER=BROWSER)
    assert done.returncode == 0, done.stderr
    assert f"Signed in to desk at {server.url} with read. Workers use it within 5 s." in done.stderr
    wait_until(lambda: call(tools).content == "somebody who may read", "workers use it", 30)
    state = states(workers)["desk"]
    assert (state["status"], state["scopes"], state["is_renewed"]) == ("signed in", ["read"], True)
    assert not [token for token in (*server.access, *server.refresh) if token in done.stdout + done.stderr]


def test_workers_renew_in_time_and_one_at_a_time(
    tools: ToolExecutor, workers: list[Worker], server: LoginServer
) -> None:
    server.code_s = 2
    code, seen = login_by_paste(workers, "other")
    server.code_s = None
    assert code == 0, seen
    wait_until(lambda: works(tools, "other") and connected(server, "other") == 2, "both workers use it", 30)
    wait_until(lambda: not works(tools, "other") or server.renewals, "it is renewed", 30)
    assert works(tools, "other")
    assert server.renewals == 1
    assert not server.reused


def test_a_scope_that_is_missing_is_named(tools: ToolExecutor, workers: list[Worker], server: LoginServer) -> None:
    server.needed = "write"
    result = call(tools, "other")
    assert result.error_code == ErrorCode.SERVER_REFUSED, result.content
    assert "`tarsy-tasks auth login other --scope write`" in result.content
    code, seen = login_by_paste(workers, "other", "--scope", "write")
    assert code == 0, seen
    assert "with read write" in seen
    wait_until(lambda: works(tools, "other"), "workers use it", 30)
    server.needed = ""
    assert len([each for each in server.requests if each.path == "/register"]) == 2


def test_agents_cannot_read_tokens_and_redis_has_none(
    redis_url: str, workers: list[Worker], server: LoginServer
) -> None:
    with redis.Redis.from_url(as_user(redis_url, "agent")) as agent:
        for command in ("GET", "DEL", "EXISTS", "STRLEN", "DUMP"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                agent.execute_command(command, keys.sign_in_key("desk"))
    with redis.Redis.from_url(redis_url) as client:
        client.acl_log_reset()
        everything = b"".join(text for _, text in read_keys(client))
    for token in (*server.access, *server.refresh, *filter(None, server.clients.values())):
        assert token.encode() not in everything
    for worker in workers:
        assert not [token for token in (*server.access, *server.refresh, KEY) if token in worker.log]


def test_signing_out_revokes(tools: ToolExecutor, workers: list[Worker], server: LoginServer) -> None:
    done = auth(workers, "logout", "desk")
    assert (done.returncode, done.stderr) == (0, "Signed out of desk.\n")
    assert len(server.forms("/revoke")) == 2
    wait_until(lambda: "nobody has signed in" in call(tools).content, "workers notice", 30)
    assert auth(workers, "logout", "desk").stderr == "Nobody had signed in to desk.\n"
    assert works(tools, "other")
    assert not server.reused


def age(redis_url: str, name: str) -> SignIn:
    """Make a sign-in look as if it had been renewed a while ago, and return it."""
    sealer = Sealer([b64decode(KEY)])
    with redis.Redis.from_url(redis_url) as client:
        found = store.read_found(sealer, name, [client.execute_command(*each) for each in store.build_read(name)])
        assert found is not None
        older = found.sign_in.model_copy(update={"obtained_at": found.sign_in.obtained_at - 1000})
        client.execute_command(*store.build_write(name, store.seal(sealer, name, older)))
        return older


def revoke(server: LoginServer, kept: set[str]) -> None:
    """Revoke all tokens but these."""
    for known in (server.access, server.refresh):
        for token in {*known} - kept:
            del known[token]


def test_revoked_tokens_are_renewed_or_somebody_has_to_sign_in(
    tools: ToolExecutor, workers: list[Worker], server: LoginServer, redis_url: str
) -> None:
    renewals = server.renewals
    revoke(server, age(redis_url, "other").secrets - {*server.access})
    # A worker that still has the token of the last but one sign-in finds out about both.
    wait_until(lambda: works(tools, "other"), "it is renewed", 30)
    assert server.renewals == renewals + 1
    # Together with its refresh token.
    age(redis_url, "other")
    revoke(server, set())
    result = call(tools, "other")
    assert result.error_code == ErrorCode.SERVER_REFUSED, result.content
    assert "`tarsy-tasks auth login other`" in result.content
    # A token that was just renewed for a refusal is not renewed for the next one.
    wait_until(lambda: "refused the sign-in" in call(tools, "other").content, "its refresh token is tried", 30)
    assert states(workers)["other"]["status"].startswith("sign in again: ")
    assert login_by_paste(workers, "other")[0] == 0
    wait_until(lambda: works(tools, "other"), "workers use it", 30)
