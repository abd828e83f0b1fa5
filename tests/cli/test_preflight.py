"""`preflight` by its exit codes, against a real worker."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, free_port, wait_until

POLICY = {"agents": {"dev": {"deny": ["*.order"]}, "*": {}}}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    """It serves one server that works, one that is not there, and one whose program does not exist."""
    return start_worker(
        {
            "desk": DEMO_SERVER,
            "away": {"url": f"http://127.0.0.1:{free_port()}/mcp", "required": False},
            "broken": {"command": "no-such-program", "required": False},
        },
        environment={"TARSY_STARTUP": "degraded"},
    )


def preflight(worker: Worker, *words: str, **environment: str) -> CompletedProcess[str]:
    return run_command("preflight", *words, environment={**worker.environment, **environment})


def verdicts(done: CompletedProcess[str]) -> dict[str, Any]:
    return {need["name"]: need["verdict"] for need in json.loads(done.stdout)["needs"]}


def test_a_run_that_has_all_it_needs_may_begin(worker: Worker) -> None:
    wait_until(lambda: preflight(worker, "desk.echo").returncode == 0, "the worker has reported")
    done = preflight(worker, "--json", "desk.echo", "desk__order", "desk")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)
    assert verdicts(done) == {"redis": "fine", "desk": "fine", "desk.echo": "fine", "desk.order": "fine"}
    required = preflight(worker, "--json")
    assert (required.returncode, set(verdicts(required))) == (0, {"redis", "desk"})


def test_what_comes_back_and_what_does_not_have_exit_codes(worker: Worker) -> None:
    wait_until(lambda: preflight(worker, "away").returncode == 3, "the worker has reported")
    wait_until(lambda: preflight(worker, "broken").returncode == 1, "the worker has reported")
    both = preflight(worker, "--json", "away", "broken", "desk")
    assert both.returncode == 1, "somebody has to act anyway"
    assert verdicts(both) == {"redis": "fine", "away": "retry later", "broken": "act", "desk": "fine"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("desk.ecko", "closest first: desk.echo"), ("bank.pay", "There is no server"), ("desk", "")],
)
def test_a_name_that_does_not_exist_needs_somebody(worker: Worker, name: str, text: str) -> None:
    done = preflight(worker, name)
    assert done.returncode == (1 if text else 0)
    assert text in done.stdout


def test_a_tool_that_the_policy_denies_needs_somebody(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    environment = {"TARSY_POLICY": str(tmp_path / "policy.json")}
    assert preflight(worker, "desk.order", **environment).returncode == 0
    denied = preflight(worker, "--agent", "dev", "desk.order", "desk.echo", **environment)
    assert denied.returncode == 1
    assert "the policy denies it to dev (agents.dev.deny[0])" in denied.stdout


def test_without_redis_the_run_may_be_tried_later(worker: Worker) -> None:
    done = preflight(worker, "--json", "desk.echo", TARSY_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert (done.returncode, verdicts(done)) == (3, {"redis": "retry later"})


def test_a_wrong_configuration_has_its_own_exit_code(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("{")
    assert preflight(worker, TARSY_MCP_CONFIG=str(tmp_path / "mcp.json")).returncode == 2
