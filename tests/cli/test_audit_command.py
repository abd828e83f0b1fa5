"""`tarsy-tasks audit` as an operator has it: filters, plain lines, lines of JSON, damaged entries."""

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome
from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.audit import AuditEntry
from tests.cli.commands import TARSY_TASKS, clean_environment, run_command
from tests.processes import ServiceProcess, free_port
from tests.redis_users import url_of
from tests.valkey import Valkey

_places = itertools.count()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
def client(valkey: Valkey) -> Iterator[Any]:
    with redis.Redis.from_url(f"{valkey.connection_url}/0") as found:
        found.flushall()
        yield found


@pytest.fixture
def environment(valkey: Valkey) -> dict[str, str]:
    return clean_environment(TARSY_REDIS_URL=url_of(valkey.port, "operator"))


def add(client: Any, call_id: str, key: str = keys.AUDIT, **fields: Any) -> None:
    known = {"at": time.time(), "call_id": call_id, "server": "desk", "tool": "echo", "outcome": Outcome.OK}
    place = f"{int(time.time() * 1000) + next(_places)}-0"  # none has the same time as another
    client.xadd(key, {keys.AUDIT_FIELD: AuditEntry.model_validate({**known, **fields}).encode()}, id=place)


def run(environment: dict[str, str], cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command("audit", *words, environment=environment, cwd=cwd)


def calls(done: subprocess.CompletedProcess[str]) -> str:
    """The ids of the calls that were printed, in their order."""
    assert done.returncode == 0, done
    return "".join(json.loads(line)["call_id"] for line in done.stdout.splitlines())


def test_the_newest_come_last_and_filters_apply(client: Any, environment: dict[str, str], tmp_path: Path) -> None:
    add(client, "a", agent_id="sre", run_id="r1", task_id="t1")
    add(client, "b", keys.AGENT_AUDIT, outcome=Outcome.UNAVAILABLE, error_code="NO_WORKER")
    add(client, "c", tool="order", outcome=Outcome.TIMEOUT, error_code="CALL_TIMEOUT")
    add(client, "d", server="k8s", tool="get_pods")
    for words, found in (
        ([], "abcd"),
        (["--server", "desk", "--tool", "desk.*", "--since", "10m", "--limit", "2"], "bc"),
        (["--outcome", "timeout", "--outcome", "unavailable", "--since", "2020-01-01T00:00:00Z"], "bc"),
        (["--agent", "sre", "--run", "r1", "--call", "a", "--task", "t1"], "a"),
        (["--until", "2020-01-01"], ""),
    ):
        assert calls(run(environment, tmp_path, "--json", *words)) == found, words


def test_each_entry_is_one_line_even_if_damaged_or_hostile(
    client: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    add(client, "good", agent_id="sre", arguments='{"text":"hello"}', attempts=1, duration_s=0.0123, worker="w@host")
    add(client, "evil\x1b[2Jid\nnext\tcell", keys.AGENT_AUDIT)
    client.xadd(keys.AUDIT, {keys.AUDIT_FIELD: "nonsense"}, id=f"{int(time.time() * 1000) + 1000}-0")
    done = run(environment, tmp_path)
    assert done.returncode == 0, done
    good, evil, damaged = (line.split("\t") for line in done.stdout.splitlines())
    assert good[1:7] == ["desk.echo", "ok", "", "1", "0.0123 s", "sre"]
    # Principal and run before the call's id; task and priority after it.
    assert good[7:] == ["", "", "good", "", "", "w@host", '{"text":"hello"}', ""]
    assert evil[9] == "evil\\x1b[2Jid next cell"
    assert evil[12] == "(agent)"
    assert damaged[1].startswith("damaged: ")
    assert len(good) == len(evil) == len(damaged)
    last = json.loads(run(environment, tmp_path, "--json").stdout.splitlines()[-1])
    assert (last["outcome"], "damage" in last, last["source"]) == (None, True, "worker")


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["--since", "yesterday"], "is not a time"),
        (["--outcome", "fine"], "tool_error"),
        (["--limit", "0"], "--limit"),
        (["--follow", "--until", "1h"], "--follow"),
    ],
)
def test_wrong_options_are_named(
    environment: dict[str, str], tmp_path: Path, words: list[str], expected_text: str
) -> None:
    done = run(environment, tmp_path, *words)
    assert (done.returncode, expected_text in done.stderr) == (2, True), done


def test_exit_codes_of_an_empty_a_broken_and_no_audit(client: Any, environment: dict[str, str], tmp_path: Path) -> None:
    assert run(environment, tmp_path).returncode == 0
    client.set(keys.AUDIT, "a text")
    done = run(environment, tmp_path)
    assert (done.returncode, "WRONGTYPE" in done.stderr) == (1, True)
    done = run({**environment, "TARSY_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}, tmp_path)
    assert (done.returncode, "Redis could not be reached" in done.stderr) == (3, True)


def test_follow_continues_after_an_outage_of_redis(
    client: Any, valkey: Valkey, environment: dict[str, str], tmp_path: Path
) -> None:
    add(client, "before")
    command = [TARSY_TASKS, "audit", "--follow", "--json", "--server", "desk"]
    follower = ServiceProcess(command, tmp_path / "audit.log", environment, tmp_path)
    try:
        follower.wait_for_log('"before"')
        add(client, "first", keys.AGENT_AUDIT)
        add(client, "other", server="k8s")
        follower.wait_for_log('"first"')
        valkey.terminate()
        follower.wait_for_log("Redis could not be reached")
        valkey.start()
        add(client, "second")
        follower.wait_for_log('"second"')
    finally:
        code = follower.stop(signal.SIGINT)
    lines = [line for line in follower.log.splitlines() if line.startswith("{")]
    assert [json.loads(line)["call_id"] for line in lines] == ["before", "first", "second"]
    assert (code, "Traceback" in follower.log) == (0, False)
