"""The run file of `tarsy-tasks up`: who finds it, and what is not believed."""

import os
from pathlib import Path

import pytest

from tarsy_tasks.cli.first_calls import find_harmless
from tarsy_tasks.cli.known_names import known_names, remember_names
from tarsy_tasks.cli.run_files import (
    RunningStack,
    adopt_stack,
    explain_missing_stack,
    find_stack,
    open_stack_dir,
    stack_dir,
    write_stack,
)
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.models import ToolDefinition

URL = "redis://:secret@127.0.0.1:7/0"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a state directory of its own."""
    for name in ("TARSY_REDIS_URL", "TARSY_REDIS_URL_FILE", "TARSY_MCP_CONFIG"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def running(directory: Path) -> RunningStack:
    return RunningStack(str(directory), str(directory / "mcp.json"), URL, 1, is_private=True)


def test_a_stack_is_found_in_its_directory_while_it_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_stack_dir(here) as files:
        assert find_stack(here) is None, "it has not written its file yet"
        write_stack(files, running(here))
        assert find_stack(here) == running(here)
        assert {path.stat().st_mode & 0o777 for path in (files / "stack.json", files / "redis-url")} == {0o600}
        assert files.stat().st_mode & 0o777 == files.parent.stat().st_mode & 0o777 == 0o700
        assert find_stack(here.parent) is None
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(here.parent)
            assert f"but in {here}" in explain_missing_stack()
        with pytest.raises(ConfigError, match=r"already runs in .*, process 1;"), open_stack_dir(here):
            pass
    assert find_stack(here) is None
    assert list(files.iterdir()) == []


def test_commands_use_it_unless_a_redis_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_stack_dir(here) as files:
        write_stack(files, running(here))
        monkeypatch.setenv("TARSY_REDIS_URL", "redis://elsewhere")
        adopt_stack()
        assert (os.environ["TARSY_REDIS_URL"], os.environ["TARSY_MCP_CONFIG"]) == ("redis://elsewhere", "")
        monkeypatch.setenv("TARSY_REDIS_URL", "")
        adopt_stack()
        assert (os.environ["TARSY_REDIS_URL"], os.environ["TARSY_MCP_CONFIG"]) == (URL, str(here / "mcp.json"))
        assert explain_missing_stack() == ""


def test_a_stale_run_file_is_removed(here: Path) -> None:
    with open_stack_dir(here) as files:
        pass
    write_stack(files, running(here))  # as a stack leaves it that was killed
    (files / "worker.log").write_text("its last words")
    assert find_stack(here) is None
    assert [path.name for path in files.iterdir()] == ["worker.log"]


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"pid": 1}', "\x00" * 9])
def test_a_damaged_run_file_is_not_used(here: Path, content: str) -> None:
    with open_stack_dir(here) as files:
        (files / "stack.json").write_text(content)
        assert find_stack(here) is None


def test_what_others_may_have_put_there_is_not_used(here: Path, tmp_path: Path) -> None:
    with open_stack_dir(here) as files:
        write_stack(files, running(here))
        (files / "stack.json").rename(tmp_path / "planted")
        (files / "stack.json").symlink_to(tmp_path / "planted")
        assert find_stack(here) is None
        (files / "stack.json").unlink()
        (files / "stack.json").hardlink_to(tmp_path / "planted")
        assert find_stack(here) is None
        (files / "stack.json").unlink()
        write_stack(files, running(here))
        files.chmod(0o770)
        assert find_stack(here) is None
    files.rmdir()
    (tmp_path / "elsewhere").mkdir()
    files.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"), open_stack_dir(here):
        pass


def test_without_a_state_directory_the_remedy_is_named(here: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match="Set XDG_STATE_HOME"), open_stack_dir(here):
        pass
    assert find_stack(here) is None
    remember_names(["desk"], {})
    assert known_names() == {}


def test_names_for_the_shell_are_those_of_the_configured_servers(here: Path) -> None:
    remember_names(["desk", "gone"], {"desk": ["b", "a"], "gone": ["c"]})
    remember_names(["desk", "new"], {})
    assert known_names() == {"desk": ["a", "b"], "new": []}
    for content in ("", "[1]", '{"desk": 1}', '"x"'):
        (stack_dir(here) / "names.json").write_text(content)
        assert known_names() == {}


def test_only_a_tool_that_says_that_it_reads_is_harmless() -> None:
    def tool(name: str, required: list[str], **hints: bool) -> ToolDefinition:
        schema = {"type": "object", "required": required}
        return ToolDefinition(name=f"s.{name}", server="s", tool=name, input_schema=schema, annotations=hints)

    writes, silent, needs = (
        tool("writes", [], readOnlyHint=False),
        tool("silent", []),
        tool("r", ["x"], readOnlyHint=True),
    )
    web, local = tool("web", [], readOnlyHint=True), tool("local", [], readOnlyHint=True, openWorldHint=False)
    assert find_harmless([writes, silent, needs]) is None
    assert find_harmless([writes, web]) is web
    assert find_harmless([web, local]) is local
