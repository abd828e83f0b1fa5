"""The configuration in Redis: its versions, two operators at once, and the copy that processes read."""

import json
import re
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tarsy_tasks import ConfigError
from tarsy_tasks.config import find_config_path, load_config
from tarsy_tasks.config.following import FollowedConfig
from tarsy_tasks.config.record import CONFIGURATION_KEY, EMPTY, HISTORY_KEY, ConfigurationRecord, ConfigurationVersion
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.operators import Operator
from tests.processes import free_port
from tests.redis_proxy import HangUp, RedisProxy, through
from tests.redis_users import as_user

pytestmark = [pytest.mark.keeps_keys, pytest.mark.usefixtures("client")]

DESK = {"command": "desk"}


@pytest.fixture(autouse=True)
def run_dir(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the copy of an operator."""
    monkeypatch.setenv("TARSY_MCP_CONFIG", "redis")
    monkeypatch.setenv("TARSY_REDIS_URL", as_user(redis_url, "operator"))
    monkeypatch.setenv("TARSY_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("TARSY_POLICY", raising=False)
    return tmp_path / "run"


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """Ann, where Redis has a configuration without servers."""
    path = tmp_path / "empty.json"
    path.write_bytes(EMPTY)
    operator = Operator(who="ann")
    operator.publish(path)
    return operator


def servers_of(version: Any) -> list[str]:
    return [*json.loads(version.text)["mcpServers"]]


def test_versions_say_who_when_and_what(client: Any, operator: Operator) -> None:
    operator.add_server("desk", DESK)
    operator.add_server("web", {"url": "https://web.example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}})
    operator.disable_server("desk")
    last = Operator(who="ben").remove_server("web")
    found = Operator().history()
    assert [(each.number, each.who, each.change) for each in found] == [
        (5, "ben", "removed web"),
        (4, "ann", "changed desk"),
        (3, "ann", "added web"),
        (2, "ann", "added desk"),
        (1, "ann", "no server changed"),
    ]
    assert found[0].digest == last == operator.digest()
    assert abs(found[0].at - client.time()[0]) < 60
    assert [servers_of(each) for each in found] == [["desk"], ["desk", "web"], ["desk", "web"], ["desk"], []]
    assert not load_config().enabled_servers


def test_of_many_operators_at_once_one_changes_it(operator: Operator) -> None:
    seen = operator.digest()

    def add(number: int) -> str | None:
        try:
            Operator().add_server(f"s{number}", DESK, digest=seen)
        except ConfigError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(8) as operators:
        found = [*operators.map(add, range(8))]
    refused = [text for text in found if text is not None]
    assert len(refused) == 7
    assert all("somebody has changed it" in text and "nothing was written" in text for text in refused)
    assert len(operator.history()) == 2


def test_of_many_operators_without_a_digest_no_change_is_lost(operator: Operator) -> None:
    refused: list[str] = []

    def add(number: int) -> str:
        """As somebody who repeats a change that was refused."""
        while True:
            try:
                return Operator(who=f"operator {number}").add_server(f"s{number}", DESK)
            except ConfigError as error:
                refused.append(str(error))

    with ThreadPoolExecutor(4) as operators:
        list(operators.map(add, range(4)))
    assert sorted(servers_of(operator.history()[0])) == ["s0", "s1", "s2", "s3"]
    assert len(operator.history()) == 5
    assert all(re.search(r"version \d now, by operator \d \(added s\d\)", text) for text in refused), refused


def test_a_change_between_reading_and_writing_is_refused(redis_url: str, run_dir: Path, operator: Operator) -> None:
    record = ConfigurationRecord(redis_url, run_dir, load_config)
    operator.add_server("desk", DESK)
    before = record.read()
    Operator(who="ben").disable_server("desk")
    with pytest.raises(ConfigError, match=r"version 3 now, by ben \(changed desk\), so nothing was written"):
        record.write(before, b'{"mcpServers": {}}', who="ann", change="removed desk")


class LosingProxy(RedisProxy):
    """Hangs up when Redis has written a version, before it says so."""

    is_away = False
    """Nobody gets through any more."""
    was_lost = False
    after: Callable[[], object] = staticmethod(lambda: None)
    """Called between the two."""

    def request(self, data: bytes, client: socket.socket, upstream: socket.socket) -> bytes:
        if self.was_lost and self.is_away:
            raise HangUp
        return super().request(data, client, upstream)

    def answer(self, data: bytes) -> bytes:
        if not self.was_lost and b"*3\r\n" in data:  # what EXEC returns
            self.was_lost = True
            self.after()
            raise HangUp
        return data


@pytest.fixture
def losing(redis_url: str) -> Iterator[LosingProxy]:
    with LosingProxy(urlsplit(redis_url).port or 0).running() as proxy:
        yield proxy


def write_through(proxy: RedisProxy, redis_url: str, directory: Path) -> ConfigurationVersion:
    record = ConfigurationRecord(through(proxy, as_user(redis_url, "operator")), directory, load_config)
    return record.write(record.read(), b'{"mcpServers": {"a": {"command": "a"}}}', who="ann", change="added a")


def test_what_was_written_is_known_though_the_reply_was_lost(
    redis_url: str, run_dir: Path, operator: Operator, losing: LosingProxy
) -> None:
    version = write_through(losing, redis_url, run_dir)
    assert losing.was_lost
    assert version == operator.history()[0]
    assert version.number == 2


def test_a_lost_reply_is_no_refusal_when_others_go_on(
    redis_url: str, run_dir: Path, operator: Operator, losing: LosingProxy
) -> None:
    losing.after = lambda: Operator(who="ben").add_server("b", DESK)
    write_through(losing, redis_url, run_dir)
    assert [each.who for each in operator.history()] == ["ben", "ann", "ann"]
    assert servers_of(operator.history()[0]) == ["a", "b"]


def test_a_redis_lost_for_good_leaves_it_open(
    redis_url: str, run_dir: Path, operator: Operator, losing: LosingProxy
) -> None:
    losing.is_away = True
    with pytest.raises(BrokerUnavailable, match=r"Redis was lost while .* `tarsy-tasks servers history` says"):
        write_through(losing, redis_url, run_dir)
    assert len(operator.history()) == 2


def test_a_redis_lost_before_it_wrote_is_no_conflict(
    redis_url: str, run_dir: Path, operator: Operator, losing: LosingProxy
) -> None:
    def hang_up() -> None:
        raise HangUp

    losing.step_in(b"EXEC", hang_up)
    with pytest.raises(BrokerUnavailable, match=r"Redis was lost while .* `tarsy-tasks servers history` says"):
        write_through(losing, redis_url, run_dir)
    assert len(operator.history()) == 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a key": ({"command": "x", "timeouts": {"call_s": "soon"}}, "the configuration in Redis:.*call_s"),
    "a secret that is ignored": ({"command": "x", "note": {"token": "s3cr3t-0123456789"}}, "secrets|note"),
    "a secret": ({"command": "x", "env": {"API_TOKEN": "s3cr3t-0123456789"}}, "must not contain secrets"),
}


@pytest.mark.parametrize(("entry", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_entry_is_refused_whole(
    client: Any, run_dir: Path, operator: Operator, entry: dict[str, Any], said: str
) -> None:
    operator.add_server("desk", DESK)
    before = client.hgetall(CONFIGURATION_KEY)
    with pytest.raises(ConfigError, match=said) as caught:
        operator.add_server("bad", entry)
    assert "s3cr3t" not in str(caught.value)
    assert client.hgetall(CONFIGURATION_KEY) == before
    assert [*load_config().servers] == ["desk"]
    assert len([*run_dir.iterdir()]) == 1, "nothing is left behind"


def test_where_redis_is_empty_there_are_no_servers_yet(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    followed = FollowedConfig()
    assert not followed.look().servers
    assert "Redis has no configuration yet" in caplog.text
    with pytest.raises(ConfigError, match=r"there is none, so nothing was written; `tarsy-tasks servers publish FILE`"):
        Operator().add_server("desk", DESK)
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"desk": DESK}}))
    Operator().publish(path)
    assert [*load_config(find_config_path()).servers] == ["desk"]
    assert Operator().history()[0].number == 1


def test_what_redis_has_lost_stays_and_is_restored(
    client: Any, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    digest = operator.add_server("desk", DESK)
    client.flushall()
    copy = find_config_path()
    assert [*load_config(copy).servers] == ["desk"]
    assert "Redis has lost the configuration" in caplog.text
    with pytest.raises(ConfigError, match=r"was lost.*servers publish"):
        operator.add_server("other", DESK)
    assert operator.publish(copy) == digest
    assert operator.add_server("other", DESK) == operator.digest()


def test_a_file_is_published_if_nothing_has_changed_since(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"desk": DESK}, "policy": {"servers": {"gone": {"deny": ["x"]}}}}))
    operator = Operator()
    with pytest.raises(ConfigError, match="gone"):
        operator.publish(path)
    path.write_text(json.dumps({"mcpServers": {"desk": DESK}}))
    digest = operator.publish(path)
    operator.disable_server("desk")
    with pytest.raises(ConfigError, match="somebody has changed it since you read it"):
        operator.publish(path, digest=digest)
    assert operator.publish(path) == digest
    path.write_text("servers: {}")
    with pytest.raises(ConfigError, match=f"^{path}: only plain JSON"):
        operator.publish(path)


def test_while_redis_is_away_the_copy_is_used(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    monkeypatch.setenv("TARSY_REDIS_URL", away)
    with pytest.raises(ConfigError, match=r"Redis could not be reached.*no copy"):
        find_config_path()
    record = ConfigurationRecord(away, run_dir, load_config)
    record.path.write_text(json.dumps({"mcpServers": {"desk": DESK}}))
    assert [*FollowedConfig().look().servers] == ["desk"]
    with pytest.raises(BrokerUnavailable, match="Redis could not be reached"):
        Operator().remove_server("desk")


@pytest.mark.parametrize("user", ["agent", "worker", "beat", "flower"])
def test_only_operators_write(client: Any, redis_url: str, tmp_path: Path, operator: Operator, user: str) -> None:
    operator.add_server("desk", DESK)
    record = ConfigurationRecord(as_user(redis_url, user), tmp_path, load_config)
    record.refresh()
    assert [*load_config(record.path).servers] == ["desk"]
    with pytest.raises(ConfigError, match="Redis refused access"):
        record.write(record.read(), b"{}", who="nobody", change="")
    with pytest.raises(ConfigError, match="Redis refused access"):
        record.read_history()
    client.acl_log_reset()  # these were to be denied


def test_fifty_versions_are_kept(client: Any, redis_url: str, run_dir: Path) -> None:
    find_config_path()
    record, version = ConfigurationRecord(redis_url, run_dir, load_config), None
    for number in range(52):
        version = record.write(version, f'{{"mcpServers": {{}}, "n": {number}}}'.encode(), who="ann", change="")
    assert client.llen(HISTORY_KEY) == 50
    assert record.read_history()[-1].number == 3


def test_what_is_damaged_in_redis_changes_nothing(
    client: Any, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    operator.add_server("desk", DESK)
    client.hset(CONFIGURATION_KEY, mapping={"digest": "x", "version": "{"})
    assert [*load_config().servers] == ["desk"]
    assert "damaged" in caplog.text
    with pytest.raises(ConfigError, match=f"damaged. Delete the key {CONFIGURATION_KEY} as `admin`"):
        operator.add_server("other", DESK)
    client.delete(CONFIGURATION_KEY)
    operator.publish(find_config_path())
    assert [*load_config().servers] == ["desk"]


def test_what_a_newer_version_wrote_changes_nothing(
    client: Any, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    operator.add_server("desk", DESK)
    version = json.loads(client.hget(CONFIGURATION_KEY, "version"))
    client.hset(CONFIGURATION_KEY, mapping={"digest": "x", "version": json.dumps({**version, "v": 2, "more": 1})})
    assert [*load_config().servers] == ["desk"]
    assert "was written by a newer version of this package: update this one" in caplog.text
    with pytest.raises(ConfigError, match="newer version"):
        operator.remove_server("desk")


def test_a_process_that_starts_keeps_the_last_valid_one(
    redis_url: str, run_dir: Path, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    operator.add_server("desk", DESK)
    record = ConfigurationRecord(redis_url, run_dir, load_config)
    record.write(record.read(), b'{"mcpServers": {"desk": {"command": 3}}}', who="a program", change="")
    assert [*load_config().servers] == ["desk"]
    assert "the configuration in Redis:1:" in caplog.text
    assert "stays in use" in caplog.text
    operator.publish(find_config_path())
    assert len([*run_dir.iterdir()]) == 1


def test_what_a_full_disk_refused_is_taken_when_there_is_room(
    redis_url: str, run_dir: Path, operator: Operator, tmp_path: Path
) -> None:
    operator.add_server("desk", DESK)
    record = ConfigurationRecord(redis_url, tmp_path, load_config)
    record.refresh()
    operator.add_server("other", DESK)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (18, hard))
    try:
        record.refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the copy of the configuration cannot be written: File too large" in record.problem
    assert [*load_config(record.path).servers] == ["desk"]
    record.refresh()
    assert [*load_config(record.path).servers] == ["desk", "other"]
    assert not record.problem


def test_a_problem_ends_when_the_copy_is_up_to_date(redis_url: str, operator: Operator, tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        raise ConfigError(f"{path}: this program is too old for it")

    ours, newer = (ConfigurationRecord(redis_url, tmp_path, check) for check in (refuse, load_config))
    newer.refresh()
    operator.add_server("desk", DESK)
    ours.refresh()
    assert "too old" in ours.problem
    newer.refresh()
    ours.refresh()
    assert not ours.problem


def test_a_redis_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        monkeypatch.setenv("TARSY_REDIS_URL", away)
        run_dir.mkdir(mode=0o700)
        ConfigurationRecord(away, run_dir, load_config).path.write_text(json.dumps({"mcpServers": {"desk": DESK}}))
        followed = FollowedConfig()
        looks = [followed.look() for _ in range(50)]
        assert all([*each.servers] == ["desk"] for each in looks)
        running = [each for each in threading.enumerate() if each.name == "tarsy-configuration-look"]
        assert len(running) <= 1
    for each in running:
        each.join()


def test_a_file_has_no_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}')
    monkeypatch.setenv("TARSY_MCP_CONFIG", str(path))
    with pytest.raises(ConfigError, match="TARSY_MCP_CONFIG=redis"):
        Operator().history()
