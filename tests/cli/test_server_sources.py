"""`servers add --preset`, `servers add --server-json` and `servers new`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import clean_environment, run_command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}')
    return path


def read_entry(config: Path, name: str) -> dict[str, object]:
    return json.loads(config.read_text())["mcpServers"][name]


def test_a_preset_is_added_and_says_what_it_needs(config: Path) -> None:
    environment = clean_environment(TARSY_MCP_CONFIG=str(config))
    done = run_command("servers", "add", "db", "--preset", "postgres", environment=environment)
    assert done.returncode == 0, done.stderr
    assert "publisher: Google" in done.stdout
    assert "  POSTGRES_PASSWORD: of that role" in done.stdout
    assert read_entry(config, "db")["command"] == "npx"
    done = run_command("servers", "add", "files", "--preset", "filesystem", "/srv", "--json", environment=environment)
    assert json.loads(done.stdout)["about"]["variables"] == {}
    done = run_command("servers", "add", "hub", "--preset", "github", environment=environment)
    assert "untested: it needs an account of GitHub" in done.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--preset", "filesystem"], "needs the folders"),
        (["--preset", "mongo"], "'mongo' is not one of"),
        (["--preset", "github", "--url", "https://x/"], "name one of"),
        (["--preset", "github", "--env", "A=b"], "take no --env"),
        ([], "name one of"),
    ],
)
def test_what_does_not_fit_together_is_refused(config: Path, words: list[str], error: str) -> None:
    done = run_command("servers", "add", "x", *words, environment=clean_environment(TARSY_MCP_CONFIG=str(config)))
    assert done.returncode == 2
    assert error in done.stderr
    assert json.loads(config.read_text()) == {"mcpServers": {}}


def test_a_server_json_is_added(config: Path, tmp_path: Path) -> None:
    document = {"name": "com.acme/files", "version": "2.0", "packages": []}
    package = {"registryType": "npm", "identifier": "@acme/files", "version": "2.0"}
    package["environmentVariables"] = [{"name": "KEY", "description": "Of Acme", "isRequired": True}]
    (tmp_path / "server.json").write_text(json.dumps(document | {"packages": [package]}))
    words = ["servers", "add", "acme", "--server-json", str(tmp_path / "server.json")]
    done = run_command(*words, environment=clean_environment(TARSY_MCP_CONFIG=str(config)))
    assert done.returncode == 0, done.stderr
    assert "  KEY: Of Acme" in done.stdout
    assert read_entry(config, "acme")["args"] == ["-y", "@acme/files@2.0"]


def test_a_new_server_passes_its_own_test(tmp_path: Path) -> None:
    done = run_command("servers", "new", "my-server", environment=clean_environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "my-server"
    assert f"servers add my-server -- python {folder / 'server.py'}" in done.stdout
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, env=clean_environment())
    assert "3 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize(("words", "error"), [(["a b"], "not the id of a server"), (["here"], "already")])
def test_a_new_server_needs_an_id_and_a_free_place(tmp_path: Path, words: list[str], error: str) -> None:
    (tmp_path / "here").mkdir()
    done = run_command("servers", "new", *words, environment=clean_environment(), cwd=tmp_path)
    assert done.returncode == 2
    assert error in done.stderr
    assert not [*(tmp_path / "here").iterdir()]
