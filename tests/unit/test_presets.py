"""Entries that are written for an operator: presets, and what a `server.json` of the MCP registry says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.config import load_config
from tarsy_tasks.config.presets import PRESETS, build_preset
from tarsy_tasks.config.server_json import ConvertedServer, load_server_json
from tarsy_tasks.config.variables import find_references
from tarsy_tasks.errors import ConfigError

WORDS = {"filesystem": ["/srv/data", "/srv/more"], "git": ["/srv/code"]}


def load(tmp_path: Path, entry: dict[str, Any]) -> Any:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"it": entry}}))
    return load_config(path).servers["it"]


def convert(tmp_path: Path, document: Any, **options: bool) -> ConvertedServer:
    path = tmp_path / "server.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    found = load_server_json(path, **options)
    load(tmp_path, found.entry)
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_entry(tmp_path: Path, name: str) -> None:
    preset, entry = PRESETS[name], build_preset(name, WORDS.get(name, []))
    server = load(tmp_path, entry)
    assert preset.publisher in (server.description or "")
    referred = {each for each in find_references(json.dumps(entry)) if each not in ("HOME", "POSTGRES_PORT")}
    assert referred == set(preset.variables)
    if server.command is None:
        assert server.url.startswith("https://")
        assert preset.untested
    else:
        assert server.sandbox is not None
        assert server.inherit_env == "minimal"
        assert re.search(r"@\d+(\.\d+)+$", preset.source), "its version is pinned"
        assert preset.source.partition(" ")[2] in server.args


def test_the_words_of_a_preset_are_folders_that_it_may_write(tmp_path: Path) -> None:
    for name, words in WORDS.items():
        server = load(tmp_path, build_preset(name, words))
        assert server.args[-len(words) :] == words
        assert server.sandbox is not None
        assert set(words) <= set(server.sandbox.write)


@pytest.mark.parametrize(
    ("name", "words", "error"),
    [
        ("filesystem", [], "needs the folders"),
        ("filesystem", ["data"], "'data' is not an absolute path"),
        ("git", ["/a", "/b"], "needs the folder of the repository"),
        ("postgres", ["/data"], "takes no words"),
        ("filesytem", ["/data"], "did you mean `filesystem`"),
    ],
)
def test_a_preset_says_which_words_it_needs(name: str, words: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        build_preset(name, words)


NPM = {
    "registryType": "npm",
    "identifier": "@acme/files",
    "version": "1.2.3",
    "transport": {"type": "stdio"},
    "runtimeArguments": [{"type": "positional", "value": "--quiet"}],
    "packageArguments": [
        {"type": "positional", "valueHint": "folder", "description": "What to serve", "isRequired": True},
        {"type": "named", "name": "--limit", "default": "10"},
        {"type": "named", "name": "--trace"},
        {
            "type": "named",
            "name": "--url",
            "value": "https://{host}/",
            "variables": {"host": {"description": "Where", "isRequired": True}},
        },
    ],
    "environmentVariables": [
        {"name": "ACME_KEY", "description": "The key", "isRequired": True, "isSecret": True},
        {"name": "ACME_MODE", "default": "fast"},
        {"name": "ACME_TRACE"},
    ],
}


def test_a_package_of_npm_is_started_with_npx(tmp_path: Path) -> None:
    found = convert(tmp_path, {"name": "com.acme/files", "version": "1.2.3", "packages": [NPM]})
    assert found.entry == {
        "description": "com.acme/files 1.2.3",
        "command": "npx",
        "args": [
            "-y",
            "--quiet",
            "@acme/files@1.2.3",
            "${FOLDER}",
            "--limit",
            "${LIMIT:-10}",
            "--url",
            "https://${HOST}/",
        ],
        "inherit_env": "minimal",
        "env": {"ACME_KEY": "${ACME_KEY}", "ACME_MODE": "${ACME_MODE:-fast}"},
    }
    assert found.variables == {"ACME_KEY": "The key", "FOLDER": "What to serve", "HOST": "Where"}


def test_packages_of_pypi_and_images_are_started(tmp_path: Path) -> None:
    package = {"registryType": "pypi", "identifier": "acme-files", "version": "1.0"}
    assert convert(tmp_path, {"name": "a/b", "packages": [package]}).entry["args"] == ["acme-files@1.0"]
    environment = [{"name": "KEY", "isRequired": True}]
    image = {"registryType": "oci", "identifier": "ghcr.io/acme/files:1.0", "environmentVariables": environment}
    entry = convert(tmp_path, {"name": "a/b", "packages": [image]}).entry
    assert (entry["command"], entry["args"]) == ("docker", ["run", "-i", "--rm", "-e", "KEY", "ghcr.io/acme/files:1.0"])


def test_a_remote_server_has_its_headers(tmp_path: Path) -> None:
    remotes = [
        {"type": "sse", "url": "https://acme.example/sse"},
        {
            "type": "streamable-http",
            "url": "https://{tenant}.acme.example/mcp",
            "variables": {"tenant": {"isRequired": True}},
            "headers": [{"name": "X-Api-Key", "isRequired": True, "isSecret": True, "description": "The key"}],
        },
    ]
    document = {"name": "com.acme/remote", "packages": [NPM], "remotes": remotes}
    found = convert(tmp_path, {"server": document}, is_remote=True)
    assert found.entry == {
        "description": "com.acme/remote",
        "url": "https://${TENANT}.acme.example/mcp",
        "headers": {"X-Api-Key": "${X_API_KEY}"},
    }
    assert found.variables == {"X_API_KEY": "The key", "TENANT": ""}
    only_sse = convert(tmp_path, {"name": "a/b", "remotes": remotes[:1]})
    assert only_sse.entry["transport"] == "sse"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a server.json"),
        ({"packages": []}, "name: Field required"),
        ({"name": "a/b"}, "has no server that can be used"),
        ({"name": "a/b", "packages": [{**NPM, "registryType": "nuget"}]}, "(found nuget over stdio)"),
        ({"name": "a/b", "packages": [{**NPM, "transport": {"type": "sse"}}]}, "(found npm over sse)"),
        ({"name": "a/b", "packages": "none"}, "packages: "),
        (" " * 2_000_000, "more than 1048576 bytes"),
    ],
)
def test_what_is_no_server_json_is_refused(tmp_path: Path, document: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        convert(tmp_path, document)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json: cannot be read"):
        load_server_json(tmp_path / "gone.json")
