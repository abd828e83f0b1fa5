"""What one noisy agent costs the others, and what a poll costs with many agents.

First: three agents make calls as they always do, and a fourth one wants nothing, its share, or 100 times its share of
the server. Each has a user of its own in Redis, and so a queue of its own. Then: what a look at the agents' queues
costs Redis with one agent that has waiting calls, and with 10 000. `python benchmarks/shares.py`.
"""

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import redis
from report import Report, build_parser

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' processes

from tarsy_tasks import AsyncToolExecutor, ToolCall
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.shares import declare_fair_fetch
from tarsy_tasks.celery_app import build_app
from tests.processes import DEMO_SERVER, Worker, environment_of
from tests.redis_users import url_of
from tests.valkey import Valkey

WORKERS = 2
SLOTS = 16
"""Of each worker."""
OTHERS = ("sre", "dev", "ops")
IN_FLIGHT = 4
"""Of each of the others: half of its share, so that without the noisy agent nobody waits for a slot."""
SHARE = WORKERS * SLOTS // (len(OTHERS) + 1)
CALLS = {
    "calls of 0.2 s": ToolCall(name="desk.wait", arguments={"seconds": 0.2, "steps": 1}),
    "calls that only cost CPU": ToolCall(name="desk.echo", arguments={"text": "hello"}),
}
NOISES = {"nothing": 0, "its share": SHARE, "100 × its share": 100 * SHARE}
"""How many calls the noisy agent has in flight, waiting or running."""
SET, SHARED = keys.agents_key("desk"), keys.queue("desk")


@dataclass(frozen=True)
class Figures:
    """Of the calls of the others, and of the noisy agent."""

    p50_ms: float
    p95_ms: float
    per_s: float
    noisy_per_s: float


@contextmanager
def calling(port: int, agent: str) -> Iterator[AsyncToolExecutor]:
    url = url_of(port, agent)
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        yield AsyncToolExecutor(["desk"], timeout_s=120, app=app)


async def repeat(tools: AsyncToolExecutor, call: ToolCall, in_flight: int, found: list[tuple[float, float]]) -> None:
    """Keep so many calls in flight until it is cancelled. `found` gets when each was answered, and the seconds that it
    took."""

    async def make_calls() -> None:
        while True:
            started = time.monotonic()
            (await tools.execute(call)).raise_for_outcome()
            ended = time.monotonic()
            found.append((ended, ended - started))

    await asyncio.gather(*(make_calls() for _ in range(in_flight)))


def make_noise(port: int, call: ToolCall, in_flight: int, is_loud: Event, is_over: Event, answered: Any) -> None:
    """A process of its own: what its agent has to do must not delay the others."""

    async def main() -> None:
        with calling(port, "noisy") as tools:
            found: list[tuple[float, float]] = []
            async with tools:
                (await tools.execute(call)).raise_for_outcome()
                noise = asyncio.create_task(repeat(tools, call, in_flight, found))
                await asyncio.sleep(2)  # to send them all
                before = len(found)
                is_loud.set()
                await asyncio.to_thread(is_over.wait)
                answered.value = len(found) - before
                noise.cancel()
                await asyncio.wait([noise])

    asyncio.run(main())


@contextmanager
def noise(port: int, call: ToolCall, in_flight: int) -> Iterator[Any]:
    """The noisy agent, from when it is at its worst; how many of its calls were answered until the end of the block."""
    context = multiprocessing.get_context("spawn")
    answered: Any = context.Value("i", 0)
    if not in_flight:
        yield answered
        return
    is_loud, is_over = context.Event(), context.Event()
    process = context.Process(target=make_noise, args=(port, call, in_flight, is_loud, is_over, answered))
    process.start()
    try:
        assert is_loud.wait(60), "the noisy agent makes no calls"
        yield answered
    finally:
        is_over.set()
        process.join()


async def measure(port: int, call: ToolCall, seconds: float) -> list[float]:
    """The seconds that each call of the others took that was answered meanwhile."""
    found: list[tuple[float, float]] = []
    with ExitStack() as stack:
        agents = [stack.enter_context(calling(port, name)) for name in OTHERS]
        tasks = [asyncio.create_task(repeat(tools, call, IN_FLIGHT, found)) for tools in agents]
        await asyncio.sleep(1)  # connecting is not part of it
        began = time.monotonic()
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for tools in agents:
            await tools.close()
    return sorted(took for ended, took in found if ended >= began)


def run_round(port: int, admin: Any, call: ToolCall, seconds: float) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for name, in_flight in NOISES.items():
        with noise(port, call, in_flight) as answered:
            before = time.monotonic()
            latencies = asyncio.run(measure(port, call, seconds))
            took_s = time.monotonic() - before
        found[name] = Figures(
            statistics.median(latencies) * 1000,
            latencies[int(len(latencies) * 0.95) - 1] * 1000,
            len(latencies) / seconds,
            answered.value / took_s,
        )
        while admin.zcard(keys.LEASES) or admin.exists(keys.agent_queue("desk", "noisy")):
            time.sleep(0.05)
    return found


def add_noise(report: Report, directory: Path, rounds: int, seconds: float) -> None:
    users = tuple(AgentUser(name, ("desk",)) for name in (*OTHERS, "noisy"))
    with Valkey(agents=users) as valkey, ExitStack() as stack:
        entry = {**DEMO_SERVER, "max_concurrency": SLOTS}
        workers = [
            stack.enter_context(Worker(directory / f"w{n}", {"desk": entry}, url_of(valkey.port), name=f"w{n}"))
            for n in range(WORKERS)
        ]
        for worker in workers:
            worker.wait_until_ready()
        stack.enter_context(environment_of(workers[0]))
        admin = stack.enter_context(closing(redis.Redis.from_url(url_of(valkey.port))))
        found = {
            what: [run_round(valkey.port, admin, call, seconds) for _ in range(rounds)] for what, call in CALLS.items()
        }
    head = ["the noisy agent wants", "p50 ms", "p95 ms", "p95 ÷ without it", "calls/s", "its calls/s"]
    for what, each in found.items():
        report.add_heading(f"{what[0].upper()}{what[1:]}")
        report.add_table(head, [build_row(name, each) for name in NOISES])


def build_row(name: str, rounds: Sequence[dict[str, Figures]]) -> list[str | float]:
    """The medians; a ratio is the median of the ratios within each round."""
    return [
        name,
        statistics.median(each[name].p50_ms for each in rounds),
        statistics.median(each[name].p95_ms for each in rounds),
        statistics.median(each[name].p95_ms / each["nothing"].p95_ms for each in rounds),
        statistics.median(each[name].per_s for each in rounds),
        statistics.median(each[name].noisy_per_s for each in rounds),
    ]


class Polls:
    """Looks at the agents' queues as the fetch of a worker makes them, with no worker.

    Args:
        port: Of a Redis of its own.
    """

    def __init__(self, port: int) -> None:
        self._admin: Any = redis.Redis.from_url(url_of(port))
        pool: Any = redis.ConnectionPool.from_url(url_of(port), client_name="polls", max_connections=1)
        self._exchange = RedisExchange(pool)
        self._fetch = declare_fair_fetch({})
        self._number = 0

    def close(self) -> None:
        self._exchange.close_idle()
        self._admin.close()

    def fill(self, agents: int, calls: int) -> None:
        """So many agents have as many calls each; workers know of all of them."""
        self._admin.flushdb()
        with self._admin.pipeline(transaction=False) as pipeline:
            for n in range(agents):
                pipeline.lpush(keys.agent_queue("desk", f"agent{n}"), *(self._build_text() for _ in range(calls)))
                pipeline.sadd(SET, f"agent{n}")
            pipeline.execute()
        while self._admin.scard(SET):
            self.look(1)

    def _build_text(self) -> str:
        self._number += 1
        headers = {"task": "tarsy.call_tool", "id": f"{self._number:036}"}
        return json.dumps({"body": "x" * 200, "headers": headers, "properties": {"delivery_tag": f"{self._number}"}})

    def look(self, room: int) -> int:
        """How many messages it brings."""
        names, limits = (SET, SHARED), f"{room} {room}"
        return len(self._fetch.run(self._exchange, *names, limits=limits, checks=0, room=room, kept=0, instance=""))

    def measure(self, polls: int, room: int) -> list[float]:
        """Per poll: messages, commands that Redis executes, bytes to it and from it, its time in ms; and the longest
        time of one poll."""
        before, messages, longest_us = self._read(), 0, 0.0
        for _ in range(polls):
            started = self._read_time_us()
            messages += self.look(room)
            longest_us = max(longest_us, self._read_time_us() - started)
        spent = [after - earlier for after, earlier in zip(self._read(), before, strict=True)]
        commands, sent, received, took_us = (each / polls for each in spent)
        return [messages / polls, commands, sent, received, took_us / 1000, longest_us / 1000]

    def _read(self) -> list[float]:
        info: dict[str, Any] = self._admin.info("commandstats")
        commands = sum(each["calls"] for name, each in info.items() if name not in _NOT_OF_POLLS)
        [client] = [each for each in self._admin.client_list() if each["name"] == "polls"]
        return [commands, int(client["tot-net-in"]), int(client["tot-net-out"]), self._read_time_us(info)]

    def _read_time_us(self, info: dict[str, Any] | None = None) -> float:
        info = info or self._admin.info("commandstats")
        return sum(each["usec"] for name, each in info.items() if name in ("cmdstat_evalsha", "cmdstat_eval"))


_NOT_OF_POLLS = ("cmdstat_info", "cmdstat_client|list")


def add_polls(report: Report, agents: int, polls: int) -> None:
    rows: list[list[str | float]] = []
    with Valkey() as valkey, closing(Polls(valkey.port)) as looking:
        for count in (1, agents):
            for room in (1, 16):
                looking.fill(count, calls=max(2, (polls + 20) * room // count + 1))
                looking.look(room)
                rows.append([f"{count}", f"{room}", *looking.measure(polls, room)])
    head = ["agents", "free slots", "calls taken", "commands", "bytes to Redis", "bytes from it", "ms", "ms at most"]
    report.add_heading("A poll")
    report.add_table(head, rows)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each noise is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=20, help="how long each time (default 20)")
    options = parser.parse_args()
    rounds, seconds = (1, 1.0) if options.smoke else (options.rounds, options.seconds)
    report = Report("shares")
    with tempfile.TemporaryDirectory() as name:
        add_noise(report, Path(name), rounds, seconds)
    add_polls(report, *((100, 10) if options.smoke else (10_000, 500)))
    report.finish(options)


if __name__ == "__main__":
    main()
