"""Credentials from a provider that a user wrote: each agent has its own, and a failure costs only its calls."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.interceptors import ANONYMOUS
from tests.cli.commands import run_command
from tests.plants import find_leaks, know
from tests.processes import Worker, wait_until
from tests.redis_users import url_of
from tests.security.fleet import agents_apps
from tests.servers.keyed import Keyed, keyed
from tests.valkey import Valkey

AGENTS = ("sre", "dev", "unlucky", "nobody")
TOKENS = {agent: know(f"provided to {agent}", f"key-{agent}-provided-0123456789") for agent in AGENTS[:2]}
MODULE = """
import json, os

from tarsy_tasks.credential_providers import NoCredentialError


class Vault:
    max_age_s = 0.5

    async def read(self, agent, names):
        with open(os.environ["VAULT"]) as file:
            found = json.load(file)
        if agent == "unlucky":
            raise OSError("the vault is sealed")
        if agent not in found:
            raise NoCredentialError(f"{agent} has no path in the vault")
        return {name: found[agent] for name in names}
"""
ENTRY_POINT = "[tarsy_tasks.credential_providers]\nvault = house_vault:Vault\n"


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    agents = tuple(AgentUser(name, ("web",)) for name in AGENTS)
    with Valkey(agents=agents) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Keyed]:
    with keyed() as server:
        server.tokens = {*TOKENS.values()}
        yield server


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH, with the provider and what it reads."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "house_vault.py").write_text(MODULE)
    metadata = folder / "house_vault-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: house-vault\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    (folder / "vault.json").write_text(json.dumps({**TOKENS, ANONYMOUS: TOKENS["sre"]}))
    return folder


@pytest.fixture(scope="module")
def worker(valkey: Valkey, server: Keyed, vault: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    environment = {"PYTHONPATH": str(vault), "VAULT": str(vault / "vault.json"), "TARSY_CREDENTIAL_PROVIDER": "vault"}
    entry = {"url": f"{server.url}/mcp", "headers": {"Authorization": "Bearer ${agent:TOKEN}"}}
    folder = tmp_path_factory.mktemp("worker")
    with Worker(folder, {"web": entry}, url_of(valkey.port), environment=environment) as worker:
        worker.wait_until_ready()
        yield worker


@pytest.fixture(scope="module")
def agents(worker: Worker, valkey: Valkey) -> Iterator[dict[str, ToolExecutor]]:
    assert worker
    with agents_apps(valkey, AGENTS) as apps, ExitStack() as stack:
        yield {name: stack.enter_context(ToolExecutor(["web"], timeout_s=60, app=app)) for name, app in apps.items()}


def test_each_agent_has_what_the_provider_says(
    agents: dict[str, ToolExecutor], worker: Worker, server: Keyed, vault: Path
) -> None:
    for agent in TOKENS:
        assert agents[agent].execute("web.whoami").content == f"{agent} 1"
    refused = agents["nobody"].execute("web.whoami")
    assert (refused.outcome, refused.error_code) == (Outcome.REJECTED, ErrorCode.NO_CREDENTIAL)
    failed = agents["unlucky"].execute("web.whoami")
    assert (failed.outcome, failed.error_code) == (Outcome.UNAVAILABLE, ErrorCode.SERVER_MISCONFIGURED)
    assert "vault" not in failed.content
    worker.wait_for_log("nobody has no path in the vault")
    worker.wait_for_log("the credential provider vault failed: OSError: the vault is sealed")
    # A new credential gets a new session.
    renewed = know("provided to sre, later", "key-sre-provided-later-0123")
    server.tokens.add(renewed)
    opened = server.opened["sre"]
    (vault / "vault.json").write_text(json.dumps({**TOKENS, "sre": renewed}))
    wait_until(lambda: agents["sre"].execute("web.whoami") and server.opened["sre"] > opened, "it is used")
    assert server.crossed == []
    assert not find_leaks(worker.log)


def test_isolated_sessions_are_for_agents_with_a_credential(worker: Worker, valkey: Valkey) -> None:
    assert worker
    for agent, why in (("agent", "is not verified"), ("nobody", "the agent `nobody` needs TOKEN")):
        with (
            agents_apps(valkey, [agent]) as apps,
            ToolExecutor(["web"], session="run", timeout_s=60, app=apps[agent]) as tools,
        ):
            result = tools.execute("web.whoami")
            assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.NO_CREDENTIAL)
            assert why in result.content
            assert "vault" not in result.content


def test_a_missing_provider_stops_worker_and_doctor(valkey: Valkey, worker: Worker, tmp_path: Path) -> None:
    environment = {"TARSY_CREDENTIAL_PROVIDER": "absent"}
    text = "TARSY_CREDENTIAL_PROVIDER: 'absent' is not installed"
    other = Worker(tmp_path, {}, url_of(valkey.port), environment=environment)
    assert other.process.wait(60) != 0
    assert text in other.log
    done = run_command("doctor", environment={**worker.environment, **environment})
    assert done.returncode == 2
    assert text in done.stdout
