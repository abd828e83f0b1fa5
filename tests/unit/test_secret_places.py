"""Secrets that a configuration exposes: in the file itself, or on a command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.config import check_secrets
from tarsy_tasks.config.secret_places import is_secret_name, show_secret

RANDOM = "q7Xv2mT9cLr4Zk8B"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.sflKxwRJSMeKKF2QT4"

WRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("env.GITHUB_TOKEN", {"command": "x", "env": {"GITHUB_TOKEN": "abc"}}),
    ("env.githubToken", {"command": "x", "env": {"githubToken": "abc"}}),
    ("env.DB_PASS", {"command": "x", "env": {"DB_PASS": "hunter2"}}),
    ("env.PASSWORD", {"command": "x", "env": {"PASSWORD": "${PASSWORD:-hunter2}"}}),
    ("env.HARMLESS", {"command": "x", "env": {"HARMLESS": f"x {JWT}"}}),
    ("env.HARMLESS", {"command": "x", "env": {"HARMLESS": "ghp_0123456789abcdefghijABCDEFGHIJ"}}),
    ("env.DATABASE_URL", {"command": "x", "env": {"DATABASE_URL": "postgres://u:hunter2@${HOST}/db"}}),
    ("env.PEM", {"command": "x", "env": {"PEM": "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END"}}),
    ("env.MY_KEY", {"command": "x", "env": {"MY_KEY": RANDOM}}),
    ("env.SIGNATURE", {"command": "x", "env": {"SIGNATURE": RANDOM}}),
    ("env.API_TOKENS", {"command": "x", "env": {"API_TOKENS": f"{RANDOM},{RANDOM}"}}),
    ("env.GH_PAT", {"command": "x", "env": {"GH_PAT": RANDOM}}),
    ("env.CONF", {"command": "x", "env": {"CONF": '{"password": "hunter2"}'}}),
    (
        "env.HOOK",
        {"command": "x", "env": {"HOOK": f"https://hooks.slack.com/services/T01234567/B01234567/{RANDOM}a9Bc7Qw2"}},
    ),
    ("args[1]", {"command": "sh", "args": ["-c", "export A_TOKEN=q7Xv2mT9cLr4 && run --password hunter2"]}),
    ("args[0]", {"command": "x", "args": ["--api-key=abc"]}),
    ("args[1]", {"command": "x", "args": ["--token", "abc"]}),
    ("args[1]", {"command": "x", "args": ["-e", "GITHUB_TOKEN=abc"]}),
    ("args[1]", {"command": "x", "args": ["--header", "Authorization: Bearer abc"]}),
    ("args[0]", {"command": "x", "args": ["https://h/mcp?token=abc"]}),
    ("headers.Authorization", {"url": "http://h", "headers": {"Authorization": "Bearer abc"}}),
    ("headers.X-API-Key", {"url": "http://h", "headers": {"X-API-Key": "abc"}}),
    ("headers.Cookie", {"url": "http://h", "headers": {"Cookie": "session=abc"}}),
    ("bearer_token", {"url": "http://h", "bearer_token": "abc"}),
    ("auth.key", {"url": "http://h", "auth": {"type": "api_key", "key": "abc"}}),
    (
        "auth.client_secret",
        {
            "url": "http://h",
            "auth": {
                "type": "oauth_client_credentials",
                "issuer": "https://a",
                "client_id": "c",
                "client_secret": "abc",
            },
        },
    ),
    (
        "auth.issuer",
        {
            "url": "http://h",
            "auth": {
                "type": "oauth_client_credentials",
                "issuer": "https://u:hunter2@a",
                "client_id": "c",
                "client_secret": "${S}",
            },
        },
    ),
    ("url", {"url": "https://u:hunter2@h/mcp"}),
    ("url", {"url": "https://abc@h/mcp"}),
    ("url", {"url": "https://h/mcp?api_key=abc"}),
    ("url", {"url": f"https://h/s/{RANDOM}a9Bc7Qw2/mcp"}),
]
INNOCENT: list[dict[str, Any]] = [
    {"command": "x", "env": {"TOKEN": "${TOKEN}", "A_TOKEN": "${env:A}", "B_TOKEN": "{{.A}}", "C_TOKEN": "${A:-}"}},
    {"command": "x", "env": {"TOKEN": "${file:/run/secrets/a}"}, "env_file": {"A_TOKEN": "/run/secrets/b"}},
    {
        "command": "x",
        "env": {"MAX_TOKENS": "4096", "TOKEN_URL": "https://a/t", "SECRET_NAME": "a", "PASSWORD_FILE": "/x"},
    },
    {"command": "x", "env": {"USE_TOKEN": "true", "PASSWORD": "", "API_KEY": "<your key>", "TOKEN": "xxx"}},
    {
        "command": "x",
        "env": {
            "SORT_KEY": "name",
            "TLS_KEY": "/etc/tls/tls.key",
            "COMMIT": "9fceb02d0ae598e95dc970b74767f19372d61af8",
        },
    },
    {"command": "x", "env": {"TENANT_ID": "0b0f3b5e-58f3-4b4f-9d5a-5f5f8a1f7c11", "AUTHOR": "me", "BYPASS": "yes"}},
    {"command": "x", "args": ["--key", "/etc/tls.key", "--kubeconfig", "/home/u/.kube/config", "--verbose", "run"]},
    {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything", "--port=8080"]},
    {"command": "x", "args": ["--token", "--verbose"]},
    {"url": "http://h", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Run": "7", "X-Key": "${file:/k}"}},
    {"url": "https://${USER}:${PASSWORD}@h/mcp?api_key=${KEY}&page=2"},
    {"url": "https://h/v1/projects/6f1c3f1e-0000-4000-8000-8c5f4bb5f6b1/mcp"},
    {"url": "http://h", "bearer_token_file": "/run/secrets/t"},
    {"url": "http://h", "auth": {"type": "bearer", "token": "${T}"}},
]


def check(directory: Path, entry: dict[str, Any]) -> list[str]:
    path = directory / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"one": entry}}, indent=1))
    return [str(exposure) for exposure in check_secrets(path)]


@pytest.mark.parametrize(("place", "entry"), WRITTEN)
def test_a_secret_in_the_file_is_located_and_not_shown(tmp_path: Path, place: str, entry: dict[str, Any]) -> None:
    found = [line for line in check(tmp_path, entry) if "the file itself contains" in line]
    assert len(found) == 1
    assert f"(mcpServers.one.{place}); replace it with `${{NAME}}`" in found[0]
    line = int(found[0].removeprefix(f"{tmp_path}/mcp.json:").partition(":")[0])
    text = (tmp_path / "mcp.json").read_text().splitlines()[line - 1]
    assert place.rpartition(".")[2].partition("[")[0] in text or place.startswith("args")
    for secret in ("abc", "hunter2", RANDOM, JWT, "0123456789"):
        assert secret not in found[0].removeprefix(str(tmp_path))


@pytest.mark.parametrize("entry", INNOCENT)
def test_references_and_harmless_values_are_not_reported(tmp_path: Path, entry: dict[str, Any]) -> None:
    assert check(tmp_path, entry) == []


@pytest.mark.parametrize(
    "args",
    [["--token", "${A}"], ["--token=${A}"], ["-e", "X_TOKEN=${A}"], ["${GITHUB_TOKEN}"], ["--x", "${file:/run/s}"]],
)
def test_a_secret_on_a_command_line_is_reported(tmp_path: Path, args: list[str]) -> None:
    (line,) = check(tmp_path, {"command": "x", "args": args})
    assert f"(mcpServers.one.args[{len(args) - 1}]); pass it in `env`" in line
    assert "(`ps`)" in line


def test_secrets_are_found_in_yaml_and_in_disabled_servers(tmp_path: Path) -> None:
    path = tmp_path / "mcp.yaml"
    path.write_text("mcp:\n  servers:\n  - name: a\n    command: x\n    disabled: true\n    env:\n      API_KEY: abc\n")
    (exposure,) = check_secrets(path)
    assert exposure.text.startswith(f"{path}:7:7: ")
    assert exposure.text.endswith("(mcp.servers[0].env.API_KEY)")


@pytest.mark.parametrize("piece", ["eyJ-", "a.", "a://", "sk-", " ", "/a", "a=", "-----BEGIN "])
def test_a_large_value_takes_little_time(tmp_path: Path, piece: str) -> None:
    text = piece * (400_000 // len(piece))
    check(tmp_path, {"command": "x", "args": [text], "env": {"TOKEN_A": text}})


def test_names_of_secrets_differ_from_names_about_secrets() -> None:
    for name in ("token", "X-Auth-Token", "clientSecret", "AWS_SECRET_ACCESS_KEY", "SSH_PRIVATE_KEY", "--api-key"):
        assert is_secret_name(name)
    for name in ("tokens", "TOKEN_LIMIT", "secret_name", "author", "keyboard", "monkey", "compat", "AUTH_URL"):
        assert not is_secret_name(name)


def test_a_long_secret_is_shown_by_its_last_two_characters() -> None:
    assert show_secret("sk-live-0123456789ab59") == "••••59"
    assert show_secret("hunter2") == "••••"
    assert show_secret("") == "(empty)"
    assert show_secret("0123456789abcdef\x1b[") == "••••"
