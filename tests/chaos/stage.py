"""The deployment that a row plays on: Valkey with an append-only file, workers, and beat and Flower beside them.

Owns processes: their start, that they are replaced when they died, and that they are alive and at work. What is done to
them, the rows know.
"""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import redis

from tarsy_tasks import ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.chaos.load import Load
from tests.chaos.network import Network
from tests.faults.ledger import Ledger, witness
from tests.processes import ServiceProcess, Worker, free_port, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

__all__ = ["LONG", "SHORT", "Cast", "Form", "Stage", "can_fake_clocks", "wrong_clock"]

_ALIVE_S = 20.0
_STOP_S = 40.0
_TICK_S = 1.0
_SETTLED_S = 5.0
_OWNED_BY_KOMBU = "_kombu."
_WRONG_CLOCK = Path(__file__).with_name("wrong_clock")
_FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def can_fake_clocks() -> bool:
    """Whether workers of this machine can be given wrong clocks."""
    return _FAKETIME.exists()


def wrong_clock(offset: str) -> dict[str, str]:
    """The environment of a process whose clock is wrong by so much, as libfaketime spells it."""
    assert can_fake_clocks(), f"{_FAKETIME} is missing: apt-get install faketime"
    # Only what tells the time of day is wrong on a machine with a wrong clock.
    return {
        "LD_PRELOAD": str(_FAKETIME),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_WRONG_CLOCK), os.environ.get("PYTHONPATH")))),
    }


@dataclass(frozen=True)
class Form:
    """How long leases and faults are.

    Attributes:
        lease_s: The visibility timeout of the workers; None: the package's own.
        answered_s: Within which a call is answered whose worker was killed.
        down_s: How long Redis is away when it is restarted.
        frozen_s: How long it is frozen.
        cut_s: How long the network to it is cut.
        cuts: How many times its connections are closed.
        slow_call_s: A call that takes several leases.
        deadline_s: How long an agent waits for a call.
        measured_s: How long latencies are measured.
        slower: How many times slower calls of other servers may get.
        large_bytes: How large arguments are. 50 MB cost Redis a second of CPU time, in which it answers nobody; on a
            busy machine that is longer than others wait for a reply.
    """

    name: str
    lease_s: float | None
    answered_s: float
    down_s: float
    frozen_s: float
    cut_s: float
    cuts: int
    slow_call_s: float
    deadline_s: float
    measured_s: float
    slower: float
    large_bytes: int


SHORT = Form(
    "short",
    lease_s=3,
    answered_s=10,
    down_s=0.5,
    frozen_s=6,  # longer than the package waits for one reply
    cut_s=6,
    cuts=4,
    slow_call_s=7,
    deadline_s=30,
    measured_s=1.5,
    slower=20,  # machines of a CI are noisy, but a worker that stands still is worse
    large_bytes=10_000_000,
)
LONG = Form(
    "long",
    lease_s=None,
    answered_s=35,
    down_s=5,
    frozen_s=10,
    cut_s=30,
    cuts=20,
    slow_call_s=90,
    deadline_s=120,
    measured_s=15,
    slower=1.5,
    large_bytes=50_000_000,
)


@dataclass(frozen=True)
class Cast:
    """Who is on a stage. Rows of an equal cast play on one stage after one another.

    Attributes:
        workers: How many, each with room for `concurrency` calls of a server.
        servers: Witnesses that the workers serve, with settings of theirs.
        operators: Whether beat and Flower run too.
        proxied: Whether workers, beat and Flower reach Redis over one network, and the agent over another.
        clocks: By how much the clock of each worker is wrong, as libfaketime spells it; empty: they are right.
        lease_s: A visibility timeout for both forms.
    """

    workers: int = 2
    concurrency: int = 16
    servers: dict[str, dict[str, Any]] = field(default_factory=lambda: {"desk": {"timeouts": {"call_s": 600}}})
    operators: bool = False
    proxied: bool = False
    clocks: tuple[str, ...] = ()
    lease_s: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a whole deployment, and Redis is reached directly."""
        return self.operators and not self.proxied


@cache
def _redis_port() -> int:
    """One port for all stages of this process: what an agent's process keeps for a Redis is kept once."""
    return free_port()


class Stage:
    """A deployment in a directory of its own.

    Attributes:
        valkey: May be stopped and started by rows; it keeps what it was told.
        redis: A client of it that goes past every network.
        url: Where workers find it.
        workers: Those that should be alive.
        ledgers: What each witness wrote down.
        agent_network, worker_network: None unless `proxied`.
    """

    def __init__(self, cast: Cast, form: Form, directory: Path) -> None:
        self.cast = cast
        self.form = form
        self.directory = directory
        self.ledgers = {server: Ledger(directory / f"{server}.ledger") for server in cast.servers}
        self.workers: list[Worker] = []
        self.operators: dict[str, ServiceProcess] = {}
        self.worker_network: Network | None = None
        self.agent_network: Network | None = None
        self.problems: list[str] = []
        self.started: list[Worker] = []
        self._flower_port = free_port()

    @contextmanager
    def running(self) -> Iterator["Stage"]:
        with ExitStack() as stack:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Processes are killed here, the kernel is not: nothing need wait for a disk that other work keeps busy.
            kept = {"appendonly": "yes", "appendfsync": "no"}
            self.valkey = Valkey(port=_redis_port(), data_dir=self.directory / "valkey", persist=True, config=kept)
            self.valkey.start()
            stack.callback(self._stop_valkey)
            self.url, agent_url = url_of(self.valkey.port), url_of(self.valkey.port, "agent")
            self.redis = redis.Redis.from_url(self.url)
            stack.callback(self.redis.close)
            if self.cast.proxied:
                self.worker_network = stack.enter_context(Network(self.valkey.port).running())
                self.agent_network = stack.enter_context(Network(self.valkey.port).running())
                self.url, agent_url = url_of(self.worker_network.port), url_of(self.agent_network.port, "agent")
            self.app: TarsyApp = build_app({"broker_url": agent_url, "result_backend": agent_url})
            stack.callback(self._stop_processes)
            for _ in range(self.cast.workers):
                self.start_worker()
            if self.cast.operators:
                self._start_operators()
            for worker in self.workers:
                worker.wait_until_ready()
            yield self

    @property
    def ledger(self) -> Ledger:
        """That of the only server."""
        [ledger] = self.ledgers.values()
        return ledger

    @property
    def valkey_pid(self) -> int:
        return self.redis.info("server")["process_id"]

    @property
    def lease_s(self) -> float:
        """What a lease lasts here, for rows whose faults are measured by it."""
        return self.cast.lease_s or self.form.lease_s or 20.0

    def tools(self, timeout_s: float) -> ToolExecutor:
        """An agent of this process."""
        return ToolExecutor(list(self.cast.servers), timeout_s=timeout_s, app=self.app)

    def load(self, name: str, server: str = "desk", timeout_s: float | None = None) -> Load:
        timeout_s = timeout_s or self.form.deadline_s
        return Load(self.tools(timeout_s), self.redis, server, self.ledgers[server], name, timeout_s)

    def start_worker(self, **environment: str) -> Worker:
        """One more worker; it is not waited for."""
        number = len(self.started)
        directory = self.directory / f"worker{number}"
        directory.mkdir()
        self._write_settings(directory)
        worker = Worker(
            directory,
            {server: witness(self.ledgers[server], **options) for server, options in self.cast.servers.items()},
            self.url,
            # By default one server gets half of the slots of a worker.
            arguments=["-E", "-c", str(2 * self.cast.concurrency)],
            environment={**self._clock(number), **environment},
            name=f"worker{number}",
            mingle=True,
        )
        self.started.append(worker)
        self.workers.append(worker)
        return worker

    def give_up(self, worker: Worker) -> None:
        """This one is about to end; any other that ends is a finding."""
        self.workers.remove(worker)

    def replace_dead(self) -> None:
        """Start a worker for each that died, as a supervisor would."""
        for worker in [worker for worker in self.workers if worker.process.poll() is not None]:
            self.give_up(worker)
        self._complete()

    def restore(self) -> None:
        """The cast is complete again; a worker that died unexpectedly is left for `check_alive` to find."""
        self._complete()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.wait_until_ready()

    def _complete(self) -> None:
        while len(self.workers) < self.cast.workers:
            self.start_worker()

    def families(self) -> list[psutil.Process]:
        """All processes below the workers."""
        return [child for worker in self.workers for child in worker.children()]

    def check_alive(self) -> list[str]:
        """What of the workers, beat, Flower and the agent is not alive and at work; nothing, when all is well."""
        found: list[str] = []
        everyone = {f"worker {worker.pid}": worker for worker in self.workers} | self.operators
        for name, service in everyone.items():
            if service.process.poll() is not None:
                found.append(f"{name} died with {service.process.returncode}")
        now = time.time()
        if self.operators:
            self.redis.delete(self._health_key)
        signs: dict[str, Callable[[], object]] = {"each worker takes calls": self._all_take_calls}
        if self.operators:
            signs["health is checked by beat and a worker"] = lambda: self.redis.exists(self._health_key)
            signs["Flower hears the workers"] = lambda: self._flower_heard(now)
        for what, seen in signs.items():
            try:
                wait_until(seen, what, _ALIVE_S)
            except AssertionError as error:
                found.append(str(error))
        return found

    def check_nothing_left(self, within_leases: float = 1.5) -> list[str]:
        """Messages and keys without an expiry that are still there once all calls are answered.

        Args:
            within_leases: How many leases to wait: what a worker took through a dead connection comes back after one.
        """

        def left() -> list[str]:
            names = [key.decode(errors="replace") for key in self.redis.keys() if self.redis.ttl(key) == -1]
            return [name for name in names if not name.startswith(_OWNED_BY_KOMBU)]

        with suppress(AssertionError):
            # Checks of health come and go, so now and then one is on its way.
            wait_until(lambda: not left(), "", _SETTLED_S + within_leases * self.lease_s)
        return [f"left in Redis without an expiry: {', '.join(names)}" for names in [left()] if names]

    def _all_take_calls(self) -> bool:
        """As many calls at once as all workers have room for, until each worker has had some."""
        tools, before = self.tools(10), len(self._runs())
        calls = [
            ToolCall(id=str(n), name=f"{server}.look", arguments={"key": "alive", "wait_s": 0.2})
            for n in range(self.cast.workers * self.cast.concurrency)
            for server in [next(iter(self.cast.servers))]
        ]
        tools.execute_many(calls)
        took_part = {int(line[3]) for line in self._runs()[before:]}
        return {worker.pid for worker in self.workers} <= took_part

    def _runs(self) -> list[list[str]]:
        return next(iter(self.ledgers.values())).lines("run")

    @property
    def _health_key(self) -> str:
        return keys.health_key(next(iter(self.cast.servers)))

    def _flower_heard(self, since: float) -> bool:
        """Whether it had a heartbeat of each worker."""
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self._flower_port}/workers?json=1") as page:
            heard = {worker["pid"]: max(worker["heartbeats"], default=0) for worker in json.load(page)["data"]}
            return all(heard.get(worker.pid, 0) > since for worker in self.workers)
        return False

    def _start_operators(self) -> None:
        flower = ["flower", "--address=127.0.0.1", f"--port={self._flower_port}"]
        for name, arguments in {"beat": ["beat"], "flower": flower}.items():
            directory = self.directory / name
            directory.mkdir()
            self._write_settings(directory)
            command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", *arguments]
            self.operators[name] = ServiceProcess(
                command, directory / f"{name}.log", self.workers[0].environment_of(name), directory
            )

    def _write_settings(self, directory: Path) -> None:
        entry = {"args": [next(iter(self.cast.servers))], "schedule": _TICK_S, "options": {"expires": 15}}
        lines = [
            "from tarsy_tasks.broker.task_names import CHECK_SERVER",
            "from tarsy_tasks.celery_app import DEFAULTS",
            # Checks that are due every 15 s would say too late whether beat is at work.
            f'beat_schedule = {{"tick": {{"task": CHECK_SERVER, **{entry!r}}}}}',
        ]
        if lease_s := self.cast.lease_s or self.form.lease_s:
            options = f'{{**DEFAULTS["broker_transport_options"], "visibility_timeout": {lease_s}}}'
            lines.append(f"broker_transport_options = {options}")
        (directory / "celeryconfig.py").write_text("\n".join(lines) + "\n")

    def _clock(self, number: int) -> dict[str, str]:
        if not self.cast.clocks:
            return {}
        return wrong_clock(self.cast.clocks[number % len(self.cast.clocks)])

    def _stop_processes(self) -> None:
        for network in filter(None, (self.worker_network, self.agent_network)):
            network.heal(reset=False)
        services = [*self.operators.values(), *self.started]
        for service in services:
            service.ask_to_stop()
        for service in services:
            try:
                service.stop(timeout_s=_STOP_S)
            except AssertionError as error:
                self.problems.append(f"{service.log_path.stem} at its end: {str(error)[:200]}")

    def _stop_valkey(self) -> None:
        if self.valkey.is_running():
            self.valkey.stop()
        else:
            self.valkey.terminate()
