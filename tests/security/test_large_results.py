"""Large results of bound agents: Redis itself keeps those of one from another."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from tarsy_tasks import ResultNotFound, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp
from tests.plants import know
from tests.processes import Worker, environment_of
from tests.redis_users import url_of
from tests.security.fleet import agents_apps
from tests.servers import lengthy
from tests.valkey import Valkey
from tests.warm_start import warm_command

AGENTS = ("sre", "dev")
TIMEOUT_S = 30
know("of long answers", lengthy.SECRET)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=tuple(AgentUser(name, ("desk",)) for name in AGENTS)) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    directory: Path = tmp_path_factory.mktemp("worker")
    with Worker(directory, {"desk": warm_command(lengthy.__file__)}, url_of(valkey.port)) as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker


@pytest.fixture(scope="module")
def apps(worker: Worker, valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    with agents_apps(valkey, AGENTS) as found:
        yield found


def test_an_agent_reads_its_own_results_only(apps: dict[str, TarsyApp], valkey: Valkey) -> None:
    own = ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=apps["sre"], agent_id="a claim")
    result = own.execute("desk.report", {"lines": 3000})
    assert result.large is not None
    handle = result.large.handle
    part = own.read_result(handle, contains="needle")
    assert part.matches == 1
    assert lengthy.SECRET not in part.text
    for name in ("dev", "agent"):
        other = ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=apps[name], agent_id="sre")
        with pytest.raises(ResultNotFound):
            other.read_result(handle)
        with closing(redis.Redis.from_url(url_of(valkey.port, name))) as client, pytest.raises(NoPermissionError):
            client.getrange(keys.large_result_key("sre", handle), 0, 10)


def test_agents_cannot_write_large_results(apps: dict[str, TarsyApp], valkey: Valkey) -> None:
    with closing(redis.Redis.from_url(url_of(valkey.port, "sre"))) as client:
        for key in (keys.large_result_key("sre", "x"), keys.large_index_key("sre")):
            with pytest.raises(NoPermissionError):
                client.set(key, "x")


def test_agents_of_one_user_are_kept_apart_by_their_ids(apps: dict[str, TarsyApp]) -> None:
    first, second = (
        ToolExecutor(["desk"], timeout_s=TIMEOUT_S, app=apps["agent"], agent_id=name) for name in ("one", "two")
    )
    result = first.execute("desk.report", {"lines": 3000})
    assert result.large is not None
    assert first.read_result(result.large.handle).text.startswith("0000000")
    with pytest.raises(ResultNotFound):
        second.read_result(result.large.handle)
