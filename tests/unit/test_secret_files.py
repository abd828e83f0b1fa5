"""Secrets in files, as Docker and Kubernetes mount them: for servers, and for the worker's own settings."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tarsy_tasks.config import ServerConfig, load_config, resolve_variables
from tarsy_tasks.config.resolved import ResolvedServer
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.settings import load_settings

SECRET = "hunter2-c0ffee"
_NOBODY = 65534


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return path


def resolve(entry: dict[str, Any], environ: dict[str, str], directory: Path) -> ResolvedServer:
    path = directory / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"one": entry}}))
    return resolve_variables(load_config(path).servers["one"], environ)


def resolve_text(text: str, environ: dict[str, str] | None = None) -> str:
    server = ServerConfig(name="s", command="x", env={"A": text})
    return resolve_variables(server, environ or {}).env["A"].get_secret_value()


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"abc", "abc"),
        (b"abc\n", "abc"),
        (b"abc\r\n\n", "abc"),
        (b" abc \n", " abc "),
        (b"a\nb\n", "a\nb"),
        ("ä€".encode(), "ä€"),
        (b"${HOME}\n", "${HOME}"),
    ],
)
def test_a_file_is_read_without_the_line_breaks_at_its_end(tmp_path: Path, content: bytes, value: str) -> None:
    (tmp_path / "s").write_bytes(content)
    assert resolve_text(f"<${{file:{tmp_path}/s}}>") == f"<{value}>"


def test_an_empty_variable_is_read_from_its_file_variable(secret: Path) -> None:
    twin = {"TOKEN_FILE": str(secret)}
    assert resolve_text("${TOKEN}", twin) == SECRET
    assert resolve_text("${TOKEN:-default}", {**twin, "TOKEN": ""}) == SECRET
    assert resolve_text("${TOKEN}", {**twin, "TOKEN": "set"}) == "set"
    assert resolve_text("${TOKEN:-default}", {"TOKEN_FILE": ""}) == "default"


def test_variables_may_stand_in_the_path_and_files_may_not(secret: Path) -> None:
    assert resolve_text("${file:${DIR}/{{.NAME}}}", {"DIR": str(secret.parent), "NAME": "token"}) == SECRET
    with pytest.raises(ConfigError, match="the variable DIR is not set"):
        resolve_text("${file:${DIR}/token}")
    for text in ("${file:}", "${file:/a", "${file:/${file:/b}}", "${file:/a${B-c}}"):
        with pytest.raises(ValueError, match="found a `"):
            resolve_text(text)


def test_every_key_for_secrets_has_a_key_for_files(tmp_path: Path, secret: Path) -> None:
    child = resolve({"command": "x", "env": {"B": "b"}, "env_file": {"A": str(secret)}}, {}, tmp_path)
    assert child.env == {"B": SecretStr("b"), "A": SecretStr(SECRET)}
    remote = resolve({"url": "http://h", "headers_file": {"X-Key": "${DIR}/token"}}, {"DIR": str(tmp_path)}, tmp_path)
    assert remote.headers == {"X-Key": SecretStr(SECRET)}
    (tmp_path / "url").write_text("https://h/mcp\n")
    assert resolve({"url_file": f"{tmp_path}/url"}, {}, tmp_path).url == SecretStr("https://h/mcp")
    for entry in (
        {"bearer_token_file": str(secret)},
        {"auth": {"type": "bearer", "token_file": str(secret)}},
        {"transport": {"type": "http", "url": "http://h", "bearer_token_file": str(secret)}},
    ):
        resolved = resolve({"url": "http://h", **entry}, {}, tmp_path)
        assert resolved.auth is not None
        assert resolved.auth == type(resolved.auth).model_validate({"type": "bearer", "token": SECRET})
    for auth in (
        {"type": "api_key", "key_file": str(secret)},
        {
            "type": "oauth_client_credentials",
            "issuer": "https://a",
            "client_id": "c",
            "client_secret_file": str(secret),
        },
    ):
        resolved = resolve({"url": "http://h", "auth": auth}, {}, tmp_path)
        assert SECRET in resolved.secrets


def test_a_value_and_a_file_for_it_conflict(tmp_path: Path) -> None:
    for entry, place in (
        (
            {"command": "x", "env": {"A": "1"}, "env_file": {"A": "/f"}},
            "env_file.A: conflicts with `mcpServers.one.env.A`",
        ),
        ({"url": "http://h", "url_file": "/f"}, "url_file: conflicts with `mcpServers.one.url`"),
        (
            {"url": "http://h", "auth": {"type": "bearer", "token": "t", "token_file": "/f"}},
            "auth.token_file: conflicts with `mcpServers.one.auth.token`",
        ),
        ({"command": "x", "env_file": "/.env"}, "env_file: found a string, expected a mapping of names to files"),
        ({"url": "http://h", "bearer_token_file": 5}, "bearer_token_file: found a number, expected a string"),
        (
            {"url": "http://h", "bearer_token_file": ""},
            "bearer_token_file: found an empty value, expected at least one character",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(entry, {}, tmp_path)
        assert f"mcpServers.one.{place}" in str(caught.value)


def test_an_unusable_file_is_named_with_place_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "huge").write_bytes(b"x" * (64 * 1024 + 1))
    (tmp_path / "latin").write_bytes(b"\xe4")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, text in {
        "none": "does not exist; create or mount it where the worker runs",
        "empty": "is empty; write the value into it",
        "huge": "is larger than 65536 bytes",
        "latin": "is not UTF-8",
        "directory": "is a directory",
        "pipe": "is not a regular file",
        "empty/x": "cannot be read: Not a directory",
    }.items():
        for entry, place in (
            ({"url": "http://h", "auth": {"type": "bearer", "token_file": f"{tmp_path}/{name}"}}, "auth.token"),
            ({"command": "x", "env": {"A": "${T}"}}, "env.A"),
        ):
            with pytest.raises(ConfigError) as caught:
                resolve(entry, {"T_FILE": f"{tmp_path}/{name}"}, tmp_path)
            twin = "T_FILE: " if place == "env.A" else ""
            assert str(caught.value).startswith(f"servers.one.{place}: {twin}{tmp_path}/{name} {text}")


@contextmanager
def without_rights() -> Iterator[None]:
    """Root may read everything, and nobody nothing."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_file_that_may_not_be_read_is_named(secret: Path) -> None:
    secret.chmod(0)
    with (
        without_rights(),
        pytest.raises(ConfigError, match="is not readable for the user of the worker; grant that permission"),
    ):
        resolve_text(f"${{file:{secret}}}")


def test_a_secret_instead_of_a_path_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"url": "http://h", "bearer_token_file": SECRET}, {}, tmp_path)
    assert SECRET not in str(caught.value)
    assert "the file (not an absolute path) does not exist" in str(caught.value)


def test_the_repr_of_a_resolved_server_shows_no_secret(tmp_path: Path, secret: Path) -> None:
    entry = {
        "url": f"https://u:{SECRET}@h/?key={SECRET}",
        "headers": {"X": SECRET},
        "auth": {"type": "bearer", "token_file": str(secret)},
    }
    remote = resolve(entry, {}, tmp_path)
    child = resolve({"command": "x", "args": ["--token", SECRET], "env": {"A": SECRET}}, {}, tmp_path)
    loaded = load_config(tmp_path / "mcp.json").servers["one"]
    assert SECRET not in f"{remote!r} {remote} {child!r} {child} {loaded!r} {loaded.env!r} {loaded.env}"
    assert remote.secrets == {SECRET}


def test_the_worker_s_own_secrets_may_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redis").write_text(f"redis://:{SECRET}@h:6379/1\n")
    monkeypatch.delenv("TARSY_REDIS_URL", raising=False)
    monkeypatch.setenv("TARSY_REDIS_URL_FILE", str(tmp_path / "redis"))
    settings = load_settings()
    assert settings.redis_url.get_secret_value() == f"redis://:{SECRET}@h:6379/1"
    assert SECRET not in repr(settings)
    assert load_settings() is settings, "what has not changed is not parsed again"
    (tmp_path / "redis").write_text("redis://rotated/0\n")
    assert load_settings().redis_url.get_secret_value() == "redis://rotated/0"
    monkeypatch.setenv("TARSY_REDIS_URL", "redis://other/0")
    assert load_settings().redis_url.get_secret_value() == "redis://other/0"
    monkeypatch.setenv("TARSY_ALERT_WEBHOOK_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"^TARSY_ALERT_WEBHOOK_FILE: .*none does not exist; create or mount it"):
        load_settings()
    monkeypatch.setenv("TARSY_ALERT_WEBHOOK_FILE", str(tmp_path / "redis"))
    with pytest.raises(ConfigError, match=r"^TARSY_ALERT_WEBHOOK: not valid") as caught:
        load_settings()
    assert SECRET not in str(caught.value)


def test_variables_of_a_file_are_added_to_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"# of the team\nexport LEVEL=debug\nTOKEN='{SECRET}'\nRAW=${{HOME}}\nBOTH=file\n")
    server = resolve(
        {"command": "x", "variables_file": "${DIR}/.env", "env": {"BOTH": "entry"}}, {"DIR": str(tmp_path)}, tmp_path
    )
    values = {name: value.get_secret_value() for name, value in server.env.items()}
    assert values == {"LEVEL": "debug", "TOKEN": SECRET, "RAW": "${HOME}", "BOTH": "entry"}
    assert server.secrets == {SECRET}, "a name decides; `debug` may occur in any text"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, r"\.env does not exist"),
        (f"LEVEL=debug\n{SECRET} 'without end\n", r"\.env: line 2 is not valid; expected `NAME=value`"),
        (f"A='{SECRET}\\0'\n".replace("\\0", "\0"), "contains a NUL character"),
        (f"LEVEL=debug\nA={SECRET}{' ' * 60_000}.\n", r"\.env: line 2 has more than 255 blanks in a row"),
        (f"{' ' * 60_000}A={SECRET}\n", r"\.env: line 1 has more than 255 blanks in a row"),
    ],
)
def test_a_wrong_file_of_variables_is_named(tmp_path: Path, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / ".env").write_text(content)
    with pytest.raises(ConfigError, match=text) as caught:
        resolve({"command": "x", "variables_file": str(tmp_path / ".env")}, {}, tmp_path)
    assert SECRET not in str(caught.value)


def test_a_file_of_variables_may_be_empty_but_not_large(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("\n")
    entry = {"command": "x", "variables_file": str(path), "env": {"A": "1"}}
    assert resolve(entry, {}, tmp_path).env == {"A": SecretStr("1")}
    path.write_text("A=" + "x" * 70_000)
    with pytest.raises(ConfigError, match="name a file that contains lines `NAME=value`"):
        resolve(entry, {}, tmp_path)
