"""`tarsy-tasks config import`: another client's file in our own form, its secrets elsewhere."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tarsy_tasks.cli import main
from tarsy_tasks.config import check_secrets, load_config, resolve_variables
from tarsy_tasks.config.client_files import CLIENTS, find_client_files
from tests.unit.test_config_clients import FILES

SECRETS = {
    "mcpServers": {
        "github": {
            "command": "npx",
            "env": {"GITHUB_TOKEN": "ghp_Zx81kQw7Lm2Rt9Yb4Vc6Ns0Dh3Jf5Gp8Ea1U"},
            "trust": True,
        },
        "other": {"command": "npx", "env": {"GITHUB_TOKEN": "ghp_Aa81kQw7Lm2Rt9Yb4Vc6Ns0Dh3Jf5Gp8Ea1U"}},
        "same": {
            "url": "https://h/mcp",
            "headers": {"Authorization": "Bearer ghp_Zx81kQw7Lm2Rt9Yb4Vc6Ns0Dh3Jf5Gp8Ea1U"},
        },
        "db": {"command": "db", "args": ["postgresql://reader:geheim42'x@h/shop", "--api-key", "k9XmQ27fLp04TzRw"]},
        "default": {"command": "x", "env": {"A_TOKEN": "${A_TOKEN:-k1XmQ27fLp04TzRw}", "B": "${INPUT_B}"}},
        "crm": {"url": "https://h/mcp", "bearer_token": "c5XmQ27fLp04TzRw", "timeout": 30000},
        "cache": {"command": "x", "env": {"REDIS_PASSWORD": "r7XmQ27fLp04TzRw"}},
    }
}
VALUES = [
    "ghp_Zx81kQw7Lm2Rt9Yb4Vc6Ns0Dh3Jf5Gp8Ea1U",
    "ghp_Aa81kQw7Lm2Rt9Yb4Vc6Ns0Dh3Jf5Gp8Ea1U",
    "geheim42'x",
    "k9XmQ27fLp04TzRw",
    "k1XmQ27fLp04TzRw",
    "c5XmQ27fLp04TzRw",
    "r7XmQ27fLp04TzRw",
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run `config import` in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        result = CliRunner().invoke(main, ["config", "import", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "client.json"
    path.write_text(json.dumps(SECRETS))
    return path


def resolved(path: Path, environ: dict[str, str]) -> dict[str, object]:
    """What a worker would connect with."""
    loaded = load_config(path)
    return {name: resolve_variables(server, environ) for name, server in loaded.servers.items()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_imported_means_the_same(run, tmp_path, path):
    (tmp_path / "mcp.json").write_text(run(path).stdout)
    assert load_config("mcp.json") == load_config(path)


def test_secrets_move_to_a_file_of_variables(run, source):
    run(source, "-o", "mcp.json", "--secrets", "env")
    text = Path("mcp.json").read_text()
    assert not [value for value in VALUES if value in text]
    assert not [each for each in check_secrets("mcp.json") if "file itself" in each.text]
    assert mode(Path("mcp.env")) == 0o600
    assert "#INPUT_B=" in Path("mcp.env").read_text()
    shell = "set -a; . ./mcp.env; set +a; export INPUT_B=b; exec env -0"
    listed = subprocess.run(
        ["sh", "-c", shell], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    environ = dict(line.split("=", 1) for line in listed.stdout.split("\0") if line)
    assert resolved(Path("mcp.json"), environ) == resolved(source, {"INPUT_B": "b"})


def test_variables_have_the_names_that_servers_use(run, source):
    run(source, "-o", "mcp.json", "--secrets", "env")
    names = [line.split("=")[0] for line in Path("mcp.env").read_text().splitlines()]
    assert names == [
        *("GITHUB_TOKEN", "OTHER_GITHUB_TOKEN", "DB_SECRET", "DB_API_KEY", "DEFAULT_A_TOKEN", "CRM_TOKEN"),
        *("CACHE_REDIS_PASSWORD", "# Set these here or elsewhere:", "#INPUT_B"),
    ]


def test_secrets_move_to_a_file_each(run, source):
    run(source, "-o", "mcp.json", "--secrets", "files")
    folder = Path("mcp.secrets")
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert mode(folder) == 0o700
    assert sorted(path.read_text() for path in folder.iterdir()) == sorted(VALUES)
    assert resolved(Path("mcp.json"), {"INPUT_B": "b"}) == resolved(source, {"INPUT_B": "b"})


def test_secrets_that_stay_are_readable_for_their_owner_only(run, source):
    shown = run(source, "-o", "mcp.json").stderr
    assert mode(Path("mcp.json")) == 0o600
    assert shown.count("the file itself contains what looks like a secret") == 8
    assert "`trust`" in shown


@pytest.mark.parametrize("existing", ["mcp.json", "mcp.env"])
def test_no_file_is_overwritten_without_force(run, source, existing):
    Path(existing).write_text("mine")
    arguments = (source, "-o", "mcp.json", "--secrets", "env")
    assert f"{existing}: exists already; nothing was written. Use --force" in run(*arguments, code=2).stderr
    assert sorted(path.name for path in Path().iterdir()) == sorted(["client.json", existing])
    assert Path(existing).read_text() == "mine"
    run(*arguments, "--force")
    assert "mine" not in Path(existing).read_text()
    assert len(list(Path().iterdir())) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name a file, or a client with --from"),
        (["client.json", "--from", "cursor"], "name a file, or a client with --from"),
        (["client.json", "--secrets", "env"], "--secrets env writes a file beside OUTPUT: name it with -o"),
        (["gone.json"], "gone.json: the file does not exist"),
        (["client.json", "-o", "gone/mcp.json"], "cannot be written: No such file or directory"),
    ],
)
def test_an_import_that_cannot_be_says_why(run, source, arguments, text):
    assert text in run(*arguments, code=2).stderr


def test_the_file_of_a_client_is_found(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    looked_for = run("--from", "codex", code=2).stderr
    assert "codex has no configuration file here" in looked_for
    path = tmp_path / "home" / ".codex" / "config.toml"
    assert str(path) in looked_for
    path.parent.mkdir(parents=True)
    path.write_text('[mcp_servers.a]\ncommand = "x"\n')
    assert json.loads(run("--from", "codex").stdout) == {"mcpServers": {"a": {"command": "x"}}}
    Path(".codex").mkdir()
    Path(".codex/config.toml").write_text('[mcp_servers.b]\ncommand = "x"\n')
    result = run("--from", "codex")
    assert json.loads(result.stdout) == {"mcpServers": {"b": {"command": "x"}}}
    assert f"not read: {path}" in result.stderr


@pytest.mark.parametrize(
    ("platform", "client", "place"),
    [
        ("darwin", "claude-desktop", "/h/Library/Application Support/Claude/claude_desktop_config.json"),
        ("linux", "claude-desktop", "/h/.config/Claude/claude_desktop_config.json"),
        ("linux", "vscode", "/h/.config/Code/User/mcp.json"),
        ("win32", "goose", "/h/AppData/Roaming/Block/goose/config/config.yaml"),
        ("darwin", "goose", "/h/.config/goose/config.yaml"),
        ("darwin", "zed", "/h/.config/zed/settings.json"),
        ("linux", "claude-code", "/h/.claude.json"),
    ],
)
def test_each_platform_has_its_places(platform, client, place):
    assert Path(place) in find_client_files(client, {"HOME": "/h"}, platform)[1]


@pytest.mark.parametrize("policy", [{"agents": {"sre": {"deny": ["a.*"]}, "*": {"allow": []}}}, {}])
def test_a_policy_is_imported_as_it_is(run, tmp_path, policy):
    path = tmp_path / "ours.json"
    content = {"mcpServers": {"a": {"command": "x"}}, "policy": policy}
    path.write_text(json.dumps(content))
    assert json.loads(run(str(path)).stdout) == content


def test_every_client_has_a_place():
    assert all(find_client_files(client, {"HOME": "/h"}, "linux")[1] for client in CLIENTS)
