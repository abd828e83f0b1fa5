"""How many calls of each server this worker runs at once, and from which queues it therefore takes messages.

Counts the calls that run. Of a server at its `max_concurrency` no message is taken: its calls stay in the broker for
other workers, and it cannot take the slots of the others. The last slot is kept for health checks. What is counted is
what runs, or is on its way into the pool: a connection that breaks, a message that is delivered twice or a call that
fails cannot make the counts wrong. The bytes of large messages are counted, too: an agent could otherwise take the
memory of all servers.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kombu.utils.scheduling import round_robin_cycle

from tarsy_tasks.broker import keys
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["MOST_BYTES", "Bulkhead", "QueueOrderStrategy"]

MOST_BYTES = 16 * 1024 * 1024
"""While messages of a queue with so many bytes run here, no other one is taken from it. In a worker, each byte of a
message takes six to twelve."""


class Room(NamedTuple):
    """How many messages may be taken now.

    Attributes:
        slots: In all.
        kept: How many of them are for checks only.
        limits: By queue.
    """

    slots: int
    kept: int
    limits: dict[str, int]


class Bulkhead:
    """The slots of one worker process, and which queues use them. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: int | None = None
        self._limits: dict[str, int] = {}
        self._running: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._held_back: frozenset[str] = frozenset()
        self._wake: Callable[[], object] | None = None
        self._is_awaited = False

    def open(self, slots: int, servers: Iterable[ServerConfig]) -> None:
        """Begin to limit.

        Args:
            slots: How many tasks the pool runs at once.
            servers: The ones that the worker serves.
        """
        self._slots = slots
        for server in servers:
            self._limit(server)

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`."""
        self.release(connection.server.name)
        self._limit(connection.server)
        if (wake := self._wake) is not None:
            wake()  # it may run more than before

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`. Its queue may still be served: with answers that the server is gone."""
        self.release(server)

    def _limit(self, server: ServerConfig) -> None:
        half = max(1, (self._slots or 0) // 2)
        with self._lock:
            self._limits[keys.queue(server.name)] = server.max_concurrency or half
            # The checks of a server that hangs must not take all slots that are kept for checks.
            self._limits[keys.check_queue(server.name)] = 1

    def limit(self, server: str) -> int | None:
        """How many calls of a server run here at once; None for one that is not served, or before `open`."""
        return self._limits.get(keys.queue(server))

    def hold_back(self, server: str) -> None:
        """Take no more calls of a server: other workers can."""
        with self._lock:
            self._held_back |= {keys.queue(server)}

    def release(self, server: str) -> None:
        """Take its calls again."""
        if keys.queue(server) not in self._held_back:
            return
        with self._lock:
            self._held_back -= {keys.queue(server)}
        if (wake := self._wake) is not None:
            wake()

    def watch(self, wake: Callable[[], object] | None) -> None:
        """Call this, if anything, from any thread, when a slot that `measure` missed becomes free."""
        self._wake = wake

    def enter(self, queue: str, size_bytes: int = 0) -> None:
        """A task from a queue begins; the size of its message, if that may be large. What comes from an agent's queue
        counts for its server."""
        queue = keys.shared_queue(queue)
        with self._lock:
            self._running[queue] += 1
            if size_bytes:
                self._bytes[queue] += size_bytes

    def leave(self, queue: str, size_bytes: int = 0) -> None:
        """A task from a queue has ended; the size as when it began."""
        queue = keys.shared_queue(queue)
        with self._lock:
            self._running[queue] -= 1
            if size_bytes:
                self._bytes[queue] -= size_bytes
        wake = self._wake  # another thread may end the watch meanwhile
        if self._is_awaited and wake is not None:
            wake()

    def measure(self, queues: Iterable[str]) -> Room:
        """How many messages may be taken from these queues now.

        With one slot left only checks may. A worker with a single slot has none to keep: there a check waits for the
        running call, and goes before all that wait.
        """
        if self._slots is None:
            return Room(sys.maxsize, 0, dict.fromkeys(queues, sys.maxsize))
        # Set before it looks: a task that ends meanwhile has to wake who asks.
        self._is_awaited = True
        running, slots = self._running, self._slots
        kept = 0 if slots == 1 else 1
        with self._lock:
            free = slots - running.total()
            limits = {queue: self._limits.get(queue, slots) - running[queue] for queue in queues}
            limits.update((queue, 0) for queue, held in self._bytes.items() if held >= MOST_BYTES and queue in limits)
            if not limits.keys() <= self._limits.keys():
                limits.update(self._measure_agents(limits, slots))
        if self._held_back:
            limits.update((queue, 0) for queue in self._held_back if queue in limits)
        self._is_awaited = free <= kept + 1 or min(limits.values(), default=1) <= 0
        return Room(free, kept, limits)

    def _measure_agents(self, queues: Iterable[str], slots: int) -> dict[str, int]:
        """The limits of single agents' queues, which an operator had this worker consume: those of their servers."""
        found: dict[str, int] = {}
        for queue in queues:
            home = keys.shared_queue(queue)
            if home != queue:
                is_open = self._bytes[home] < MOST_BYTES and home not in self._held_back
                found[queue] = self._limits.get(home, slots) - self._running[home] if is_open else 0
        return found

    def select(self, queues: Sequence[str]) -> list[str]:
        """The queues from which another message may be taken now: those of checks first, the rest in their order."""
        free, kept, limits = self.measure(queues)
        checks = [queue for queue in queues if keys.is_check_queue(queue) and limits[queue] > 0] if free > 0 else []
        calls = [queue for queue in queues if not keys.is_check_queue(queue) and limits[queue] > 0]
        return checks + (calls if free > kept else [])


class QueueOrder(round_robin_cycle):
    """kombu's order of queues, the least recently used first, without those that are full.

    Args:
        bulkhead: That of the worker.
    """

    def __init__(self, bulkhead: Bulkhead) -> None:
        super().__init__()
        self._bulkhead = bulkhead

    def consume(self, n: int) -> list[str]:
        return self._bulkhead.select(self.items[:n])


class QueueOrderStrategy:
    """The broker option `queue_order_strategy`: kombu calls it for the order of each channel.

    Args:
        bulkhead: That of the worker.
    """

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead

    def __call__(self) -> QueueOrder:
        return QueueOrder(self._bulkhead)

    def __json__(self) -> str:
        """`inspect stats`, which Flower asks for too, replies with the broker options as JSON."""
        return f"{QueueOrder.__module__}:{QueueOrder.__qualname__}"
