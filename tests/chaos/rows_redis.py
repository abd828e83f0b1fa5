"""Redis goes away, stands still, or cannot be reached for a while."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tarsy_tasks.broker import keys
from tests.chaos.faults import cut_connections, frozen, last
from tests.chaos.load import Tally
from tests.chaos.network import Network
from tests.chaos.stage import Form, Stage
from tests.processes import wait_until

__all__ = [
    "connections_are_cut",
    "it_is_frozen",
    "it_is_restarted",
    "network_is_cut_and_reset",
    "network_stalls",
    "workers_network_is_cut",
]

IN_FLIGHT = 64
MEANWHILE = 16
"""Calls that agents begin while the fault lasts."""


def it_is_restarted(stage: Stage, form: Form) -> Tally:
    # Killed: what the append-only file holds is all that is left.
    @contextmanager
    def away() -> Iterator[None]:
        stage.valkey.terminate()
        yield
        stage.valkey.start()

    return _play(stage, "restarted", form.down_s, away)


def it_is_frozen(stage: Stage, form: Form) -> Tally:
    return _play(stage, "frozen", form.frozen_s, lambda: frozen(stage.valkey_pid))


def connections_are_cut(stage: Stage, form: Form) -> Tally:
    load = stage.load("cut")
    load.start(IN_FLIGHT)
    load.wait_for_begun(stage.cast.concurrency)
    connections = 0
    for _ in range(form.cuts):
        connections += cut_connections(stage.redis)
        load.start(MEANWHILE)
        load.wait_for_begun(len(load.begun()) + 1)
    load.start(IN_FLIGHT)
    load.wait_for_begun(len(load.begun()) + stage.cast.concurrency)
    _answer_while_agents_are_away(stage, IN_FLIGHT // 2)
    tally = load.tally()
    tally.expect_answers_within(form.answered_s)
    tally.notes.append(f"{connections} connections cut")
    return tally


def _answer_while_agents_are_away(stage: Stage, count: int) -> None:
    """So many calls end while agents lose their connections again and again: most answers reach nobody at first."""
    answered = stage.redis.xlen(keys.AUDIT)

    def are_answered() -> bool:
        stage.redis.client_kill_filter(user="agent")
        return stage.redis.xlen(keys.AUDIT) >= answered + count

    wait_until(are_answered, f"{count} calls are answered")


def network_is_cut_and_reset(stage: Stage, form: Form) -> Tally:
    """Nothing passes, for anybody; then the connections of before turn out to be dead."""
    return _play(stage, "reset", form.cut_s, lambda: _cut(_networks(stage), reset=True))


def network_stalls(stage: Stage, form: Form) -> Tally:
    """Nothing passes, for anybody; then everything arrives late."""
    return _play(stage, "stalled", form.cut_s, lambda: _cut(_networks(stage), reset=False))


def workers_network_is_cut(stage: Stage, form: Form) -> Tally:
    """Agents put calls into queues at which connections of the workers still wait that nothing comes through any more.

    Most workers are idle when it begins: only then do they wait at the queues.
    """
    load = stage.load("apart")
    load.start(MEANWHILE // 2)
    load.wait_for_begun(MEANWHILE // 2)
    with _cut(_networks(stage)[:1], reset=True):
        load.start(IN_FLIGHT)
        last(form.cut_s)
    return load.tally()


def _networks(stage: Stage) -> list[Network]:
    assert stage.worker_network is not None
    assert stage.agent_network is not None
    return [stage.worker_network, stage.agent_network]


@contextmanager
def _cut(networks: list[Network], *, reset: bool) -> Iterator[None]:
    for network in networks:
        network.cut()
    try:
        yield
    finally:
        for network in networks:
            network.heal(reset=reset)


def _play(stage: Stage, name: str, seconds: float, fault: Callable[[], AbstractContextManager[None]]) -> Tally:
    load = stage.load(name)
    load.start(IN_FLIGHT)
    load.wait_for_begun(stage.cast.concurrency)
    with fault():
        load.start(MEANWHILE)
        last(seconds)
    return load.tally()
