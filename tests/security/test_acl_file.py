"""The file of Redis users: what the command prints, what it refuses, and that Redis starts with it."""

import subprocess
from pathlib import Path

import pytest

from tarsy_tasks.broker.acl import AgentUser, build_users, render_users
from tarsy_tasks.errors import ConfigError
from tests.cli.commands import clean_environment, run_command

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy" / "redis"


def test_the_file_in_the_repository_is_what_the_command_prints() -> None:
    text = render_users(build_users([AgentUser("agent")]), {})
    assert (DEPLOY / "users.acl").read_text() == text, "tarsy-tasks acl > deploy/redis/users.acl"


def acl(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command("acl", *words, environment=clean_environment(**environment))


def test_passwords_are_digests_and_a_user_without_one_is_off(tmp_path: Path) -> None:
    password = tmp_path / "beat"
    password.write_text("the-password-of-beat\n")
    done = acl("--agent", "sre=desk,vault", TARSY_ACL_SRE="the-password-of-sre", TARSY_ACL_BEAT_FILE=str(password))
    assert done.returncode == 0
    assert "the-password" not in done.stdout + done.stderr
    assert "off: worker, flower, operator, admin" in done.stderr
    lines = {line.split(" ")[1]: line for line in done.stdout.splitlines()}
    passwords = {"sre": "the-password-of-sre", "beat": "the-password-of-beat"}
    users = build_users([AgentUser("sre", ("desk", "vault"))])
    assert done.stdout == render_users(users, passwords)
    assert "~mcp.desk:a:sre ~mcp.vault:a:sre " in lines["sre"]
    assert "~mcp.desk " not in lines["sre"]


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        ((), {"TARSY_ACL_WORKER": "short"}, "fewer than 16 characters"),
        ((), {"TARSY_ACL_WORKER_FILE": "/nowhere"}, "TARSY_ACL_WORKER_FILE"),
        (("--agent", "sre"), {}, "use NAME=SERVER"),
        (("--agent", "sre=desk,"), {}, "use NAME=SERVER"),
        (("--agent", "worker=desk"), {}, "cannot be the name of a Redis user"),
        (("--agent", "anonymous=desk"), {}, "cannot be the name of a Redis user"),
        (("--agent", "sré=desk"), {}, "cannot be the name of a Redis user"),
        (("--agent", f"{'a' * 65}=desk"), {}, "up to 64 letters"),
        (("--agent", "sre=desk", "--agent", "SRE=vault"), {}, "would have the same password, TARSY_ACL_SRE"),
        (("--agent", "a-b=desk", "--agent", "a_b=desk"), {}, "would have the same password, TARSY_ACL_A_B"),
        (("--agent", "agent=*", "--agent", "sre=desk"), {}, "could write into the queues of sre"),
        (("--agent", "sre=desk ~*"), {}, "is not the id of an MCP server"),
        (("--agent", "sre=desk\n"), {}, "is not the id of an MCP server"),
    ],
)
def test_what_can_be_no_rule_is_refused(words: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    done = acl(*words, **environment)
    assert done.returncode == 2
    assert said in done.stderr
    assert not done.stdout


def test_users_of_another_database_stay_there() -> None:
    users = build_users([AgentUser("agent")], database=3)
    assert all("+select|3 " in rules for name, rules in users.items() if name not in ("default", "admin"))
    assert "/0." not in "".join(users.values())


def test_an_agent_cannot_have_the_name_of_another_part() -> None:
    with pytest.raises(ConfigError):
        AgentUser("operator")
