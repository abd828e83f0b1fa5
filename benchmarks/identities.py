"""Whose session and whose credential a call gets, under faults; and what a call of an isolated session costs.

- A thousand runs, each with a session of its own, over four workers; then their agents are killed.
- Calls of a hundred agents, each with a credential of its own, over sessions that they share with nobody, sessions of
  their runs, and the cache, while workers are killed and stopped, sessions forgotten, credentials replaced, and
  connections to Redis cut.
- The CPU of a call over a warm session of a run, and over the shared one, which alternate in short rounds.

The MCP server writes down whom it saw in whose session: `python benchmarks/identities.py`.
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import redis
from figures import Figures, Load, Pids, find_median, measure
from report import Report, build_parser

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolResult
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.servers.keyed import keyed
from tests.valkey import Valkey

WORKERS = 4
LEASE = 'broker_transport_options = {"visibility_timeout": 4}\n'
SHARED = "key-deployment-0123456789abcdef"
OF_AGENT = "Bearer ${agent:TOKEN}"
LOADS = (Load(1, 200), Load(8, 400), Load(64, 800))
SMOKE_LOADS = (Load(8, 16),)
MOST = 100_000
OPENED_AT_ONCE = 32
IDLE_S, SMOKE_IDLE_S = 90, 10
"""Longer than the runs take to be used once in turn."""
RUN_CALLS = 12
FAULTS = ("kill", "forget", "credentials", "connections", "stop")


class Server:
    """The MCP server, in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).absolute()), "--serve"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.url = f"{self.ask()['url']}/mcp"

    def ask(self, **orders: Any) -> dict[str, Any]:
        """What it has seen, after these orders: `tokens` that it takes now, or sessions to `forget`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(orders), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    with keyed() as server:
        for line in sys.stdin:
            orders = json.loads(line)
            with server.lock:
                server.tokens |= set(orders.get("tokens", ()))
                for session in random.sample(sorted(server.owners), min(len(server.owners), orders.get("forget", 0))):
                    del server.owners[session]
                seen = {"url": server.url, "crossed": server.crossed, "open": len(server.owners)}
            print(json.dumps({**seen, "opened": server.opened.total()}), flush=True)


class Deployment:
    """Workers that can be replaced, on one Redis."""

    def __init__(self, directory: Path, servers: Mapping[str, Any], agents: Sequence[str] = ()) -> None:
        self._directory = directory
        self._servers = servers
        self._stack = ExitStack()
        self._started = 0
        users = tuple(AgentUser(name, tuple(servers)) for name in agents)
        self.valkey = self._stack.enter_context(Valkey(agents=users))
        self.redis = self._stack.enter_context(closing(redis.Redis.from_url(url_of(self.valkey.port))))
        self.secrets = directory / "agents"
        self.secrets.mkdir()
        self.workers: list[Worker] = []

    def start(self, count: int) -> None:
        new = [self._start() for _ in range(count)]
        for worker in new:
            worker.wait_until_ready()
        self.workers += new

    def _start(self) -> Worker:
        self._started += 1
        directory, name = self._directory / f"w{self._started}", f"w{self._started}"
        environment = {"TARSY_AGENT_SECRETS": str(self.secrets)}
        url = url_of(self.valkey.port)
        worker = Worker(directory, dict(self._servers), url, settings=LEASE, name=name, environment=environment)
        return self._stack.enter_context(worker)

    def give(self, agent: str, token: str) -> None:
        """The agent's credential from now on."""
        (self.secrets / agent).mkdir(exist_ok=True)
        path = self.secrets / agent / "new"
        path.touch(0o600)
        path.write_text(token)
        path.rename(self.secrets / agent / "TOKEN")

    def close(self) -> None:
        self._stack.close()


def check(is_right: bool, *found: str) -> None:
    """End the benchmark with what was found, if that is wrong."""
    if not is_right:
        raise SystemExit("\n".join(found))


# A thousand runs.


async def open_runs(count: int, url: str) -> Counter[str]:
    """Open a session for each of so many runs, and use all of them again; returns what they said."""
    seen: Counter[str] = Counter()
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        runs = [AsyncToolExecutor(["web"], session="run", timeout_s=300, app=app) for _ in range(count)]
        slots = asyncio.Semaphore(OPENED_AT_ONCE)
        for _ in range(3):

            async def use(tools: AsyncToolExecutor) -> None:
                async with slots:
                    seen[(await tools.execute("web.whoami")).content] += 1

            await asyncio.gather(*map(use, runs))
        print(json.dumps(seen), flush=True)
        await asyncio.Event().wait()  # it is killed
    return seen


def play_runs(directory: Path, server: Server, count: int, idle_s: int) -> list[str]:
    server.ask(tokens=[SHARED])
    bounds = {"max_per_worker": count, "max_sessions": count, "max_per_agent": count, "idle_s": idle_s}
    entry = {"url": server.url, "headers": {"Authorization": f"Bearer {SHARED}"}, "isolated": bounds}
    with closing(Deployment(directory, {"web": entry})) as deployment:
        deployment.start(WORKERS)
        wait_until(lambda: server.ask()["open"] == WORKERS, "each worker has opened its shared session")
        began = time.monotonic()
        with environment_of(deployment.workers[0]):
            command = [sys.executable, str(Path(__file__).absolute()), "--runs", str(count // WORKERS)]
            agents = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)]
            seen: Counter[str] = Counter()
            for agent in agents:
                assert agent.stdout is not None
                seen += Counter(json.loads(agent.stdout.readline()))
        seconds, found = time.monotonic() - began, server.ask()
        holders = Counter(deployment.redis.hget(key, "holder") for key in deployment.redis.keys("tarsy:session:*"))
        for agent in agents:
            agent.kill()
            agent.wait()
        killed = time.monotonic()
        wait_until(lambda: server.ask()["open"] <= WORKERS, "all sessions are closed", 20 * idle_s)
        closed_s = time.monotonic() - killed
        left = [key for key in deployment.redis.keys("tarsy:session:*") if deployment.redis.hget(key, "holder")]
        left += deployment.redis.zrange("tarsy:sessions:web", 0, -1)
    expected = Counter({f"deployment {number}": count // WORKERS * WORKERS for number in (1, 2, 3)})
    crossed = sum((seen - expected).values()) + len(found["crossed"])
    check(seen == expected and not crossed and not left, f"answers: {seen}", f"left behind: {left}")
    return [
        (
            f"{found['open'] - WORKERS} sessions of runs at once in {len(holders)} workers, each used three times, in "
            f"{seconds:.0f} s: {crossed} crossed"
        ),
        (
            f"after their agents were killed, and {idle_s} s without a call: all closed within {closed_s:.0f} s, "
            f"{len(left)} left behind"
        ),
    ]


# A hundred identities.


class Tally:
    """What answers said, of so many calls, or of as many as there are in so many seconds."""

    def __init__(self, most: int, limit_s: float) -> None:
        self.most, self.until = most, time.monotonic() + limit_s
        self.calls = self.repeated = 0
        self.endings: Counter[str] = Counter()
        self.crossed: list[str] = []

    @property
    def is_complete(self) -> bool:
        return self.calls >= self.most or time.monotonic() >= self.until

    def note(self, agent: str, kind: str, result: ToolResult, at_least: int = 0) -> None:
        """An answer; `at_least` as many calls must have been counted in its session. It may be more: after a fault,
        what only reads is sent again."""
        self.calls += 1
        self.endings[f"{result.error_code or result.outcome}"] += 1
        if result.outcome is Outcome.OK:
            owner, _, counted = result.content.partition(" ")
            self.repeated += bool(at_least) and int(counted) > at_least
            if owner != agent or (at_least and int(counted) < at_least):
                self.crossed.append(f"{agent}, {kind}: {result.content}, expected at least {at_least}")


async def be_agent(agent: str, app: TarsyApp, tally: Tally) -> None:
    """Make calls of all kinds until there were enough of all agents."""
    chance = random.Random(agent)
    async with AsyncToolExecutor(["web"], timeout_s=120, app=app) as tools:
        while not tally.is_complete:
            for _ in range(2 * RUN_CALLS):
                kind = chance.choice(("whoami", "mine", "mine"))
                tally.note(agent, kind, await tools.execute(f"web.{kind}"))
            await play_run(agent, app, tally)


async def play_run(agent: str, app: TarsyApp, tally: Tally) -> None:
    """A run, whose session counts its calls. Where its state is gone, that is said, and the count begins again."""
    counted = 0
    async with AsyncToolExecutor(["web"], session="run", timeout_s=120, app=app) as run:
        for _ in range(RUN_CALLS):
            result = await run.execute("web.whoami")
            tally.note(agent, "run", result, counted + 1)
            if result.outcome is Outcome.OK:
                counted = int(result.content.split()[1])
            elif result.error_code is ErrorCode.SESSION_LOST:
                counted = 0
            elif result.outcome not in (Outcome.UNAVAILABLE, Outcome.REJECTED):
                return  # it may have been counted


class Faults:
    """What goes wrong, one after the other."""

    def __init__(self, deployment: Deployment, server: Server, agents: Sequence[str]) -> None:
        self.played: Counter[str] = Counter()
        self._deployment = deployment
        self._server = server
        self._agents = agents

    async def play(self, tally: Tally, each: int) -> None:
        """One after each so many calls."""
        while not tally.is_complete:
            await asyncio.sleep(0.1)
            number = self.played.total()
            if tally.calls >= (number + 1) * each:
                fault = FAULTS[number % len(FAULTS)]
                await asyncio.to_thread(getattr(self, f"_{fault}"))
                self.played[fault] += 1

    def _kill(self) -> None:
        worker = self._deployment.workers.pop(0)
        worker.process.kill()
        worker.process.wait()
        self._deployment.start(1)

    def _stop(self) -> None:
        self._deployment.start(1)
        self._deployment.workers.pop(0).stop()

    def _forget(self) -> None:
        self._server.ask(forget=self._server.ask()["open"] // 4)

    def _credentials(self) -> None:
        new = {agent: f"key-{agent}-{time.time_ns():024}" for agent in self._agents[:: len(FAULTS)]}
        self._server.ask(tokens=[*new.values()])
        for agent, token in new.items():
            self._deployment.give(agent, token)

    def _connections(self) -> None:
        self._deployment.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self._deployment.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def play_identities(directory: Path, server: Server, agents: Sequence[str], calls: int, limit_s: float) -> list[str]:
    entry = {
        "url": server.url,
        "headers": {"Authorization": OF_AGENT},
        "cache": {"tools": {"mine": 5}},
        "isolated": {"max_per_worker": 500, "max_sessions": 1000},
        "agent_credentials": {"max_sessions": len(agents)},
    }
    with closing(Deployment(directory, {"web": entry}, agents)) as deployment, ExitStack() as stack:
        tokens = {agent: f"key-{agent}-{0:024}" for agent in agents}
        server.ask(tokens=[*tokens.values()])
        for agent, token in tokens.items():
            deployment.give(agent, token)
        deployment.start(WORKERS)
        stack.enter_context(environment_of(deployment.workers[0]))
        urls = [url_of(deployment.valkey.port, agent) for agent in agents]
        apps = [stack.enter_context(closing(build_app({"broker_url": url, "result_backend": url}))) for url in urls]
        tally, faults, began = Tally(calls, limit_s), Faults(deployment, server, agents), time.monotonic()

        async def run() -> None:
            every = [be_agent(agent, app, tally) for agent, app in zip(agents, apps, strict=True)]
            await asyncio.gather(*every, faults.play(tally, max(calls // (6 * len(FAULTS)), 1)))

        asyncio.run(run())
        found = server.ask()
    check(not tally.crossed and not found["crossed"], *tally.crossed[:20], *found["crossed"][:20])
    seconds = time.monotonic() - began
    endings = ", ".join(f"{count} {ending}" for ending, count in tally.endings.most_common())
    return [
        (
            f"{tally.calls} calls of {len(agents)} agents in {seconds:.0f} s, {found['opened']} sessions: "
            f"{len(tally.crossed)} answers and {len(found['crossed'])} requests crossed; {tally.repeated} calls, "
            "which only read, were sent again"
        ),
        f"faults: {', '.join(f'{count} × {fault}' for fault, count in faults.played.items()) or 0}",
        f"endings: {endings}",
    ]


# What it costs.


def measure_costs(
    directory: Path, server: Server, workers: int, loads: Sequence[Load], rounds: int
) -> list[list[str | float]]:
    """Of each load, for agents of both kinds: the CPU of both kinds of calls, and their ratio."""
    server.ask(tokens=[SHARED])
    entry = {"url": server.url, "headers": {"Authorization": f"Bearer {SHARED}"}}
    with closing(Deployment(directory, {"web": entry}, ["bound"])) as deployment, ExitStack() as stack:
        deployment.start(workers)
        redis_pid = deployment.redis.info("server")["process_id"]
        pids = [worker.pid for worker in deployment.workers]
        roles: Mapping[str, Pids] = {"workers": lambda: pids, "Redis": lambda: [redis_pid]}
        stack.enter_context(environment_of(deployment.workers[0]))
        rows: list[list[str | float]] = []
        for kind, user in (("any agent", "agent"), ("bound agent", "bound")):
            url = url_of(deployment.valkey.port, user)
            app = stack.enter_context(closing(build_app({"broker_url": url, "result_backend": url})))
            rows += [[kind, *row] for row in asyncio.run(compare(app, roles, loads, rounds))]
    return rows


async def compare(
    app: TarsyApp, roles: Mapping[str, Pids], loads: Sequence[Load], rounds: int
) -> list[list[str | float]]:
    rows: list[list[str | float]] = []
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(AsyncToolExecutor(["web"], timeout_s=60, app=app))
        run = await stack.enter_async_context(AsyncToolExecutor(["web"], session="run", timeout_s=60, app=app))

        async def ask(tools: AsyncToolExecutor) -> None:
            (await tools.execute("web.mine")).raise_for_outcome()

        calls = [partial(ask, shared), partial(ask, run)]
        for load in loads:
            found = [[await measure(call, load, roles) for call in calls] for _ in range(rounds)]
            plain, own = (find_median(each) for each in zip(*found, strict=True))
            ratio = statistics.median(cpu_ms(each) / cpu_ms(of_all) for of_all, each in found)
            rows.append([str(load), cpu_ms(plain), cpu_ms(own), ratio, plain.p50_ms, own.p50_ms])
    return rows


def cpu_ms(figures: Figures) -> float:
    return sum(figures.cpu_ms.values())


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--serve", action="store_true", help="be the MCP server")
    parser.add_argument("--runs", type=int, help="be an agent with so many runs")
    parser.add_argument("--calls", type=int, default=MOST, help=f"of all agents together (default {MOST})")
    parser.add_argument("--limit", type=float, default=1080, help="seconds until they end, for all (default 1080)")
    parser.add_argument("--costs", action="store_true", help="measure the CPU of a call only")
    options, began = parser.parse_args(), time.monotonic()
    if options.serve:
        serve()
        return
    if options.runs:
        asyncio.run(open_runs(options.runs, os.environ["TARSY_REDIS_URL"]))
        return
    runs, identities, calls = (40, 5, 400) if options.smoke else (1000, 100, options.calls)
    rounds, loads = (1, SMOKE_LOADS) if options.smoke else (7, LOADS)
    report = Report("identities")
    head = ["agent", "in flight", "CPU ms, shared", "CPU ms, of a run", "ratio", "p50 ms, shared", "p50 ms, of a run"]
    with tempfile.TemporaryDirectory() as name, closing(Server()) as server:
        places = iter(range(100))

        def folder() -> Path:
            path = Path(name) / str(next(places))
            path.mkdir()
            return path

        for workers in (1, WORKERS):
            report.add_heading(f"The CPU of a call, {workers} worker{'s' * (workers > 1)}")
            report.add_table(head, measure_costs(folder(), server, workers, loads, rounds))
        if options.costs:
            report.finish(options)
            return
        report.add_heading("Sessions of runs")
        report.add_list(*play_runs(folder(), server, runs, SMOKE_IDLE_S if options.smoke else IDLE_S))
        report.add_heading("Credentials of agents")
        agents = [f"agent{number:03}" for number in range(identities)]
        left_s = options.limit - (time.monotonic() - began)
        report.add_list(*play_identities(folder(), server, agents, calls, left_s))
    report.finish(options)


if __name__ == "__main__":
    main()
