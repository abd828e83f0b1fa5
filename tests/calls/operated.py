"""A deployment with beat and Flower, whose servers an operator changes by commands while calls run."""

import json
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.health_records import read_health
from tests.calls.deployment import DESK, TAKEN_S, Deployment
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.faults.ledger import IN_FLIGHT, Ledger, witness
from tests.processes import Flower, ServiceProcess, wait_until

__all__ = ["Operated", "change_servers_under_load", "operate"]

AGENT_S = 10.0


class Operated(Deployment):
    """A deployment with beat and Flower, whose servers are changed by commands."""

    flower: Flower

    def change(self, *words: str, code: int = 0, run_dir: str | None = None) -> str:
        """A command, with its exit code. `run_dir`: of the machine that it runs on."""
        environment = {**self.workers[0].environment, "TARSY_MCP_CONFIG": self.configured}
        environment["TARSY_RUN_DIR"] = run_dir or str(self.directory / "operator")
        done = run_command("servers", *words, environment=environment)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def add(self, name: str, entry: dict[str, Any], *options: str) -> None:
        self.change("add", name, "--entry", json.dumps(entry), *options)

    def read_dashboard(self, page: str) -> str:
        with urllib.request.urlopen(f"{self.flower.url}/mcp/{page}", timeout=10) as response:
            return response.read().decode()

    def shown(self, server: str) -> str | None:
        """The health that the dashboard shows; None if the server is not there."""
        found: list[dict[str, Any]] = json.loads(self.read_dashboard("api/servers"))["servers"]
        return next((each["status"] for each in found if each["server"] == server), None)

    def wait_until_all_follow(self, server: str) -> None:
        self.wait_for(lambda record: record.healthy, server)
        wait_until(lambda: read_health(self.client, [server])[server].check, "beat has it checked", TAKEN_S)
        wait_until(lambda: self.shown(server) == "healthy", f"the dashboard shows it: {self.shown(server)}", TAKEN_S)


@contextmanager
def operate(
    start_worker: StartWorker, redis_url: str, directory: Path, *, is_recorded: bool = False
) -> Iterator[Operated]:
    """Two workers, beat and Flower on one configuration: a file, or the one in Redis."""
    with redis.Redis.from_url(redis_url) as client, ExitStack() as stack:
        deployment = Operated(start_worker, directory, client, record_url=redis_url if is_recorded else None)
        worker = deployment.workers[0]
        environment = {"TARSY_MCP_CONFIG": deployment.configured, "FLOWER_UNAUTHENTICATED_API": "true"}
        for part in ("beat", "flower"):
            (directory / part).mkdir()
        beat = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "-l", "INFO"]
        of_beat = {**worker.environment_of("beat"), "TARSY_RUN_DIR": str(directory / "beat")}
        stack.enter_context(ServiceProcess(beat, directory / "beat.log", of_beat, directory))
        environment["TARSY_RUN_DIR"] = str(directory / "flower")
        deployment.flower = stack.enter_context(Flower(directory, redis_url, (), environment))
        yield deployment


@contextmanager
def calls_in_flight(tools: ToolExecutor, name: str) -> Iterator[list[ToolResult]]:
    """As many calls as `IN_FLIGHT`, again and again until the end of the block; then the results of all."""
    results: list[ToolResult] = []
    stopping = threading.Event()

    def repeat(lane: int) -> None:
        number = 0
        while not stopping.is_set():
            arguments = {"key": f"{lane}-{number}", "wait_s": 0.3}
            results.append(tools.execute(ToolCall(id=str(lane), name=name, arguments=arguments)))
            number += 1

    with ThreadPoolExecutor(IN_FLIGHT) as lanes:
        running = [lanes.submit(repeat, lane) for lane in range(IN_FLIGHT)]
        try:
            yield results
        finally:
            stopping.set()
        for each in running:
            each.result()


def answers(tools: ToolExecutor, name: str, key: str) -> Callable[[], bool]:
    return lambda: tools.execute(ToolCall(id="1", name=name, arguments={"key": key})).outcome is Outcome.OK


def change_servers_under_load(deployment: Operated, tmp_path: Path) -> None:
    """An operator adds, changes, disables, enables and removes a server: all parts follow, and no call is lost."""
    busy, first, second = (Ledger(tmp_path / name) for name in ("busy", "first", "second"))
    deployment.add("busy", witness(busy))
    deployment.wait_for(lambda record: record.healthy, "busy")
    with ToolExecutor(timeout_s=60) as tools, calls_in_flight(tools, "busy.add") as results:
        deployment.add("guest", witness(first))
        deployment.wait_for(lambda record: record.healthy, "guest")
        wait_until(answers(tools, "guest.look", "early"), "an agent knows it", AGENT_S)
        deployment.wait_until_all_follow("guest")
        assert "/mcp/servers/guest" in deployment.read_dashboard("")

        before = {record.configuration for record in deployment.records("guest")}
        deployment.add("guest", witness(second), "--replace")
        deployment.wait_for(lambda record: record.healthy and record.configuration not in before, "guest")
        wait_until(lambda: answers(tools, "guest.look", "changed")() and second.runs()["changed"], "it has changed")

        deployment.change("disable", "guest")
        wait_until(lambda: "guest" not in {tool.server for tool in tools.list_tools()}, "an agent knows", AGENT_S)
        late = ToolCall(id="1", name="guest.look", arguments={"key": "late"})
        assert tools.execute(late).error_code is ErrorCode.UNKNOWN_SERVER
        wait_until(lambda: not deployment.records("guest"), "no worker serves it", TAKEN_S)
        wait_until(lambda: deployment.shown("guest") != "healthy", "the dashboard follows", TAKEN_S)

        deployment.change("enable", "guest")
        deployment.wait_until_all_follow("guest")
        wait_until(answers(tools, "guest.look", "enabled"), "an agent knows it again", AGENT_S)

        deployment.change("remove", "guest")
        wait_until(lambda: not deployment.records("guest"), "it is removed", TAKEN_S)
        wait_until(lambda: not deployment.client.exists(keys.check_sent_key("guest")), "beat sends no checks", TAKEN_S)
    assert not deployment.client.llen(keys.check_queue("guest"))
    assert {each.outcome for each in results} == {Outcome.OK}
    assert len(results) >= IN_FLIGHT
    assert sum(busy.runs().values()) == len(busy.runs()) == len(results), "each call ran once"
    assert not first.runs()["late"] + second.runs()["late"]
    assert {tool.server for tool in ToolExecutor(timeout_s=20).list_tools()} == {*DESK, "busy"}
