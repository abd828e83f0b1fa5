"""The credentials of agents: which files are used, and who gets which connection of a bounded pool."""

import asyncio
import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.config import ServerConfig, resolve_variables
from tarsy_tasks.config.agent_credentials import AgentCredentials
from tarsy_tasks.errors import CallError, ConfigError
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.sessions.agent_pool import AgentPool
from tarsy_tasks.worker.transport.agent_secrets import (
    SERVICE,
    NoCredentialError,
    ReadCredentials,
    SecretsDirectory,
    find_untrusted,
)
from tests.processes import until

pytestmark = pytest.mark.anyio
SECRET = "key-sre-0123456789"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "agents"
    for agent in ("sre", "dev", SERVICE):
        (directory / agent).mkdir(parents=True)
        (directory / agent / "TOKEN").write_text(f"key-{agent}-0123456789\n")
        (directory / agent / "TOKEN").chmod(0o600)
    return directory


def read(directory: Path | None, agent: str, *names: str) -> Mapping[str, str]:
    return asyncio.run(SecretsDirectory(directory).read(agent, names or ("TOKEN",)))


def test_a_credential_is_that_of_its_agent(directory: Path) -> None:
    assert read(directory, "sre") == {"TOKEN": SECRET}
    assert read(directory, SERVICE) == {"TOKEN": "key-worker-0123456789"}


@pytest.mark.parametrize("agent", ["..", ".", "../agents/sre", "sre/../dev", "", "default", ANONYMOUS, "CN=sre,O=x"])
def test_no_name_leads_elsewhere(directory: Path, agent: str) -> None:
    (directory.parent / "TOKEN").write_text("outside")
    with pytest.raises(NoCredentialError, match="cannot be the name"):
        read(directory, agent)


def test_what_is_missing_is_named(directory: Path) -> None:
    with pytest.raises(NoCredentialError, match="nobody/TOKEN does not exist"):
        read(directory, "nobody")
    with pytest.raises(NoCredentialError, match="sre/OTHER does not exist"):
        read(directory, "sre", "TOKEN", "OTHER")
    with pytest.raises(ConfigError, match="neither TARSY_AGENT_SECRETS nor TARSY_CREDENTIAL_PROVIDER is set"):
        read(None, "sre")
    with pytest.raises(ConfigError, match="No such file"):
        read(directory / "none", "sre")


def test_links_stay_in_the_folder_of_the_agent(directory: Path) -> None:
    folder = directory / "sre"
    (folder / "..data").mkdir()
    (folder / "TOKEN").rename(folder / "..data" / "TOKEN")
    (folder / "TOKEN").symlink_to(Path("..data") / "TOKEN")
    assert read(directory, "sre") == {"TOKEN": SECRET}
    (folder / "OTHER").symlink_to(directory / "dev" / "TOKEN")
    (directory / "alias").symlink_to(folder)
    (directory / "loop").symlink_to("loop")
    for agent, name in (("sre", "OTHER"), ("alias", "TOKEN"), ("loop", "TOKEN")):
        with pytest.raises(ConfigError) as caught:
            read(directory, agent, name)
        assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match="a link leads out of"):
        read(directory, "alias")


@pytest.mark.parametrize(("place", "mode"), [("sre/TOKEN", 0o602), ("sre", 0o702), (".", 0o703)])
def test_what_others_can_change_is_not_used(directory: Path, place: str, mode: int) -> None:
    (directory / place).chmod(mode)
    with pytest.raises(ConfigError, match="every user of this machine can change it; run `chmod o-w`"):
        read(directory, "sre")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_used(directory: Path) -> None:
    os.chown(directory / "sre" / "TOKEN", 65534, -1)
    with pytest.raises(ConfigError, match="the user 65534 owns it"):
        read(directory, "sre")


def test_what_others_can_read_is_not_used(directory: Path) -> None:
    # Whether others get there, all folders above it decide; those of tests are closed.
    assert find_untrusted(directory / "sre" / "TOKEN") == ""
    assert "every user of this machine can read it; run `chmod o-r" in find_untrusted(Path("/etc/passwd"))


def test_a_reference_needs_an_agent() -> None:
    server = ServerConfig(name="s", url="http://h/", headers={"A": "x ${agent:TOKEN}"})
    assert server.agent_variables == {"TOKEN"}
    found = resolve_variables(server, {}, {"TOKEN": SECRET})
    assert found.headers["A"].get_secret_value() == f"x {SECRET}"
    assert SECRET in found.secrets
    assert found.identity != resolve_variables(server, {}, {"TOKEN": "key-dev-0123456789"}).identity
    for of_agent in (None, {}):
        with pytest.raises(ConfigError, match=r"servers.s.headers.A: the credential TOKEN is one of an agent"):
            resolve_variables(server, {"TOKEN": SECRET}, of_agent)


class Source:
    """Credentials that a test changes; each read takes a turn of the loop."""

    def __init__(self, max_age_s: float = 0) -> None:
        self.max_age_s = max_age_s
        self.tokens: dict[str, str] = {}
        self.reads: Counter[str] = Counter()

    async def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        self.reads[agent] += 1
        await asyncio.sleep(0)
        if agent not in self.tokens:
            raise NoCredentialError(f"{agent} has none")
        if not self.tokens[agent]:
            raise ConfigError("it is empty")
        return dict.fromkeys(names, self.tokens[agent])


class Connection:
    def __init__(self, read: ReadCredentials) -> None:
        self.read = read
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Pool(AgentPool[Connection]):
    """One that knows all connections that it ever had."""

    def __init__(self, source: Source, wait_s: float = 30, **limits: Any) -> None:
        self.made: list[Connection] = []
        headers, timeouts = {"A": "${agent:TOKEN}"}, {"connect_s": wait_s}
        server = ServerConfig(name="s", url="http://h/", headers=headers, agent_credentials=AgentCredentials(**limits))
        server = server.model_copy(update={"timeouts": server.timeouts.model_copy(update=timeouts)})
        super().__init__(server, source, self.connect, lambda: None)

    def connect(self, read: ReadCredentials) -> Connection:
        self.made.append(Connection(read))
        return self.made[-1]


async def test_each_agent_keeps_its_connection() -> None:
    pool = Pool(source := Source())
    source.tokens = {"sre": "a", "dev": "a"}
    async with pool.lend("sre") as first, pool.lend("sre") as again, pool.lend("dev") as other:
        assert first is again
        assert first is not other
        assert await first.read() == {"TOKEN": "a"}
    await pool.close()
    assert [each.closed for each in pool.made] == [1, 1]


async def test_a_new_credential_gets_a_connection_and_calls_go_on() -> None:
    pool = Pool(source := Source())
    source.tokens = {"sre": "a"}
    async with pool.lend("sre") as first:
        source.tokens = {"sre": "b"}
        async with pool.lend("sre") as second:
            assert second is not first
        assert not first.closed
    assert len(pool) == 1
    source.tokens = {}
    with pytest.raises(CallError) as caught:
        async with pool.lend("sre"):
            pass
    assert caught.value.code is ErrorCode.NO_CREDENTIAL
    await pool.close()
    assert [each.closed for each in pool.made] == [1, 1]


async def test_nobody_gets_a_connection_without_a_credential() -> None:
    pool = Pool(source := Source())
    source.tokens = {"sre": ""}
    codes = {"sre": ErrorCode.SERVER_MISCONFIGURED, "dev": ErrorCode.NO_CREDENTIAL, ANONYMOUS: ErrorCode.NO_CREDENTIAL}
    for agent, code in codes.items():
        with pytest.raises(CallError, match="The tool did not run") as caught:
            async with pool.lend(agent):
                pass
        assert caught.value.code is code
    assert not pool.made


async def test_a_connection_reads_only_for_who_is_verified() -> None:
    pool = Pool(source := Source())
    source.tokens = {"sre": "a", ANONYMOUS: "a"}
    with pytest.raises(CallError, match="is not verified") as caught:
        pool.reader(ANONYMOUS)
    assert caught.value.code is ErrorCode.NO_CREDENTIAL
    assert await pool.reader("sre")() == {"TOKEN": "a"}
    assert source.reads == {"sre": 1}


async def test_what_a_connection_cannot_read_only_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(source := Source())
    source.tokens = {"sre": ""}
    with pytest.raises(NoCredentialError, match=r"^the agent `dev` needs TOKEN$"):
        await pool.reader("dev")()
    with pytest.raises(ConfigError, match=r"^the credential of the agent `sre` \(TOKEN\) cannot be used"):
        await pool.reader("sre")()
    assert "dev has none" in caplog.text
    assert "it is empty" in caplog.text


async def test_a_place_is_taken_from_who_is_idle_for_longest() -> None:
    pool = Pool(source := Source(), wait_s=0.05, max_sessions=2)
    source.tokens = dict.fromkeys(("sre", "dev", "ops"), "a")
    async with pool.lend("sre"):
        async with pool.lend("dev"):
            pass
        async with pool.lend("ops"):
            await until(lambda: any(each.closed for each in pool.made))
            assert [each.closed for each in pool.made] == [0, 1, 0]
            with pytest.raises(CallError, match="All 2 sessions that agents can have"):
                async with pool.lend("dev"):
                    pass
    await pool.close()


async def test_calls_take_the_places_of_watches() -> None:
    """And no watch takes that of a call, or of another watch."""
    pool = Pool(source := Source(), wait_s=0.05, max_sessions=2)
    source.tokens = dict.fromkeys(("sre", "dev", "ops"), "a")
    async with pool.lend_to_watch("sre") as watched, pool.lend("dev"):
        with pytest.raises(CallError, match="watches may take 1 of the 2 sessions") as refused:
            async with pool.lend_to_watch("dev"):
                pass
        assert refused.value.code is ErrorCode.TOO_MANY_SESSIONS
        assert await pool.keeps("sre", watched)
        async with pool.lend("ops"):
            assert not await pool.keeps("sre", watched)
            await until(lambda: watched.closed)
    async with pool.lend("dev"), pool.lend("ops"):
        with pytest.raises(CallError, match="The resource is not watched"):
            async with pool.lend_to_watch("sre"):
                pass
    async with pool.lend_to_watch("sre") as again:
        assert again is not watched
        assert await pool.keeps("sre", again)
    await pool.close()
    assert {each.closed for each in pool.made} == {1}


async def test_a_watched_session_is_not_idle() -> None:
    pool = Pool(source := Source(), idle_s=1)
    source.tokens = dict.fromkeys(("sre", "dev"), "a")
    async with pool.lend_to_watch("sre") as watched:
        async with pool.lend("dev") as idle:
            pass
        await until(lambda: idle.closed, 60)
        assert not watched.closed
    await pool.close()


async def test_what_is_watched_with_is_read_again() -> None:
    pool = Pool(source := Source(max_age_s=1))
    source.tokens = {"sre": "a"}

    def age() -> None:
        for each in pool._lent.values():
            each.read_at -= 60

    async with pool.lend_to_watch("sre") as first:
        assert await pool.keeps("sre", first)
        assert source.reads == {"sre": 1}
        for token, is_kept in (("", True), ("b", False)):
            age()
            source.tokens["sre"] = token
            assert await pool.keeps("sre", first) is is_kept
    async with pool.lend_to_watch("sre") as second:
        age()
        source.tokens.clear()
        with pytest.raises(CallError, match="has no credential"):
            await pool.keeps("sre", second)
    await pool.close()


async def test_many_agents_never_share_and_never_exceed_the_bound() -> None:
    pool = Pool(source := Source(), max_sessions=3)
    agents = [f"a{n}" for n in range(12)]
    source.tokens = {agent: agent for agent in agents}
    crossed: list[str] = []

    async def call(agent: str) -> None:
        async with pool.lend(agent) as connection:
            assert len(pool) <= 3
            await asyncio.sleep(0)
            crossed.extend(token for token in (await connection.read()).values() if token != agent)

    await asyncio.gather(*(call(agent) for _ in range(20) for agent in agents))
    await pool.close()
    assert not crossed
    assert {each.closed for each in pool.made} == {1}


async def test_calls_of_one_agent_read_its_credential_once() -> None:
    pool = Pool(source := Source(max_age_s=60))
    source.tokens = {"sre": "a"}
    async with AsyncExitStack() as stack:
        lent = await asyncio.gather(*(stack.enter_async_context(pool.lend("sre")) for _ in range(5)))
        assert len({*lent}) == 1
    assert source.reads == {"sre": 1}
    pool.drop_all()
    async with pool.lend("sre") as another:
        assert another is not lent[0]
    await pool.close()
