"""`tarsy-tasks demo`: a whole deployment on one machine, in under a minute, without API keys or a network."""

import json
import shlex
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.output import console, notes, print_table
from tarsy_tasks.cli.program import program
from tarsy_tasks.cli.stack import Stack, free_port

if TYPE_CHECKING:
    from tarsy_tasks.demo.agent import DemoCall
    from tarsy_tasks.telemetry.health_records import ServerHealth

__all__ = ["demo"]

T = TypeVar("T")
_START_S = 40.0
_SERVER = "tarsy_tasks.demo.server"
_PID_FILE = "desk.pid"
_IN_FLIGHT_S = 0.7
"""By then, calls that take two seconds have reached their servers and still run."""


class _DemoFailed(Exception):
    """A step did not finish; the text says which."""


@click.command()
@click.option("--keep", is_flag=True, help="Keep everything running until Ctrl-C.")
def demo(*, keep: bool) -> None:
    """Start a private deployment, run tool calls, kill the MCP servers meanwhile, show the results.

    It starts Valkey, a worker, beat, Flower and two MCP servers: `desk` over stdio and `shop` over Streamable HTTP.
    """
    with tempfile.TemporaryDirectory(prefix="tarsy-demo-") as name:
        mcp_port, flower_port = free_port(), free_port()
        path = Path(name) / "mcp.json"
        path.write_text(json.dumps(_config(mcp_port, Path(name) / _PID_FILE), indent=2))
        run_dir = str(Path(name) / "run")
        environment = {"TARSY_MCP_CONFIG": str(path), "TARSY_STARTUP": "degraded", "TARSY_RUN_DIR": run_dir}
        with Stack(environment, directory=Path(name)) as stack:
            succeeded = False
            try:
                succeeded = _run(stack, path, mcp_port, flower_port)
                if keep:
                    notes.print("Running until Ctrl-C.")
                    stack.wait()
                    succeeded = False
            except _DemoFailed as error:
                notes.print(f"The demo failed: {error}", style="red")
                for service in stack.services:
                    notes.print(f"--- last lines of {service.name}", style="bold")
                    notes.print("\n".join(service.last_lines))
            except KeyboardInterrupt:
                notes.print("stopping")
    if not succeeded:
        raise click.exceptions.Exit(FAILED)


def _config(mcp_port: int, pid_file: Path) -> dict[str, object]:
    return {
        "mcpServers": {
            "desk": {"command": sys.executable, "args": ["-m", _SERVER, "--pid-file", str(pid_file)]},
            "shop": {"url": f"http://127.0.0.1:{mcp_port}/mcp"},
        }
    }


def _run(stack: Stack, config_path: Path, mcp_port: int, flower_port: int) -> bool:
    """Run all steps; returns whether each call ended as expected."""
    import os

    with notes.status("starting Valkey, worker, beat, Flower and the HTTP server"):
        url = stack.start_valkey()
        # The agent below runs in this process.
        os.environ.update(TARSY_REDIS_URL=url, TARSY_MCP_CONFIG=str(config_path))
        stack.start("shop", sys.executable, "-m", _SERVER, "--http", str(mcp_port))
        stack.start_celery("worker", "worker", "-l", "INFO", "-c", "64", "-E")
        stack.start_celery("beat", "beat", "-l", "INFO")
        link = stack.start_flower(flower_port)

        from tarsy_tasks import ToolExecutor
        from tarsy_tasks.celery_app import agent_app
        from tarsy_tasks.demo.agent import run_async_calls, run_disturbed_calls, run_sync_calls
        from tarsy_tasks.telemetry.health_records import read_health

        with ToolExecutor(timeout_s=_START_S) as tools:
            _wait(stack, lambda: tools.list_tools() and not tools.failed_servers(), "every server lists its tools")
            found = tools.list_tools()
    console.print(f"{len(found)} tools on 2 MCP servers: {', '.join(tool.name for tool in found)}")

    started = time.monotonic()
    with notes.status("40 calls"):
        calls = run_sync_calls(["desk", "shop"]) + run_async_calls(["desk", "shop"])
    console.print(f"\n{len(calls)} calls in {time.monotonic() - started:.1f} s")
    _print_calls(calls)

    def disturb() -> None:
        time.sleep(_IN_FLIGHT_S)
        os.kill(int((config_path.parent / _PID_FILE).read_text()), signal.SIGKILL)
        stack.restart("shop")

    with notes.status("calls, while both MCP servers are killed"):
        disturbed = run_disturbed_calls(["desk", "shop"], disturb)
    again = sum(call.result.attempts > 1 for call in disturbed)
    answered = sum(call.as_expected for call in disturbed)
    console.print(
        f"\n{len(disturbed)} calls, and while they ran `desk` was killed (kill -9) and `shop` restarted: "
        f"{answered} ok, {again} of them sent again"
    )
    _print_calls(disturbed)

    with notes.status("waiting for the health checks and Flower"):
        redis = agent_app().backend.client
        health = _wait(
            stack,
            lambda: read_health(redis, ["desk", "shop"]),
            "every server is healthy again",
            is_enough=lambda records: all(health.healthy for health in records.values()),
        )
        _wait(stack, lambda: _answers(link), "the dashboard answers")
    console.print("\nHealth records in Redis")
    print_table(("server", "health", "tools", "latency"), [_health_row(each) for each in health.values()])
    console.print(f"\nDashboard: {link} (while the demo runs: {program()} demo --keep)", soft_wrap=True)
    _print_next_steps()
    return all(call.as_expected for call in calls + disturbed)


def _print_next_steps() -> None:
    """Commands that work as they stand: with the demo's stdio server, in a new directory."""
    own, config = program(), {"mcpServers": {"desk": {"command": sys.executable, "args": ["-m", _SERVER]}}}
    lines = (
        "\nNext, a deployment of your own. This one has the demo's server; write yours into mcp.json:",
        "  mkdir my-tools && cd my-tools",
        f"  echo {shlex.quote(json.dumps(config))} > mcp.json",
        f"  {own} up",
        "and in another terminal in that directory:",
        f"  {own} tools list",
        f"  {own} call desk.quote item=lamp count=2",
    )
    for line in lines:
        console.print(line)


def _wait(stack: Stack, ask: Callable[[], T], what: str, is_enough: Callable[[T], bool] = bool) -> T:
    """Ask until the answer is enough.

    Raises:
        _DemoFailed: A process ended, or the answer took too long.
    """
    deadline = time.monotonic() + _START_S
    while True:
        answer = ask()
        if answer and is_enough(answer):
            return answer
        if (service := stack.ended()) is not None:
            raise _DemoFailed(f"{service.name} ended with code {service.process.returncode}")
        if time.monotonic() > deadline:
            raise _DemoFailed(f"not reached within {_START_S:g} s: {what}")
        time.sleep(0.1)


def _answers(link: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    try:
        with opener.open(link, timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _print_calls(calls: "list[DemoCall]") -> None:
    rows: dict[tuple[str, str], list[DemoCall]] = {}
    for call in calls:
        rows.setdefault((call.mode, call.group.kind), []).append(call)
    print_table(
        ("agent", "kind", "calls", "outcome", "slowest", "text for the model"),
        [
            (
                mode,
                kind,
                str(len(group)),
                ", ".join(
                    f"{count} {outcome}" for outcome, count in Counter(one.result.outcome for one in group).items()
                ),
                f"{max(one.result.duration_s for one in group):.2f} s",
                " ".join(group[0].result.content.split())[:70],
            )
            for (mode, kind), group in rows.items()
        ],
    )
    for call in calls:
        if not call.as_expected:
            notes.print(f"expected {call.group.expected}, got {call.result!r} {call.result.content}", style="red")


def _health_row(health: "ServerHealth") -> tuple[str, ...]:
    latency = f"{health.latency_s * 1000:.0f} ms" if health.latency_s is not None else ""
    return (health.server, health.status, str(health.tool_count), latency)
