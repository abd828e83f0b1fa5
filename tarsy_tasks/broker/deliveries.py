"""Where every call stands, from its publication to its answer: the in-flight table, which survives a restart of Redis,
a dead worker and a cut connection.

Owns the states of a message and how it moves between them. Each move is one of `steps`, which is sent again when its
reply was lost (a delivery may then be counted twice). All times are those of Redis, for the clocks of workers may be
minutes apart. It knows neither Celery nor kombu. An executor's call is published by `agent.connection`, one of another
producer by `kombu_transport`, and `fetch` takes it. What runs on an event loop is in `async_deliveries`: there the
worker's `redelivery` begins, plain calls are answered, agents withdraw. `result_backend` answers calls with a thread.

    waiting ──take──► leased ──begin──► begun ──answer──► answered
       │  ▲              │ ▲              │
       │  └── requeued, or lease lapsed ──┘ (it stays begun)
       │  └──────── delayed, until its time has come: an ETA, or a call that is requeued for a while
       │  └──────── parked, until somebody has decided about it (`parked_calls`)
       └──withdraw──► withdrawn: nobody waits any more, and it had not begun

A message has an entry in the table from its publication on, so one that was popped for a connection that broke is found
missing in its queue and put back. Its entry is a field of `tarsy:unacked`, its place is in `tarsy:waiting:<queue>` or
`tarsy:leases` or `tarsy:delayed`, and its marker is `tarsy:call:<tag>`. The tag of a call is its task id; of any other
message, Celery's delivery tag.

Agents write entries, too, and an agent may be limited to some of the queues. So a message is never put back into the
queue that its entry names: it goes where it waited, by the name of that key, or where it was taken, by its lease. Only
workers write markers, so that no agent can keep its call out of the audit; a withdrawn call has a key of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tarsy_tasks.broker import keys, steps
from tarsy_tasks.broker.begun import Begun, read_begun
from tarsy_tasks.broker.delayed import release_due
from tarsy_tasks.broker.delivery import NO_ENTRY, AuditWrite, CallState, Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.large_results import LargeWrite, answer_large, refusals
from tarsy_tasks.broker.limit_counters import answer_counted, give_back
from tarsy_tasks.broker.priority_lists import priority_of_list
from tarsy_tasks.broker.script import Script
from tarsy_tasks.broker.sweep import QUARANTINE_FROM_DELIVERY, Swept, sweep

__all__ = ["QUARANTINE_FROM_DELIVERY", "Deliveries", "answer_slots", "as_text", "read_state"]


class Deliveries:
    """The in-flight table of one broker. Safe to share between threads.

    Args:
        open_exchange: Called when Redis is first needed, and again until it succeeds.

    All methods raise redis-py's `RedisError`, or what `open_exchange` raises, when Redis cannot be reached.
    """

    def __init__(self, open_exchange: Callable[[], RedisExchange]) -> None:
        self._open_exchange = open_exchange
        self._exchange: RedisExchange | None = None

    def publish(self, queue: str, tag: str, message: str, garbage_at: float | None = None) -> None:
        """Put a message into a queue, with an entry; nothing if it has an entry already.

        Args:
            garbage_at: If it still waits then, the sweep deletes it; in seconds of the clock of Redis; None: never.
        """
        when = "" if garbage_at is None else f"{garbage_at:.3f}"
        home = keys.without_priority(queue)
        steps.publish.run(self.exchange, queue=queue, home=home, tag=tag, message=message, garbage_at=when)

    def take(self, queue: str, tag: str, message: Callable[[], str], *, is_quarantined: bool = True) -> Delivery:
        """Lease a message that was popped from its queue. `message` gives its text, for the entry of one whose producer
        wrote none; `is_quarantined`: if this worker is lost, the message may be to blame. Of a call,
        `mark_quarantined` says so later."""
        delivery = Delivery(tag, keys.without_priority(queue), priority=priority_of_list(queue))
        take = partial(steps.take.run, self.exchange, tag=tag, home=delivery.queue, is_quarantined=is_quarantined)
        count, state, owner, begun, given_back = take(new_entry="")
        if not count:
            count, state, owner, begun, given_back = take(new_entry=f"{queue}\n\n{message()}")
        delivery.count, delivery.state, delivery.owner = count, CallState(as_text(state)), as_text(owner)
        delivery.begun_before, delivery.given_back = read_begun(begun), given_back
        return delivery

    def mark_quarantined(self, tag: str) -> None:
        """A call whose workers were lost runs alone now: if this worker is lost, too, the call is to blame."""
        self.exchange.execute(*steps.quarantining(tag))

    def give_up(self, tag: str) -> None:
        """A message cannot be handled: when its lease has lapsed, it becomes a dead letter."""
        marked, *expires = steps.quarantining(tag)
        self.exchange.execute((*marked, "deliveries", QUARANTINE_FROM_DELIVERY), *expires)

    def answer(
        self,
        delivery: Delivery,
        result_key: str,
        result: str | bytes,
        lifetime_s: int | None,
        entry: AuditWrite | None = None,
    ) -> None:
        """Store and announce a call's result and remove the call from the in-flight table; nothing if it was answered
        before, another owner than those of `delivery` has begun it, or another worker has parked it since.
        """
        if delivery.counted:
            self._give_back(delivery)
        slots = answer_slots(delivery, result_key, result, lifetime_s)
        if delivery.charges:
            self._end(answer_counted, entry, **slots, charges=delivery.charges)
        else:
            self._end(steps.answer, entry, **slots)

    def answer_large(
        self,
        delivery: Delivery,
        result_key: str,
        result: str | bytes,
        lifetime_s: int | None,
        entry: AuditWrite | None,
        large: LargeWrite,
    ) -> None:
        """As `answer`, and keep the whole of a result with it; a Redis that refuses that stores neither. Raises as
        `large_results.refusals`."""
        if delivery.counted:
            self._give_back(delivery)
        slots = answer_slots(delivery, result_key, result, lifetime_s) | large.slots()
        with refusals():
            self._end(answer_large, entry, **slots, charges=delivery.charges, whole_bytes=large.whole_bytes)

    def may_answer(self, delivery: Delivery) -> bool:
        """Whether `answer` would store a result; for results in another Redis."""
        slots = {"tag": delivery.tag, "owner": delivery.owner, "begins_as": delivery.begins_as}
        return not steps.find_other_answerer.run(self.exchange, **slots)

    def store_unless_known(
        self, tag: str, queue: str, result_key: str, result: str | bytes, lifetime_s: int | None
    ) -> None:
        """Store and announce a result for a task with neither result, marker nor entry; `queue`: of those who wait."""
        self._store(steps.store_unless_known, tag, queue, result_key, result, lifetime_s)

    def refuse(self, tag: str, result_key: str, result: str | bytes, lifetime_s: int | None) -> None:
        """Store and announce the result of a dead letter that has none; nothing if it is no longer one."""
        queue = as_text(self.dead_letter_of(tag)[0].partition(b"\n")[0])
        self._store(steps.refuse, tag, keys.without_priority(queue), result_key, result, lifetime_s)

    def _store(
        self, step: Script[..., None], tag: str, queue: str, key: str, result: str | bytes, lifetime_s: int | None
    ) -> None:
        channel = keys.reply_channel(tag, keys.agent_of_queue(queue))
        step.run(self.exchange, tag=tag, key=key, result=result, ttl_s=lifetime_s or 0, channel=channel)

    def acknowledge(self, delivery: Delivery, entry: AuditWrite | None = None) -> None:
        """Remove a message from the in-flight table; nothing if another owner than those of `delivery` has begun it, or
        another worker has parked it since."""
        if delivery.counted:
            self._give_back(delivery)
        slots = {"owner": delivery.owner, "begins_as": delivery.begins_as}
        self._end(steps.acknowledge, entry, tag=delivery.tag, home=delivery.queue, **slots)

    def discard(self, tag: str, queue: str, entry: AuditWrite | None = None) -> None:
        """Remove a message that waits in its queue, unanswered."""
        self._end(steps.discard, entry, tag=tag, home=queue)

    def record_dead_letter(self, tag: str, entry: AuditWrite | None = None) -> bool:
        """Record a dead letter in the audit, if no worker has done so; whether this was the first."""
        return self._end(steps.record_dead_letter, entry, tag=tag)

    def _end(self, step: Script[..., tuple[int, bytes]], entry: AuditWrite | None, **slots: Any) -> bool:
        entry = entry or NO_ENTRY
        is_first, error = step.run(self.exchange, **slots, entry=entry.text, limit=entry.limit)
        if is_first:
            entry.ended(as_text(error))
        return bool(is_first)

    def _give_back(self, delivery: Delivery) -> None:
        give_back.run(self.exchange, counted=delivery.take_counted())

    def entry_of(self, tag: str, queue: str) -> bytes:
        """The entry of a message that waits in a queue, empty if there is none."""
        found: bytes = self.exchange.execute(("HGET", keys.UNACKED, tag))[0] or b""
        name, line_break, rest = found.partition(b"\n")
        listed = keys.with_priority(queue, keys.priority_in(as_text(name)))
        return listed.encode() + line_break + rest if line_break else found

    def dead_letter_of(self, tag: str) -> tuple[bytes, tuple[Begun, ...]]:
        """A dead letter as it is stored, empty if there is none; and all who had begun it."""
        text, begun = self.exchange.execute(
            ("GET", keys.dead_letter_key(tag)), ("HGET", keys.call_marker(tag), "begun")
        )
        return text or b"", read_begun(begun or b"")

    def requeue(self, delivery: Delivery) -> None:
        """Put a message back at the head of its list, delay it by `wait_s`, or park it; the delivery does not count. If
        another worker has taken it since, only the begin marker may be removed (`Delivery.unbegins`)."""
        if delivery.counted:
            self._give_back(delivery)
        if delivery.pass_on is not None and delivery.pass_on(self.exchange, delivery):
            return
        if delivery.parking is not None:
            if delivery.parking.park(self.exchange, **delivery.slots):
                return
            delivery.parking = None
        if delivery.wait_s <= 0 or not self.delay(delivery, wait_s=delivery.wait_s):
            steps.requeue.run(self.exchange, **delivery.slots)

    def delay(self, delivery: Delivery, *, due_at: float = 0.0, wait_s: float = 0.0) -> bool:
        """Give a message back until its time has come; this delivery does not count. As `requeue`, if another worker
        has taken it since.

        Args:
            due_at: Not before this time, in seconds of the clock of Redis.
            wait_s: Nor before so long from now.

        Returns:
            False if its time has come: it stays leased.
        """
        if delivery.counted:
            self._give_back(delivery)
        return bool(steps.delay.run(self.exchange, **delivery.slots, due_at=due_at, wait_s=wait_s))

    def release_due(self) -> float | None:
        """Move messages that are due into their queues. Returns in how many seconds the next one is due, 0 or less if
        some are left that are due already; None if there is none."""
        due_in_s = release_due.run(self.exchange)
        return float(due_in_s) if due_in_s else None

    def renew(self, deliveries: Iterable[Delivery]) -> None:
        """Renew the leases of messages."""
        steps.renew.run(self.exchange, renewed=list({delivery.lease for delivery in deliveries}))

    def purge(self, queue: str, lists: Iterable[str]) -> int:
        """Delete the messages of a queue, also delayed ones; how many it had. `lists` are its keys, by priority."""
        return steps.purge.run(self.exchange, *lists, home=queue)

    def sweep(self, lease_s: float, quiet_s: float, served: Sequence[str] = ()) -> Swept:
        """Put back what was lost on its way, or with a worker that no longer renews its lease.

        Args:
            lease_s: How long a lease lasts.
            quiet_s: If there was no sweep for longer, Redis was unavailable: owners get as long to renew leases.
            served: Queues that are searched even if thousands of others are listed.
        """
        *found, is_crowded = sweep.run(self.exchange, served=served, lease_s=lease_s, quiet_s=quiet_s)
        restored, dead_letters, garbage, queues, dropped = (tuple(map(as_text, each)) for each in found)
        return Swept(restored, dead_letters, tuple(zip(garbage, queues, strict=True)), dropped, bool(is_crowded))

    @property
    def exchange(self) -> RedisExchange:
        """For other commands that concern the same Redis."""
        if self._exchange is None:
            self._exchange = self._open_exchange()
        return self._exchange


def as_text(value: bytes | str) -> str:
    """What Redis replied, as text: a script replies with texts that it made, or with bytes that it was sent."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def read_state(value: bytes | str) -> CallState:
    """The state that a marker has. Of a damaged one nobody knows what it said: so the call may have begun."""
    try:
        return CallState(as_text(value))
    except ValueError:
        return CallState.BEGUN


def answer_slots(delivery: Delivery, result_key: str, result: str | bytes, lifetime_s: int | None) -> dict[str, Any]:
    """What `steps.answer` takes, without the audit entry."""
    return {
        "tag": delivery.tag,
        "home": delivery.queue,
        "owner": delivery.owner,
        "begins_as": delivery.begins_as,
        "key": result_key,
        "result": result,
        "ttl_s": lifetime_s or 0,
        "channel": keys.reply_channel(delivery.tag, keys.agent_of_queue(delivery.queue)),
    }
