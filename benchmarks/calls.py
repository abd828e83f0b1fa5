"""What a tool call costs: the bare SDK, a stock Celery task that does nothing, taskiq with a shared session, this
package and a connection per call, side by side in one run.

Prints calls per second, latencies and the CPU per call of every process, over stdio and Streamable HTTP, and the ratios
that the project holds itself to. The contestants alternate in short rounds, and a ratio is the median of the ratios
within each round, so that a machine whose speed drifts does not decide. `--gate` measures only what CI compares with
the recorded ratios, and fails if a call has become dearer. It starts everything it needs and leaves nothing behind:
`python benchmarks/calls.py`.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from contestants import TRANSPORTS, Contestant, enter_contestants
from figures import Figures, Load, find_median, measure
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from report import ROOT, Report, build_parser, read_commit

from tarsy_tasks import AsyncToolExecutor
from tests.processes import DEMO_SERVER

CROWD = Load(256, 256)
LOADS = (Load(1, 16), Load(8, 32), Load(64, 64), CROWD, Load(8, 24, in_turns=True))
SMOKE_LOADS = (Load(1, 4), Load(8, 8))
GATE_LOADS = (Load(8, 192), Load(64, 192))
GATE_ROUNDS = 7
GATE_LIMIT = 1.3
RECORDED = ROOT / "benchmarks" / "recorded.json"
"""The figures that CI and the tests compare with, as `--write` left them."""
COUNTS = ROOT / "tests" / "data" / "call_counts.json"

Round = Mapping[tuple[str, str], Figures]
"""Of one load, by contestant and MCP server."""
Rounds = Mapping[Load, Sequence[Round]]


async def run_rounds(contestants: Sequence[Contestant], loads: Sequence[Load], count: int) -> Rounds:
    found: dict[Load, list[Round]] = {load: [] for load in loads}
    for number in range(count):
        for load in loads:
            # A crowd takes as long as all other loads together.
            if load is not CROWD or number % 3 == 0:
                found[load].append(await run_round(contestants, load))
    return found


async def run_round(contestants: Sequence[Contestant], load: Load) -> Round:
    return {(each.name, each.server): await measure(each.call, each.load or load, each.roles) for each in contestants}


def compare_cpu(found: Round, server: str, name: str = "tarsy-tasks") -> float:
    """The worker's CPU per call ÷ (stock noop's worker + bare SDK)."""
    bar = found["stock noop", ""].cpu_ms["worker"] + found["bare SDK", server].cpu_ms["client"]
    return found[name, server].cpu_ms["worker"] / bar


def compare_rate(found: Round, server: str, name: str) -> float:
    bar = found[name, "" if name == "stock noop" else server]
    return found["tarsy-tasks", server].per_s / bar.per_s


RATIOS: dict[str, Callable[[Round, str], float]] = {
    "worker CPU ÷ (noop + SDK)": compare_cpu,
    "the same of taskiq": lambda found, server: compare_cpu(found, server, "taskiq"),
    "calls/s ÷ noop": lambda found, server: compare_rate(found, server, "stock noop"),
    "calls/s ÷ SDK": lambda found, server: compare_rate(found, server, "bare SDK"),
    "calls/s ÷ taskiq": lambda found, server: compare_rate(found, server, "taskiq"),
    "agent CPU ÷ `delay().get()`": lambda found, server: (
        found["tarsy-tasks", server].cpu_ms["client"] / found["delay().get()", ""].cpu_ms["client"]
    ),
}


def find_ratio(ratio: Callable[[Round, str], float], rounds: Sequence[Round], server: str) -> float:
    return statistics.median(ratio(found, server) for found in rounds)


def add_tables(report: Report, rounds: Rounds, server: str) -> None:
    report.add_table(
        ["ratio", *map(str, rounds)],
        [[name, *(find_ratio(ratio, found, server) for found in rounds.values())] for name, ratio in RATIOS.items()],
    )
    report.add_table(
        ["in flight", "", "calls/s", "p50 ms", "p95 ms", "CPU ms per call"],
        [
            build_row(load, name, find_median(each[name, where] for each in found))
            for number, (load, found) in enumerate(rounds.items())
            for name, where in found[0]
            if where in ("", server) and (number == 0 or name != "delay().get()")
        ],
    )


def build_row(load: Load, name: str, figures: Figures) -> list[str | float]:
    cpu = ", ".join(f"{role} {cpu_ms:.2f}" for role, cpu_ms in figures.cpu_ms.items())
    return [str(load), name, figures.per_s, figures.p50_ms, figures.p95_ms, cpu]


async def find_gate_ratios(contestants: Sequence[Contestant]) -> dict[str, float]:
    """What CI compares with the record: by how many calls are in flight, a worker's CPU over stdio."""
    needed = {("bare SDK", "stdio"), ("stock noop", ""), ("tarsy-tasks", "stdio")}
    chosen = [each for each in contestants if (each.name, each.server) in needed]
    rounds = await run_rounds(chosen, GATE_LOADS, GATE_ROUNDS)
    return {str(load): round(find_ratio(compare_cpu, found, "stdio"), 3) for load, found in rounds.items()}


SLOW = {"seconds": 1, "steps": 1}


async def time_slow_calls(calls: int) -> tuple[float, float]:
    """Seconds for so many calls of 1 s, all in flight at once; and those of the bare SDK, with a server of its own."""
    async with AsyncToolExecutor(timeout_s=60) as tools:
        started = time.perf_counter()
        results = await tools.execute_many([("stdio.wait", SLOW)] * calls)
        ours_s = time.perf_counter() - started
    assert all(not result.is_error for result in results), {result.content for result in results}
    async with Client(StdioServerParameters(**DEMO_SERVER)) as client:
        started = time.perf_counter()
        answers = await asyncio.gather(*(client.call_tool("wait", SLOW) for _ in range(calls)))
        bare_s = time.perf_counter() - started
    assert not any(answer.is_error for answer in answers)
    return ours_s, bare_s


async def check_gate(directory: Path) -> None:
    """Fail if a call costs much more than is recorded."""
    async with enter_contestants(directory, all_of_them=False) as contestants:
        found = await find_gate_ratios(contestants)
    recorded = json.loads(RECORDED.read_text())["worker_cpu"]
    for load, ratio in found.items():
        print(f"{load} in flight: worker CPU {ratio:.2f} × (noop + SDK), recorded {recorded[load]:.2f}")
    if any(ratio > GATE_LIMIT * recorded[load] for load, ratio in found.items()):
        raise SystemExit(f"a call costs more than {GATE_LIMIT} × what is recorded in {RECORDED.name}")


async def compare(directory: Path, report: Report, options: argparse.Namespace) -> None:
    loads, rounds, slow_calls = (SMOKE_LOADS, 1, 8) if options.smoke else (LOADS, options.rounds, 500)
    async with enter_contestants(directory) as contestants:
        connecting = [each for each in contestants if each.name == "connect per call"]
        connected = await run_round(connecting, Load(1, 1))
        found = await run_rounds([each for each in contestants if each not in connecting], loads, rounds)
        slow = [await time_slow_calls(slow_calls) for _ in range(min(rounds, 3))]
        if options.write:
            record(await find_gate_ratios(contestants))
    for server, transport in TRANSPORTS.items():
        report.add_heading(f"Over {transport}")
        add_tables(report, found, server)
        figures = connected["connect per call", server]
        report.add_list(f"a connection per call: {figures.p50_ms:.0f} ms and {figures.cpu_ms['client']:.0f} ms of CPU")
    slow_s, bare_slow_s = map(statistics.median, zip(*slow, strict=True))
    report.add_list(
        f"{slow_calls} calls of 1 s, all in flight: on one worker {slow_s:.2f} s, with the bare SDK {bare_slow_s:.2f} s"
    )
    report.finish(options)


def record(gate_ratios: dict[str, float]) -> None:
    """Write down what the gate and the tests compare with."""
    recorded = {
        "commit": read_commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "worker_cpu": gate_ratios,
        "counts": json.loads(COUNTS.read_text()),
    }
    RECORDED.write_text(json.dumps(recorded, indent=2) + "\n")


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is measured (default 3)")
    parser.add_argument("--gate", action="store_true", help="fail if a call has become dearer than recorded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.gate:
            asyncio.run(check_gate(Path(name)))
        else:
            asyncio.run(compare(Path(name), Report("calls"), options))


if __name__ == "__main__":
    main()
