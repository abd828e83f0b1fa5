"""Where every call stands, from its publication to its answer: the books that a Redis restart, a dead worker and a cut
connection leave whole.

Owns what a message's states are and how it moves between them, each time in one of `steps`, which is harmless when sent
twice (a delivery may then be counted twice), for whoever loses the reply sends it again. All times are those of Redis:
the clocks of workers may be minutes apart. It knows neither Celery nor kombu: `kombu_transport` publishes and takes,
the worker's `guard` begins, `result_backend` answers, agents withdraw.

    published ──take──► leased ──begin──► begun ──answer──► answered
        ▲                 │ lease lapsed, or requeued
        └────────────────┘                              withdrawn: nobody waits any more, and it had not begun

A message is on the books from its publication: what was popped for a connection that broke is found missing in its
queue and put back. Its books are a field of `tarsy:unacked`, its place in `tarsy:waiting:<queue>` or `tarsy:leases`,
and its marker `tarsy:call:<tag>`. The tag of a call is its task id.

Agents write books, too, and each may have some of the queues only. So what the books say of a queue is never where a
message is put back: it goes where it waited, by the name of that key, or where it was taken, by its lease. Markers only
workers write, so that no agent can have its call forgotten by the audit; that a call is withdrawn has a key of its own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tarsy_tasks.broker import keys, steps
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.script import Script
from tarsy_tasks.broker.sweep import SWEEP, Swept

__all__ = ["MAX_DELIVERIES", "AuditSource", "AuditWrite", "CallState", "Deliveries", "Delivery"]

MAX_DELIVERIES = 3
"""A message whose workers died so often is set aside, if the last time it was the suspect: a call has to run alone."""
_MOST_DELIVERIES = 10
"""So often a message is delivered at most, suspect or not: it may kill before its turn comes."""
DEAD_LETTER_TTL_S = 7 * 24 * 3600
MARKER_TTL_S = 7 * 24 * 3600
"""How long it stays known that a call has begun, or was withdrawn: nobody may be there to look for it."""
ENDED_TTL_S = 600
"""How long a marker outlives its call's answer, unless a copy of the message went back to its queue meanwhile."""
_SWEEP_LIMIT = 200
_TOLD_S = 60
_SEARCH_LIMIT = 1000
"""A message is looked for among so many at the head of its queue. Behind them it cannot be missing yet: it is older."""


class CallState(StrEnum):
    """What is known of a call."""

    NONE = ""
    BEGUN = "begun"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class AuditWrite:
    """What the script that ends a call writes to the audit: so there is one entry per call, whatever dies when.

    Attributes:
        text: The entry for the stream; empty: it gets none.
        limit: About how many entries the stream keeps.
        ended: Called when it was this script that ended the call, with the reason why the stream did not take the
            entry, or with an empty text.
    """

    text: str
    limit: int
    ended: Callable[[str], None]


class AuditSource(Protocol):
    """What a worker knows of a call in its hands."""

    def write(self, status: str | None = None, result: Any = None, size_bytes: int | None = None) -> AuditWrite:
        """The audit entry of the call, which ends now.

        Args:
            status: Celery's state, None if nothing is stored.
            result: What is stored.
            size_bytes: Its size.
        """
        ...


@dataclass(slots=True)
class Delivery:
    """One message in the hands of this worker.

    Attributes:
        tag: Its name in the books; of a call the task id.
        queue: Where it was taken from, whatever its priority.
        count: The how manieth delivery it is; those that a shutting down worker gave back do not count.
        mark: What the marker said when it was taken.
        owner: Who began it, if anybody did.
        runs: The pool has it: it goes on when the connection to Redis is made anew.
        answered: Result and acknowledgement went out together.
        kept: It must not be acknowledged: its answer could not be stored.
        record: What the worker knows of it; None for what is not a call.
    """

    tag: str
    queue: str
    count: int = 1
    state: CallState = CallState.NONE
    owner: str = ""
    runs: bool = False
    answered: bool = False
    kept: bool = False
    record: AuditSource | None = None

    @property
    def lease(self) -> str:
        """Its name among the leases."""
        return f"{self.queue}\n{self.tag}"


class Deliveries:
    """The books of one broker. Safe to share between threads.

    Args:
        open_exchange: Called when Redis is first needed, and again until it succeeds.

    All methods raise redis-py's `RedisError`, or what `open_exchange` raises, when Redis cannot be reached.
    """

    def __init__(self, open_exchange: Callable[[], RedisExchange]) -> None:
        self._open_exchange = open_exchange
        self._exchange: RedisExchange | None = None

    def publish(self, queue: str, tag: str, message: str, garbage_at: float | None = None) -> None:
        """Put a message into a queue, and on the books; nothing if it is there already.

        Args:
            garbage_at: When nobody can want it any more, in seconds of the clock of Redis; None: never.
        """
        when = "" if garbage_at is None else f"{garbage_at:.3f}"
        home = keys.without_priority(queue)
        names = (keys.UNACKED, keys.waiting_key(home), queue, keys.QUEUES)
        self._run(steps.PUBLISH, names, tag, message, when, home)

    def take(self, queue: str, tag: str, message: Callable[[], str], *, is_isolated: bool = True) -> Delivery:
        """A message was popped from its queue: lease it.

        Args:
            message: Gives its text, for the books of a message whose producer kept none.
            is_suspect: Should this worker die, the message may be to blame. Of a call `suspect` says so.
        """
        delivery = Delivery(tag, keys.without_priority(queue))
        waiting, withdrawn = keys.waiting_key(delivery.queue), keys.withdrawn_key(tag)
        names = (keys.UNACKED, waiting, keys.LEASES, keys.call_marker(tag), withdrawn)
        suspect = "1" if is_isolated else ""
        count, mark, owner = self._run(steps.TAKE, names, tag, MARKER_TTL_S, "", suspect, delivery.lease)
        if not count:
            books = f"{queue}\n\n{message()}"
            count, mark, owner = self._run(steps.TAKE, names, tag, MARKER_TTL_S, books, suspect, delivery.lease)
        delivery.count, delivery.state, delivery.owner = int(count), CallState(_text(mark)), _text(owner)
        return delivery

    def begin(self, delivery: Delivery, owner: str, *, after: str = "", is_audited: bool = False) -> str:
        """Note that a call begins, just before it is sent. Afterwards `delivery.state` is `CallState.NONE` if it may be
        sent, and otherwise says why not. `delivery.owner` is whoever began it.

        Args:
            owner: Who begins it; each delivery has another.
            after: It may run although this owner began it before.
            is_audited: It may only begin if the audit takes an entry.

        Returns:
            Why the audit takes none, and then it has not begun; or nothing.
        """
        names = (keys.call_marker(delivery.tag), keys.AUDIT, keys.withdrawn_key(delivery.tag))
        mark, other, *trouble = self._run(
            steps.BEGIN, names, owner, after or owner, MARKER_TTL_S, "1" if is_audited else ""
        )
        if trouble:
            return _text(trouble[0])
        delivery.state = CallState(_text(mark))
        delivery.owner = owner if delivery.state is CallState.NONE else _text(other)
        return ""

    def unbegin(self, tag: str, owner: str) -> None:
        """It was not sent after all."""
        self._run(steps.UNBEGIN, (keys.call_marker(tag),), owner)

    def mark_isolated(self, tag: str) -> None:
        """A call whose workers died runs alone now: should this one die, too, the call is to blame."""
        marker = keys.call_marker(tag)
        self.exchange.execute(("HSET", marker, "suspect", 1), ("EXPIRE", marker, MARKER_TTL_S))

    def clear_isolated(self, tag: str) -> None:
        """Such a call runs alone no more: should its worker die, another one may be to blame."""
        self.exchange.execute(("HDEL", keys.call_marker(tag), "suspect"))

    def answer(
        self,
        delivery: Delivery,
        result_key: str,
        result: str | bytes,
        lifetime_s: int | None,
        entry: AuditWrite | None = None,
    ) -> None:
        """Store and announce a call's result and take the call off the books, unless it was answered before, or
        somebody else than `delivery.owner` has begun it.
        """
        marker, withdrawn = keys.call_marker(delivery.tag), keys.withdrawn_key(delivery.tag)
        names = (keys.UNACKED, keys.LEASES, marker, result_key, keys.AUDIT, withdrawn)
        arguments = (delivery.tag, ENDED_TTL_S, result, lifetime_s or "", delivery.owner)
        self._end(
            steps.ANSWER, names, (*arguments, keys.reply_channel(delivery.tag), delivery.lease, MARKER_TTL_S), entry
        )

    def acknowledge(self, delivery: Delivery, entry: AuditWrite | None = None) -> None:
        """Take a message off the books."""
        marker, withdrawn = keys.call_marker(delivery.tag), keys.withdrawn_key(delivery.tag)
        names = (keys.UNACKED, keys.LEASES, marker, keys.AUDIT, withdrawn)
        self._end(steps.ACKNOWLEDGE, names, (delivery.tag, ENDED_TTL_S, delivery.lease, MARKER_TTL_S), entry)

    def discard(self, tag: str, queue: str, entry: AuditWrite | None = None) -> None:
        """Throw a message away that waits in its queue."""
        self._end(steps.DISCARD, (keys.UNACKED, keys.waiting_key(queue), keys.AUDIT), (tag, queue), entry)

    def record_dead_letter(self, tag: str, entry: AuditWrite) -> None:
        """Write the audit entry of a dead letter, unless that was done."""
        names = (keys.call_marker(tag), keys.AUDIT)
        is_first, trouble = self._run(steps.TELL, names, entry.text, entry.limit, MARKER_TTL_S)
        if is_first:
            entry.ended(_text(trouble))

    def _end(self, step: Script, names: tuple[str, ...], arguments: tuple[Any, ...], entry: AuditWrite | None) -> None:
        audit = ("", 0) if entry is None else (entry.text, entry.limit)
        is_first, trouble = self._run(step, names, *arguments, *audit)
        if is_first and entry is not None:
            entry.ended(_text(trouble))

    def entry_of(self, tag: str, queue: str) -> bytes:
        """The books of a message that waits in a queue, empty if there are none."""
        found: bytes = self.exchange.execute(("HGET", keys.UNACKED, tag))[0] or b""
        _, line_break, rest = found.partition(b"\n")
        return queue.encode() + line_break + rest if line_break else found

    def dead_letter_of(self, tag: str) -> bytes:
        """The books of a message that was set aside, empty if there are none."""
        return self.exchange.execute(("GET", keys.dead_letter_key(tag)))[0] or b""

    def requeue(self, delivery: Delivery) -> None:
        """Give a message back to the head of its queue; that is no failed delivery."""
        waiting, marker = keys.waiting_key(delivery.queue), keys.call_marker(delivery.tag)
        names = (keys.UNACKED, keys.LEASES, waiting, marker, delivery.queue, keys.QUEUES)
        self._run(steps.REQUEUE, names, delivery.tag, MARKER_TTL_S, delivery.lease)

    def renew(self, deliveries: Iterable[Delivery]) -> None:
        """Renew the leases of messages that are still held."""
        self._run(steps.RENEW, (keys.LEASES,), *{delivery.lease for delivery in deliveries})

    def state_of(self, tag: str) -> CallState:
        """What the marker of a call says now."""
        mark, is_withdrawn = self.exchange.execute(
            ("HGET", keys.call_marker(tag), "mark"), ("EXISTS", keys.withdrawn_key(tag))
        )
        return CallState.WITHDRAWN if is_withdrawn and not mark else CallState(_text(mark or b""))

    def is_forgotten(self, tag: str) -> bool:
        """Whether nothing is known of a call: it never reached the books, or was answered long ago."""
        known = self.exchange.execute(
            ("HEXISTS", keys.UNACKED, tag),
            ("EXISTS", keys.call_marker(tag)),
            ("EXISTS", keys.withdrawn_key(tag)),
        )
        return not any(known)

    def withdraw(self, tag: str, queue: str) -> tuple[CallState, bool]:
        """Nobody waits for a call any more: unless it has begun, it never will.

        Args:
            queue: Where it was published.

        Returns:
            `CallState.NONE` if it was withdrawn, else what has become of it; and whether a worker has or had it, which
            tells the audit.
        """
        names = (keys.UNACKED, keys.waiting_key(queue), keys.call_marker(tag), keys.withdrawn_key(tag))
        mark, is_taken = self._run(steps.WITHDRAW, names, tag, MARKER_TTL_S)
        return CallState(_text(mark)), bool(is_taken)

    def purge(self, queue: str) -> int:
        """Empty a queue; how many messages it had."""
        return int(self._run(steps.PURGE, (keys.UNACKED, keys.waiting_key(queue), queue)))

    def sweep(self, lease_s: float, quiet_s: float) -> Swept:
        """Put back what was lost on its way, or by a worker that renews no lease.

        Args:
            lease_s: How long a lease holds.
            quiet_s: When nobody swept for so long Redis was away, and the owners get as long to renew their leases.
        """
        names = (keys.UNACKED, keys.QUEUES, keys.LEASES, keys.SWEEPS, keys.DEAD_LETTERS)
        found = self._run(
            SWEEP,
            names,
            lease_s,
            quiet_s,
            MAX_DELIVERIES,
            _SWEEP_LIMIT,
            _SEARCH_LIMIT,
            DEAD_LETTER_TTL_S,
            keys.call_marker(""),
            keys.dead_letter_key(""),
            MARKER_TTL_S,
            _MOST_DELIVERIES,
            _TOLD_S,
            keys.waiting_key(""),
        )
        restored, aside, unwanted, homes = (tuple(map(_text, each)) for each in found)
        return Swept(restored, aside, tuple(zip(unwanted, homes, strict=True)))

    def _run(self, script: Script, names: tuple[str, ...], *arguments: Any) -> Any:
        return script.run(self.exchange, names, *arguments)

    @property
    def exchange(self) -> RedisExchange:
        """For commands of others that concern the same Redis."""
        if self._exchange is None:
            self._exchange = self._open_exchange()
        return self._exchange


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
