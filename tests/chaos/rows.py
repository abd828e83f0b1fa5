"""The rows of the table: each fault, who has to be there for it, and the function that plays it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import rows_messages, rows_neighbours, rows_redis, rows_servers, rows_sessions, rows_workers, soak
from tests.chaos.load import Tally
from tests.chaos.stage import Cast, Form, Stage

__all__ = ["ROWS", "Row", "Theatre", "chosen", "soaking"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What `--only` and the tests call it.
        fault: What the table calls it.
    """

    name: str
    fault: str
    cast: Cast
    play: Callable[[Stage, Form], Tally]


_DEPLOYMENT = Cast(operators=True, servers={"desk": {"timeouts": {"call_s": 600}, "result_limit": 1_048_576}})
"""A result may be longer than what Redis takes in one of the rows."""
_PROXIED = Cast(operators=True, proxied=True)
_WRONG_CLOCKS = Cast(clocks=("+90s", "-90s"))
_FIVE_SERVERS = Cast(workers=1, servers=rows_servers.SERVERS)
_ISOLATED = Cast(concurrency=8)
_SHORT_LEASE = Cast(lease_s=2)
"""A message has to outlive three leases before it becomes a dead letter."""

ROWS = [
    Row("killed", "worker killed (SIGKILL), a second one alive", _DEPLOYMENT, rows_workers.one_is_killed),
    Row("stopped", "worker stopped (SIGTERM) under load", _DEPLOYMENT, rows_workers.one_is_stopped),
    Row("grace", "worker stopped, calls outlast its grace", _DEPLOYMENT, rows_workers.grace_is_over),
    Row("rolling", "rolling restart of 2 workers", _DEPLOYMENT, rows_workers.they_are_restarted),
    Row("slow", "a call that takes several leases", _DEPLOYMENT, rows_servers.a_call_takes_several_leases),
    Row("agent", "agent killed while it waits", _DEPLOYMENT, rows_neighbours.an_agent_is_killed),
    Row("nobody", "a queue that no worker serves", _DEPLOYMENT, rows_messages.nobody_serves),
    Row(
        "large",
        "arguments of 50 MB (short form: 10), a result that cannot be stored",
        _DEPLOYMENT,
        rows_messages.they_are_large,
    ),
    Row("restarted", "Redis killed and restarted (AOF)", _DEPLOYMENT, rows_redis.it_is_restarted),
    Row("frozen", "Redis frozen", _DEPLOYMENT, rows_redis.it_is_frozen),
    Row("connections", "connections cut again and again (CLIENT KILL)", _DEPLOYMENT, rows_redis.connections_are_cut),
    Row("network-reset", "network to Redis cut, then reset", _PROXIED, rows_redis.network_is_cut_and_reset),
    Row("network-stall", "network to Redis stalls, then delivers", _PROXIED, rows_redis.network_stalls),
    Row("network-workers", "network of the workers cut, agents go on", _PROXIED, rows_redis.workers_network_is_cut),
    Row("clocks", "worker clocks 90 s ahead and behind", _WRONG_CLOCKS, rows_servers.clocks_are_wrong),
    Row("hang", "one of 5 servers never answers", _FIVE_SERVERS, rows_servers.one_hangs),
    Row("run-killed", "isolated sessions: worker killed", _ISOLATED, rows_sessions.their_worker_is_killed),
    Row("run-stopped", "isolated sessions: worker stopped", _ISOLATED, rows_sessions.their_worker_is_stopped),
    Row("run-forgotten", "isolated sessions: servers killed", _ISOLATED, rows_sessions.processes_are_killed),
    Row("run-restarted", "isolated sessions: Redis restarted (AOF)", _ISOLATED, rows_sessions.redis_is_restarted),
    Row("run-cut", "isolated sessions: connections cut", _ISOLATED, rows_sessions.connections_are_cut),
    Row(
        "neighbour",
        "another application, worker killed",
        _SHORT_LEASE,
        rows_neighbours.another_application_is_left_alone,
    ),
    Row("poison", "a message that kills its worker", _SHORT_LEASE, rows_messages.a_message_kills_its_worker),
    Row("bad-messages", "messages that no program of ours wrote", _SHORT_LEASE, rows_messages.they_are_bad),
]


class Theatre:
    """Plays rows of one form, on a new stage whenever the cast changes or a row left the old one in a bad state."""

    def __init__(self, form: Form, directory: Path) -> None:
        self._form = form
        self._directory = directory
        self._stage: Stage | None = None
        self._stack = ExitStack()
        self._stages = 0

    def __enter__(self) -> "Theatre":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> list[str]:
        """End the stage; what its processes did wrong at their end."""
        stage, self._stage = self._stage, None
        self._stack.close()
        return stage.problems if stage else []

    def play(self, row: Row) -> Tally:
        """Play a row. What breaks in it is a finding."""
        tally = Tally()
        try:
            stage = self._stage_for(row.cast, tally)
            stage.restore()
            tally = row.play(stage, self._form)
            stage.restore()
            tally.findings += stage.check_alive() + stage.check_nothing_left()
        except Exception as error:
            tally.findings.append(f"{type(error).__name__}: {error}")
        if tally.findings:
            tally.findings += self.clear()
        return tally

    def _stage_for(self, cast: Cast, tally: Tally) -> Stage:
        if self._stage is None or self._stage.cast != cast:
            tally.findings += self.clear()
            stage = Stage(cast, self._form, self._directory / f"stage{self._stages}")
            self._stages += 1
            self._stack.enter_context(stage.running())
            self._stage = stage
        return self._stage


def soaking(minutes: float, seed: int) -> Row:
    """The row of random faults."""
    fault = f"{minutes:g} minutes of random faults"
    return Row("soak", fault, soak.CAST, lambda stage, form: soak.soak(stage, form, minutes, seed))


def chosen(names: tuple[str, ...]) -> Iterator[Row]:
    """The rows of these names; all, for none."""
    return (row for row in ROWS if not names or row.name in names)
