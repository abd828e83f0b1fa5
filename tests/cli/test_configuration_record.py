"""The commands of a configuration in Redis, and what `doctor` says of it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tarsy_tasks.config.record import CONFIGURATION_KEY
from tests.cli.commands import clean_environment, run_command
from tests.redis_users import as_user

pytestmark = [pytest.mark.keeps_keys, pytest.mark.usefixtures("client")]

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, redis_url: str) -> Run:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"desk": {"command": "desk"}}}')

    def run(*words: str, code: int | None = 0, user: str = "operator") -> CompletedProcess[str]:
        environment = clean_environment(
            TARSY_REDIS_URL=as_user(redis_url, user), TARSY_MCP_CONFIG="redis", TARSY_RUN_DIR=str(tmp_path / "run")
        )
        done = run_command(*words, environment=environment, cwd=tmp_path)
        assert code in (None, done.returncode), done.stderr
        return done

    return run


def diagnose(run: Run, user: str = "admin") -> list[tuple[str, str]]:
    """What `doctor` finds of the configuration."""
    found: list[dict[str, Any]] = json.loads(run("doctor", "--json", code=None, user=user).stdout)["findings"]
    return [(each["severity"], each["text"]) for each in found if each["check"] == "configuration"]


def test_a_file_goes_into_redis_and_comes_out_again(run: Run, tmp_path: Path) -> None:
    assert "Redis has no configuration yet" in run("servers", "export", code=2).stderr
    digest = json.loads(run("servers", "publish", "mcp.json", "--json").stdout)["digest"]
    run("servers", "disable", "desk")
    latest = run("servers", "export")
    assert json.loads(latest.stdout) == {"mcpServers": {"desk": {"command": "desk", "enabled": False}}}
    found = re.search(r"publish FILE --digest (\w+)", latest.stderr)
    assert found is not None
    assert run("servers", "export", "--version", "1").stdout == (tmp_path / "mcp.json").read_text()
    assert "no version 9" in run("servers", "export", "--version", "9", code=2).stderr

    refused = run("servers", "publish", "mcp.json", "--digest", digest, code=2)
    assert "somebody has changed it since you read it" in refused.stderr
    run("servers", "publish", "mcp.json", "--digest", found[1])
    history = json.loads(run("servers", "history", "--json").stdout)
    assert [(each["number"], each["change"]) for each in history] == [
        (3, "changed desk"), (2, "changed desk"), (1, "added desk")
    ]  # fmt: skip
    assert all(re.fullmatch(r".+@.+", each["who"]) and each["at"] > 1e9 for each in history)
    assert history[0]["digest"] in run("servers", "history").stdout


def test_doctor_says_what_redis_has_and_who_may_change_it(run: Run, client: Any) -> None:
    run("servers", "publish", "mcp.json")
    [copy, (severity, text)] = diagnose(run)
    assert copy[0] == severity == "ok"
    assert re.fullmatch(r"in Redis: version 1 of .+ UTC, by .+ \(added desk\)", text)

    client.acl_setuser("passer-by", enabled=True, nopass=True, commands=["+hset"], keys=["*"])
    try:
        assert any(
            severity == "error" and "which programs the workers run: passer-by" in text
            for severity, text in diagnose(run)
        )
    finally:
        client.acl_deluser("passer-by")

    client.delete(CONFIGURATION_KEY)
    assert any(
        severity == "error" and "Redis has no configuration; the copy" in text for severity, text in diagnose(run)
    )


def test_up_needs_a_file(run: Run) -> None:
    assert "`tarsy-tasks servers export > mcp.json`" in run("up", code=2).stderr
