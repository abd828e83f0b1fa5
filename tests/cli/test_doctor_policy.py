"""`doctor` on policies that others can change, that count nothing, or that the users of Redis do not enforce."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks.broker.acl import AgentUser, build_users
from tests.cli.commands import clean_environment, run_command
from tests.processes import DEMO_SERVER
from tests.redis_users import password_of, url_of
from tests.valkey import Valkey

POLICY: dict[str, Any] = {
    "agents": {"sre": {}, "dev": {}, "*": {}},
    "limits": [{"rate": "1/s"}, {"bytes_per_day": "1 MB"}, {"bytes_per_day": 0}],
}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Any]:
    agents = AgentUser("sre", ("desk",)), AgentUser("dev", ("desk",))
    with Valkey(agents=agents) as server, redis.Redis.from_url(server.connection_url) as client:
        yield client


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    path.chmod(0o644)
    return path


@pytest.fixture
def diagnose(tmp_path: Path, valkey: Any, policy: Path) -> Any:
    def diagnose(user: str = "admin") -> dict[str, list[str]]:
        """The texts of what was found about the policy, by severity."""
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": DEMO_SERVER}}))
        url = url_of(valkey.connection_pool.connection_kwargs["port"], user)
        environment = clean_environment(
            TARSY_REDIS_URL=url, TARSY_POLICY="policy.json", TARSY_RUN_DIR=str(tmp_path / "run")
        )
        done = run_command("doctor", "--json", environment=environment, cwd=tmp_path)
        found: dict[str, list[str]] = {}
        for each in json.loads(done.stdout)["findings"]:
            if each["check"] == "policy":
                found.setdefault(each["severity"], []).append(each["text"])
                assert each["remedy"] or each["severity"] in ("ok", "note")
        return found

    return diagnose


def test_a_policy_that_is_enforced_has_no_errors(diagnose: Any) -> None:
    found = diagnose()
    assert found.keys() == {"ok", "note"}
    assert "enforced by users of Redis for: dev, sre; all others are `*`" in found["ok"]


def test_a_policy_that_everybody_can_write_is_an_error(diagnose: Any, policy: Path) -> None:
    policy.chmod(0o666)
    [text] = diagnose()["error"]
    assert "every user of this machine can write it, and so permit every call" in text


def test_a_policy_of_another_user_is_named(diagnose: Any, policy: Path) -> None:
    if os.getuid() == 0:
        os.chown(policy, 12345, -1)
        [text] = diagnose()["warning"]
        assert "belongs to another user of this machine (uid 12345)" in text
        os.chown(policy, 0, -1)
    assert "warning" not in diagnose()


def test_a_policy_may_be_mounted_by_a_link(diagnose: Any, policy: Path) -> None:
    policy.rename(policy.with_suffix(".mounted"))
    policy.symlink_to(policy.with_suffix(".mounted"))
    assert diagnose().keys() == {"ok", "note"}


def test_quotas_of_bytes_in_another_database_are_named(diagnose: Any, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text('result_backend = "redis://127.0.0.1:1/1"\n')
    [text] = diagnose()["warning"]
    assert text.endswith("because they are in another database: limits[1]")


def set_user(valkey: Any, name: str, rules: str) -> None:
    words = rules.replace("(", "\n(").replace(")", ")\n").split("\n")
    parts = [part for word in words for part in ([word] if word.startswith("(") else word.split())]
    valkey.execute_command("ACL", "SETUSER", name, "reset", "on", f">{password_of(name)}", *parts)


@pytest.mark.parametrize(
    ("name", "rules", "severity", "said"),
    [
        ("rogue", "~* &* +@all", "error", "so entries of single agents are advice only: rogue"),
        ("rogue", "~mcp.* +lpush", "error", "so entries of single agents are advice only: rogue"),
        ("rogue", "~tarsy:limit:* +del", "error", "may change what limits, shares and error budgets count: rogue"),
        ("agent", build_users([AgentUser("agent")])["agent"], "error", "advice only: agent"),
        (
            "sre",
            build_users([AgentUser("sre", ("desk",))])["sre"].replace("[36]", "[x]"),
            "warning",
            "rules of an earlier version, without priorities, events or isolated sessions: sre",
        ),
        (
            "worker",
            build_users([])["worker"].replace("+zrandmember", "").replace("+hincrby", ""),
            "error",
            "`worker` has rules of an earlier version, without what it needs for: limits, error budgets",
        ),
    ],
)
def test_what_rules_do_not_enforce_or_lack_is_named(
    diagnose: Any, valkey: Any, name: str, rules: str, severity: str, said: str
) -> None:
    before = next((line for line in valkey.acl_list() if line.split()[1] == name), None)
    set_user(valkey, name, rules)
    try:
        found = diagnose()
    finally:
        valkey.execute_command("ACL", "DELUSER", name)
        if before is not None:
            valkey.execute_command("ACL", "LOAD")
    assert any(said in text for text in found[severity]), found


def test_a_user_who_may_not_try_rules_hears_so(diagnose: Any) -> None:
    found = diagnose("operator")
    assert any("may not list users" in text for text in found["note"])
    assert "error" not in found
