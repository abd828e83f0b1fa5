"""Random faults and steady load for many minutes: every call is accounted for, and nothing grows.

Owns the choice of faults and what is measured. One worker is never killed, so that its memory can be compared.
"""

import gc
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields

import psutil

from tarsy_tasks.broker import keys
from tests.chaos.faults import cut_connections, frozen, last
from tests.chaos.load import Load, Tally
from tests.chaos.stage import Cast, Form, Stage
from tests.processes import Worker

__all__ = ["CAST", "soak"]

CAST = Cast(
    workers=3,
    servers={server: {"timeouts": {"call_s": 600}} for server in ("desk", "shop")},
    operators=True,
    proxied=True,
)
_THREADS = 12
"""Calls in flight of each server."""
_WARM_UP = 0.2
"""Of the whole time; what is held then is what the end is compared with."""
_BETWEEN_S = (2.0, 8.0)
_FAULT_S = (0.5, 6.0)
_GROWTH = 1.05
_SLACK = 8
"""Descriptors, threads and the like of a process may differ by a few: a pool opens what it needs."""
_SLACKS = {"redis_clients": 6 * _SLACK, "agent_descriptors": 2 * 6 * _SLACK}
"""What all six processes hold together is a coarse measure: the sharp one is that of the worker that nobody kills. And
this process holds both ends of each connection that its proxies carry.
"""
_IDLE_S = 12.0
"""After so long idle connections have been closed."""


@dataclass(frozen=True)
class Held:
    """What processes and Redis hold while nothing happens."""

    worker_rss: int
    worker_descriptors: int
    worker_threads: int
    worker_children: int
    agent_rss: int
    agent_descriptors: int
    agent_threads: int
    redis_keys: int
    redis_clients: int

    def __str__(self) -> str:
        return ", ".join(f"{each.name} {getattr(self, each.name)}" for each in fields(self))


def soak(stage: Stage, form: Form, minutes: float, seed: int) -> Tally:
    """Play random faults for so long."""
    chance = random.Random(seed)
    survivor = stage.workers[0]
    tally = Tally()
    tally.notes.append(f"seed {seed}")
    loads = [stage.load(f"soak-{server}", server) for server in stage.cast.servers]
    _keep_going(loads)
    ends_at = time.monotonic() + minutes * 60
    warm_at = time.monotonic() + minutes * 60 * _WARM_UP
    before: Held | None = None
    played = Counter[str]()
    while time.monotonic() < ends_at:
        last(chance.uniform(*_BETWEEN_S))
        name, fault = chance.choice(list(_FAULTS.items()))
        played[name] += 1
        fault(stage, chance)
        if before is None and time.monotonic() > warm_at:
            before = _calm(stage, loads, survivor, tally)
            _keep_going(loads)
    after = _calm(stage, loads, survivor, tally)
    result = _sum([load.tally(unknown=True) for load in loads])  # a call that was `rejected` is a finding
    result.findings += tally.findings + _check_fetching(stage)
    result.notes += [*tally.notes, f"{played.total()} faults: {dict(played)}", f"at the end: {after}"]
    result.expect(survivor.process.poll() is None, "the worker that nobody killed died")
    if before is not None:
        result.notes.append(f"after warm-up: {before}")
        _compare(before, after, result)
    result.findings += _zombies()
    return result


def _keep_going(loads: list[Load]) -> None:
    for load in loads:
        load.keep_going(_THREADS)


def _sum(tallies: list[Tally]) -> Tally:
    """What the loads of all servers came to."""
    found = Tally(longest_s=max(each.longest_s for each in tallies))
    for each in tallies:
        found.calls += each.calls
        found.outcomes += each.outcomes
        found.lost += each.lost
        found.doubled += each.doubled
        found.findings += each.findings
        found.notes += each.notes
    return found


def _check_fetching(stage: Stage) -> list[str]:
    """The package's own way is what is soaked."""
    logs = {worker.log_path.stem: worker.log for worker in stage.started}
    return [f"{name} fetched as kombu does" for name, log in logs.items() if "kombu fetches the messages" in log]


def _calm(stage: Stage, loads: list[Load], survivor: Worker, tally: Tally) -> Held:
    """Stop the load, wait for all answers, and see what is held."""
    for load in loads:
        load.wait()
    stage.restore()
    tally.findings += stage.check_alive() + stage.check_nothing_left()
    last(_IDLE_S)
    gc.collect()
    worker, agent = psutil.Process(survivor.pid), psutil.Process()
    # What expires is no leak, but results and minutes of an hour would hide one.
    passing = (keys.result_key("").encode(), keys.minute_key("").encode())
    lasting = [key for key in stage.redis.keys() if not key.startswith(passing)]
    markers = [key for key in lasting if key.startswith(b"tarsy:call:")]
    return Held(
        worker.memory_info().rss,
        worker.num_fds(),
        worker.num_threads(),
        len(worker.children(recursive=True)),
        agent.memory_info().rss,
        agent.num_fds(),
        agent.num_threads(),
        len(lasting) - len(markers),
        len(stage.redis.client_list()),
    )


def _compare(before: Held, after: Held, tally: Tally) -> None:
    for each in fields(Held):
        then, now = getattr(before, each.name), getattr(after, each.name)
        if each.name.startswith("agent_rss"):
            continue  # this process keeps every answer
        limit = then * _GROWTH if each.name.endswith("rss") else then + _SLACKS.get(each.name, _SLACK)
        if each.name == "worker_descriptors":
            # The pool starts its threads when they are first needed, and each of them has a connection to Redis.
            limit += max(0, after.worker_threads - before.worker_threads)
        tally.expect(now <= limit, f"{each.name} grew from {then} to {now}")


def _zombies() -> list[str]:
    zombies = [child for child in psutil.Process().children(recursive=True) if child.status() == psutil.STATUS_ZOMBIE]
    return [f"zombies: {zombies}"] if zombies else []


def _kill_worker(stage: Stage, chance: random.Random) -> None:
    _end_worker(stage, chance, signal.SIGKILL)


def _stop_worker(stage: Stage, chance: random.Random) -> None:
    _end_worker(stage, chance, signal.SIGTERM)


def _end_worker(stage: Stage, chance: random.Random, number: signal.Signals) -> None:
    victim = chance.choice(stage.workers[1:])
    stage.give_up(victim)
    victim.process.send_signal(number)
    victim.process.wait(40)
    stage.restore()


def _restart_in_turn(stage: Stage, _: random.Random) -> None:
    """A rolling restart of all but the one that is measured."""
    for victim in stage.workers[1:]:
        stage.give_up(victim)
        victim.process.send_signal(signal.SIGTERM)
        victim.process.wait(40)
        stage.restore()


def _kill_server(stage: Stage, chance: random.Random) -> None:
    """An MCP server of one worker."""
    paths = [str(ledger.path) for ledger in stage.ledgers.values()]
    servers = [child for worker in stage.workers for path in paths for child in worker.find_children(path)]
    if servers:
        chance.choice(servers).kill()


def _freeze_worker(stage: Stage, chance: random.Random) -> None:
    with frozen(chance.choice(stage.workers).pid):
        last(chance.uniform(*_FAULT_S))


def _freeze_redis(stage: Stage, chance: random.Random) -> None:
    with frozen(stage.valkey_pid):
        last(chance.uniform(*_FAULT_S))


def _restart_redis(stage: Stage, chance: random.Random) -> None:
    stage.valkey.terminate()
    last(chance.uniform(*_FAULT_S))
    stage.valkey.start()


def _cut_connections(stage: Stage, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 5)):
        cut_connections(stage.redis)


def _cut_network(stage: Stage, chance: random.Random) -> None:
    networks = [network for network in (stage.worker_network, stage.agent_network) if network is not None]
    cut = chance.sample(networks, chance.randint(1, len(networks)))
    for network in cut:
        network.cut()
    last(chance.uniform(*_FAULT_S))
    for network in cut:
        network.heal(reset=chance.random() < 0.5)


_FAULTS: dict[str, Callable[[Stage, random.Random], None]] = {
    "worker killed": _kill_worker,
    "worker stopped": _stop_worker,
    "rolling restart": _restart_in_turn,
    "worker frozen": _freeze_worker,
    "server killed": _kill_server,
    "Redis frozen": _freeze_redis,
    "Redis restarted": _restart_redis,
    "connections cut": _cut_connections,
    "network cut": _cut_network,
}
