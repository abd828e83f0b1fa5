"""What it costs to start a stdio server in a sandbox: the CPU time of all its processes until it has answered
`initialize`, without a sandbox and in one, taking turns. `python benchmarks/sandbox.py`.

CPU time rather than the time on the clock: the processors of a machine that does something else are shared.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from report import Report, build_parser

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks.config import Sandbox
from tarsy_tasks.worker.transport.sandbox.preparation import in_sandbox
from tarsy_tasks.worker.transport.stdio import StdioCommand
from tests.npm import npm_server

_CLIENT: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}
_INITIALIZE = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _CLIENT}) + "\n"


def start(command: StdioCommand) -> float:
    """The CPU time of one start, in milliseconds."""
    process = subprocess.Popen(
        [command.command, *command.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**command.env},
        cwd=command.cwd,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(_INITIALIZE.encode())
    process.stdin.flush()
    assert b"serverInfo" in process.stdout.readline(), "it did not answer"
    process.stdin.close()
    process.stdout.close()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return (used.ru_utime + used.ru_stime) * 1000


async def measure(command: StdioCommand, sandbox: Sandbox, rounds: int) -> tuple[list[float], list[float]]:
    """Without a sandbox, and in one."""
    without, within = [], []
    for _ in range(rounds + 1):
        without.append(await asyncio.to_thread(start, command))
        async with in_sandbox("desk", sandbox, command) as prepared:
            within.append(await asyncio.to_thread(start, prepared))
    return without[1:], within[1:]  # the first start fills caches


def build_servers(folder: str) -> dict[str, tuple[list[str], list[str]]]:
    """The command of each server, and what it has to read."""
    python, package = [sys.executable, "-m", "tarsy_tasks.demo.server"], str(Path(__file__).parent.parent)
    servers = {"the demo's server (Python)": (python, [package])}
    for name in ("server-memory", "server-everything", "server-filesystem"):
        command = npm_server(name)
        modules = str(Path(command[1]).parents[4])
        servers[f"{name} (npm)"] = ([*command, folder] if name == "server-filesystem" else command, [modules])
    return servers


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="starts of each kind (default 20)")
    options = parser.parse_args()
    rounds = 1 if options.smoke else options.rounds
    report = Report("sandbox")
    rows: list[tuple[str, float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (command, read) in build_servers(folder).items():
            sandbox = Sandbox.model_validate({"read": read, "write": [folder]})
            plain = StdioCommand(command[0], command[1:], dict(os.environ), folder, 1_000_000)
            without, within = asyncio.run(measure(plain, sandbox, rounds))
            ratio = statistics.median(after / before for before, after in zip(without, within, strict=True))
            rows.append((name, statistics.median(without), statistics.median(within), ratio))
    report.add_table(["server", "CPU ms without a sandbox", "in one", "ratio"], rows)
    report.finish(options)


if __name__ == "__main__":
    main()
