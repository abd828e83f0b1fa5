"""An operator's program changes the configuration file: whole, valid, and the one that the operator has seen."""

import fcntl
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tarsy_tasks import ConfigError
from tarsy_tasks.operators import Operator

DESK = {"command": "desk"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"desk": DESK}, "policy": {"servers": {"desk": {"deny": ["x"]}}}}))
    path.chmod(0o640)
    return path


def test_servers_are_added_disabled_enabled_and_removed(path: Path) -> None:
    operator = Operator(path)
    first = operator.digest()
    operator.add_server("new", {"url": "https://new.example.com/mcp", "headers": {"Authorization": "${TOKEN}"}})
    operator.disable_server("new")
    found = json.loads(path.read_text())
    assert found["mcpServers"]["new"]["enabled"] is False
    assert found["mcpServers"]["new"]["headers"] == {"Authorization": "${TOKEN}"}
    assert found["policy"], "all else stays"
    operator.enable_server("new")
    assert json.loads(path.read_text())["mcpServers"]["new"]["enabled"] is True
    operator.add_server("new", DESK, replace=True)
    last = operator.remove_server("new")
    assert json.loads(path.read_text())["mcpServers"] == {"desk": DESK}
    assert last == operator.digest() != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"], "nothing is left behind"


def test_of_two_operators_the_second_is_refused(path: Path) -> None:
    first, second = Operator(path), Operator(path)
    seen = first.digest()
    assert second.digest() == seen
    first.add_server("a", DESK, digest=seen)
    text = path.read_text()
    with pytest.raises(ConfigError, match="somebody has changed it since you read it"):
        second.add_server("b", DESK, digest=seen)
    with pytest.raises(ConfigError, match="there is a server `a` already"):
        second.add_server("a", DESK)
    assert path.read_text() == text
    second.add_server("b", DESK, digest=second.digest())


def test_of_many_operators_with_one_digest_only_one_wins(path: Path) -> None:
    seen = Operator(path).digest()

    def add(number: int) -> str:
        try:
            return f"digest {Operator(path).add_server(f's{number}', DESK, digest=seen)}"
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(add, range(8)))
    won = [number for number, answer in enumerate(answers) if answer == f"digest {Operator(path).digest()}"]
    assert len(won) == 1
    assert sum("nothing was written" in answer for answer in answers) == len(answers) - 1
    assert json.loads(path.read_text())["mcpServers"] == {"desk": DESK, f"s{won[0]}": DESK}


def test_operators_who_repeat_lose_no_change(path: Path) -> None:
    def add(number: int) -> set[str]:
        operator, refused = Operator(path), set[str]()
        for _ in range(10_000):
            try:
                operator.add_server(f"s{number}", DESK)
                break
            except ConfigError as error:
                refused.add(str(error))
        return refused

    with ThreadPoolExecutor(8) as pool:
        refused = set[str]().union(*pool.map(add, range(8)))
    assert all("repeat" in text for text in refused), refused
    assert json.loads(path.read_text())["mcpServers"] == {"desk": DESK, **{f"s{number}": DESK for number in range(8)}}
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"], "nothing is left behind"


def test_who_comes_while_another_one_writes_is_refused(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(ConfigError, match="changing it at this moment"):
            Operator(path).remove_server("desk")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("name", "entry", "why"),
    [
        ("bad", {"command": "x", "timeouts": {"call_s": "soon"}}, "call_s"),
        ("both", {"command": "x", "url": "https://a.example.com"}, "both `command`"),
        ("two.parts", {"comand": "x"}, "comand"),
        ("desk__x", {}, "desk__x"),
    ],
)
def test_an_entry_that_is_not_valid_is_not_written(path: Path, name: str, entry: dict[str, str], why: str) -> None:
    text = path.read_text()
    with pytest.raises(ConfigError, match=why) as raised:
        Operator(path).add_server(name, entry)
    assert "so nothing was written" in str(raised.value)
    assert f"{path}:" in str(raised.value)
    assert path.read_text() == text
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"]


def test_a_server_that_the_policy_names_is_not_removed(path: Path) -> None:
    with pytest.raises(ConfigError, match="no such server is configured"):
        Operator(path).remove_server("desk")
    with pytest.raises(ConfigError, match="server `dsek` is not in it; did you mean `desk`"):
        Operator(path).remove_server("dsek")


@pytest.mark.parametrize("text", ['{"mcpServers": {} /* mine */}', '{"servers": {"a": {"command": "x"}}}'])
def test_what_would_lose_something_is_not_rewritten(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match="only plain JSON"):
        Operator(path).add_server("new", DESK)
    assert path.read_text() == text


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(path)
    Operator(link).add_server("new", DESK)
    assert link.is_symlink()
    assert "new" in path.read_text()
