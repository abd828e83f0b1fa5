"""Finding and reading the configuration file, also one that cannot be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tarsy_tasks.cli import main
from tarsy_tasks.config import find_config_path, load_config
from tarsy_tasks.errors import ConfigError


def test_the_variable_precedes_mcp_json_which_precedes_mcp_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TARSY_MCP_CONFIG", raising=False)
    (tmp_path / "mcp.yaml").write_text("mcpServers: {y: {command: x}}")
    assert find_config_path() == Path("mcp.yaml")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"j": {"command": "x"}}}')
    assert find_config_path() == Path("mcp.json")
    assert list(load_config().servers) == ["j"]
    (tmp_path / "other.yml").write_text("mcpServers: {o: {command: x}}")
    monkeypatch.setenv("TARSY_MCP_CONFIG", "other.yml")
    assert list(load_config().servers) == ["o"]
    monkeypatch.setenv("TARSY_MCP_CONFIG", "")
    assert find_config_path() == Path("mcp.json")


def test_without_a_file_the_error_says_what_to_create(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TARSY_MCP_CONFIG", raising=False)
    with pytest.raises(ConfigError) as caught:
        load_config()
    for part in ("TARSY_MCP_CONFIG is not set", str(tmp_path), "mcp.json or mcp.yaml", '{"mcpServers": {}}'):
        assert part in str(caught.value)


def test_a_variable_that_names_no_file_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TARSY_MCP_CONFIG", str(tmp_path / "gone.json"))
    with pytest.raises(ConfigError, match=r"gone\.json: the file does not exist.*TARSY_MCP_CONFIG"):
        load_config()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b" \n\t\n", 'is empty, expected at least {"mcpServers": {}}'),
        (b"", 'is empty, expected at least {"mcpServers": {}}'),
        (b'{\n"mcpServers": {"\xe9": {}}}', "2: is not UTF-8; save it as UTF-8"),
        ('{"mcpServers": {}}'.encode("utf-16"), "1: is not UTF-8; save it as UTF-8"),
    ],
)
@pytest.mark.parametrize("name", ["mcp.json", "mcp.yaml"])
def test_a_file_without_usable_text_is_an_error(config_problems, content, text, name):
    [line] = config_problems(content, name)
    assert line.removeprefix(name).lstrip(": ") == text


@pytest.mark.parametrize(("name", "limit"), [("mcp.json", 64 * 1024 * 1024), ("mcp.yaml", 1024 * 1024)])
def test_a_file_without_end_is_refused(tmp_path, name, limit):
    with (tmp_path / name).open("wb") as file:
        file.truncate(limit + 1)
    with pytest.raises(ConfigError, match=f"is larger than {limit} bytes, .*; copy its servers to a file of their own"):
        load_config(tmp_path / name)


@pytest.mark.timeout(60)  # with a tree of all of it, it takes minutes
def test_servers_beside_megabytes_of_history_are_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    history = [{"display": f'"{number}" // {"text, ]" * 200}', "pasted": {}} for number in range(4000)]
    server = {"command": "x", "args": ["--token", "k9XmQ27fLp04TzRw"]}
    kept = {"numStartups": 7, "projects": {"/p": {"history": history, "mcpServers": {"a": server}}}}
    (tmp_path / ".claude.json").write_text(json.dumps(kept, indent=2))
    assert (tmp_path / ".claude.json").stat().st_size > 5_000_000
    done = CliRunner().invoke(main, ["config", "import", "--from", "claude-code", "-o", "mcp.json", "--secrets", "env"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "mcp.json").read_text())["mcpServers"]["a"]["args"] == ["--token", "${A_TOKEN}"]


@pytest.mark.parametrize("name", ["mcp.json", "mcp.yaml"])
def test_a_byte_order_mark_is_no_part_of_the_text(load_text, name):
    assert list(load_text(b'\xef\xbb\xbf{"mcpServers": {"a": {"command": "x"}}}', name).servers) == ["a"]


@pytest.mark.parametrize(("name", "text"), [("mcp.json", "// one\n/* two */"), ("mcp.yaml", "# one\n# two\n")])
def test_a_file_of_comments_is_an_empty_file(config_problems, name, text):
    assert config_problems(text, name)[0].startswith(f"{name}: is empty")


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    for path, text in {
        tmp_path: "is a directory, expected a file",
        tmp_path / "gone.json": "the file does not exist",
        tmp_path / "a\0b": "cannot be read: ",
        tmp_path / ("x" * 300): "cannot be read: File name too long",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert str(caught.value).startswith(f"{path}: {text}")


def test_a_file_that_may_not_be_read_is_an_error(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(ConfigError, match="this process has no permission to read it"):
            load_config(path)
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"mcpServers": ' * 100_000,
        "[" * 400 + "]" * 400,
        "{a: " * 400 + "}" * 400,
        '{"mcpServers": {"a": ' + "9" * 5000 + "}}",
        '{"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": ' + "9" * 400 + "}}}}",
        '"\\"' * 300_000,
        '{"a": ' + '"\\"' * 300_000,
        "/*" * 500_000,
        "{" + "," * 1_000_000,
        "[" + ", " * 500_000,
        "mcp_servers" + ".a" * 500_000 + " = 1",
        "[[mcp_servers]]\n" * 2_000,
        "a" * 1_000_000,
    ],
    ids=range(14),
)
@pytest.mark.parametrize("name", ["mcp.json", "mcp.yaml", "mcp.toml"])
@pytest.mark.timeout(60)
def test_a_pathological_file_is_an_error_quickly(config_problems, text, name):
    assert config_problems(text, name)


def test_a_duplicate_key_is_found_in_nested_lists(config_problems):
    text = '{"mcpServers": {}, "_": ' + "[" * 450 + '{"k": 1,\n"k": 2}' + "]" * 450 + "}"
    [problem] = config_problems(text)
    assert problem.startswith("mcp.json:2:1: _")
    assert problem.endswith("k: duplicate key; it is first given in line 1")


def test_of_thousands_of_duplicate_keys_the_first_are_shown(config_problems):
    found = config_problems('{"mcpServers": {}, "_": 0' + ',\n"_": [{"l": 0}]' * 5000 + "}")
    assert [each.partition(": ")[0] for each in found] == [f"mcp.json:{line}:1" for line in range(2, 102)]


def test_a_pipe_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "mcp.json")
    with pytest.raises(ConfigError, match="is not a regular file"):
        load_config(tmp_path / "mcp.json")


def test_the_size_of_expanded_aliases_is_limited(config_problems, load_text):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 20)
    )
    assert config_problems(bomb, "mcp.yaml") == [
        "mcp.yaml:1:1: the document is too large with its aliases expanded; use fewer aliases"
    ]
    merges = "mcpServers:\n  a0: &a0 {command: x}\n" + "".join(
        f"  a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 20)
    )
    assert len(load_text(merges, "mcp.yaml").servers) == 20  # merging the same keys again adds none


def test_loading_json_imports_no_yaml_and_no_heavy_library(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('// c\n{"mcpServers": {"a": {"url": "${U}"}},}')
    code = (
        "import sys; from tarsy_tasks.config import load_config, resolve_variables;"
        "server = load_config(sys.argv[1]).servers['a']; resolve_variables(server, {'U': 'http://h'});"
        "heavy = ('yaml', 'jsonschema_rs', 'mcp', 'celery', 'pydantic_settings');"
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
