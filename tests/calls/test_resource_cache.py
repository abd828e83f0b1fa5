"""Answers about resources that are kept: for how long, for whom, and until the server says that something changed."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tarsy_tasks.telemetry.metrics import read_metrics
from tests.conftest import StartWorker
from tests.gates import make_gate, open_gate
from tests.processes import Worker, wait_until
from tests.servers import noticeboard
from tests.servers.noticeboard import NOTICE
from tests.warm_start import warm_command

KEPT_S = 600


class Boards:
    """The ledgers of some servers, by the name of the server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def serve(self, name: str, *options: str, ledger: str = "", **settings: Any) -> dict[str, Any]:
        path = str(self._directory / (ledger or name))
        return {**warm_command(noticeboard.__file__, path, *options), **settings}

    def hold(self, name: str) -> Path:
        """From now on the server holds reads of `HELD`: the gate at which they wait."""
        return make_gate(self._directory / f"{name}.gate")

    def lines(self, name: str) -> list[str]:
        path = self._directory / name
        return path.read_text().splitlines() if path.exists() else []

    def count(self, name: str, uri: str = NOTICE) -> int:
        return self.lines(name).count(f"read {uri}")


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Boards:
    return Boards(tmp_path_factory.mktemp("ledgers"))


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, boards: Boards) -> Worker:
    keeps = {"cache": {"resources": KEPT_S}}
    servers = {
        "new": boards.serve("new", "--ttl-ms", "60000", **keeps),
        "old": boards.serve("old", "--handshake", **keeps),
        "plain": boards.serve("plain", "--ttl-ms", "60000"),
        "unwilling": boards.serve("unwilling", **keeps),
        "other": boards.serve("other", "--handshake", env={"API_TOKEN": "one-two-three-four"}, **keeps),
        "hasty": boards.serve("hasty", "--ttl-ms", "1", **keeps),
    }
    return start_worker(servers)


@pytest.fixture
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=20, agent_id="reader")


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """Nothing is in the cache at first."""
    with redis.Redis.from_url(redis_url) as found:
        for key in found.keys("tarsy:cache:*"):
            found.delete(key)
        yield found


eras = pytest.mark.parametrize("server", ["new", "old"])


@eras
def test_a_second_read_does_not_reach_the_server(tools: ToolExecutor, client: Any, boards: Boards, server: str) -> None:
    before = boards.count(server)
    first = tools.read_resource(NOTICE, server=server)
    second = ToolExecutor([server], timeout_s=20).read_resource(NOTICE)
    assert boards.count(server) == before + 1
    assert (first.cached, first.attempts, second.cached, second.attempts) == (False, 1, True, 0)
    assert (second.outcome, second.content, second.contents) == (Outcome.OK, first.content, first.contents)
    assert second.task_id != first.task_id


@eras
def test_lists_are_kept_too(tools: ToolExecutor, client: Any, server: str) -> None:
    assert tools.list_resources(server) == tools.list_resources(server)
    [key] = client.keys("tarsy:cache:*")
    assert len(set(client.hkeys(key)) - {b"generation", b"bytes"}) == 1
    assert 0 < client.ttl(key) <= KEPT_S


def test_it_is_off_unless_asked_for(tools: ToolExecutor, client: Any, boards: Boards) -> None:
    for _ in range(2):
        assert not tools.read_resource(NOTICE, server="plain").cached
    assert boards.count("plain") == 2
    assert not client.keys("tarsy:cache:*")


def test_what_the_server_calls_stale_is_not_kept(tools: ToolExecutor, client: Any, boards: Boards) -> None:
    """The SDK's servers say 0 unless they are told otherwise."""
    for _ in range(2):
        assert not tools.read_resource(NOTICE, server="unwilling").cached
    assert boards.count("unwilling") == 2


def test_an_answer_is_kept_no_longer_than_the_server_says(tools: ToolExecutor, client: Any, boards: Boards) -> None:
    tools.read_resource(NOTICE, server="hasty")
    wait_until(lambda: tools.read_resource(NOTICE, server="hasty").cached is False, "the server is asked again")


@eras
def test_a_changed_list_drops_what_is_kept(tools: ToolExecutor, client: Any, server: str) -> None:
    assert not tools.read_resource(NOTICE, server=server).cached
    assert tools.read_resource(NOTICE, server=server).cached
    assert tools.execute(f"{server}.add", {}).content == "added"

    def is_dropped() -> bool:
        [key] = client.keys("tarsy:cache:*")
        return set(client.hkeys(key)) == {b"generation"}

    wait_until(is_dropped, "nothing is kept")
    assert not tools.read_resource(NOTICE, server=server).cached


def test_errors_are_not_kept(tools: ToolExecutor, client: Any) -> None:
    for _ in range(2):
        result = tools.read_resource(noticeboard.MISSING, server="old")
        assert (result.is_error, result.cached, result.attempts) == (True, False, 1)


def test_what_is_kept_is_masked(tools: ToolExecutor, client: Any) -> None:
    for _ in range(2):
        assert tools.read_resource("notice://board/secret", server="old").content == "password: __MASKED__"
    [key] = client.keys("tarsy:cache:*")
    kept = client.hgetall(key)
    assert not any(b"hunter2" in name + value for name, value in kept.items())
    assert not any(b"secret" in name for name in kept), "a URI may have secrets of its own"


def test_servers_and_credentials_are_kept_apart(tools: ToolExecutor, client: Any) -> None:
    for server in ("old", "other"):
        assert not tools.read_resource(NOTICE, server=server).cached
    names = [key.decode().split(":") for key in client.keys("tarsy:cache:*")]
    assert {name[2] for name in names} == {"old", "other"}
    assert len({name[3] for name in names}) == 2
    assert all(len(name[3]) == 64 for name in names)


def test_a_large_text_is_kept_whole(tools: ToolExecutor, client: Any) -> None:
    first, second = (tools.read_resource(noticeboard.LARGE, server="old") for _ in range(2))
    assert second.cached
    assert second.content == first.content
    assert second.contents == first.contents


def test_the_audit_and_the_metrics_say_so(tools: ToolExecutor, client: Any) -> None:
    asked, cached = (tools.read_resource(NOTICE, server="old") for _ in range(2))
    entries = [read_audit(client, AuditFilter(task_id=each.task_id)).entries[0] for each in (asked, cached)]
    assert [(each.cached, each.attempts) for each in entries] == [(False, 1), (True, 0)]

    def is_counted() -> bool:
        return any(each.cached for each in read_metrics(client, ["old"])["old"] if each.tool == "resources/read")

    wait_until(is_counted, "the metrics have it")


def test_all_who_read_at_once_get_one_answer(tools: ToolExecutor, client: Any, boards: Boards) -> None:
    gate = boards.hold("new")
    with ThreadPoolExecutor(4) as threads:
        reads = [threads.submit(tools.read_resource, noticeboard.HELD, server="new") for _ in range(4)]
        wait_until(lambda: boards.count("new", noticeboard.HELD), "the server has the read")
        open_gate(gate)
        found = [each.result(20) for each in reads]
    assert {each.content for each in found} == {noticeboard.HELD}
    assert sorted(each.cached for each in found) == [False, True, True, True]
    assert boards.count("new", noticeboard.HELD) == 1


def test_a_full_redis_costs_a_read_nothing(tools: ToolExecutor, client: Any, boards: Boards) -> None:
    """It is full when the server answers; calls that are sent while it is are refused."""
    before, gate = boards.count("old", noticeboard.HELD), boards.hold("old")
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(tools.read_resource, noticeboard.HELD, server="old")
        wait_until(lambda: boards.count("old", noticeboard.HELD) > before, "the server has the read")
        client.config_set("maxmemory", 1)
        try:
            open_gate(gate)
            result = read.result(20)
        finally:
            client.config_set("maxmemory", 0)
    assert (result.outcome, result.content) == (Outcome.OK, noticeboard.HELD)
    assert not tools.read_resource(noticeboard.HELD, server="old").cached, "nothing was kept"
    assert tools.read_resource(noticeboard.HELD, server="old").cached


def test_a_key_of_another_type_costs_a_read_nothing(tools: ToolExecutor, client: Any, boards: Boards) -> None:
    tools.read_resource(NOTICE, server="old")
    [key] = client.keys("tarsy:cache:*")
    client.set(key, json.dumps({}), ex=60)
    before = boards.count("old")
    assert tools.read_resource(NOTICE, server="old").outcome is Outcome.OK
    assert boards.count("old") == before + 1
    assert tools.execute("old.add", {}).outcome is Outcome.OK
    wait_until(lambda: client.type(key) == b"hash", "it is repaired with the next change")
    assert not tools.read_resource(NOTICE, server="old").cached
    assert tools.read_resource(NOTICE, server="old").cached
