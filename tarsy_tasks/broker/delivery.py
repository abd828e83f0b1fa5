"""One delivery of a message to a worker: what is known of the message, and what is to become of it.

`deliveries` sends the commands of Redis that move a message from one state to another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tarsy_tasks.broker.begun import Begun
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.large_results import LargeWrite
from tarsy_tasks.broker.parked_calls import Parking
from tarsy_tasks.priorities import NORMAL, Priority

__all__ = ["NO_ENTRY", "AuditSource", "AuditWrite", "CallState", "Delivery"]


class CallState(StrEnum):
    """What the marker of a call says; where it is, other keys say."""

    NONE = ""
    """There is no marker: the call has not begun, or nothing is known of it. From `AsyncDeliveries.withdraw`: it was
    withdrawn just now; from `AsyncDeliveries.begin`: this worker has begun it."""
    BEGUN = "begun"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"
    PARKED = "parked"
    """It is another message with the id of a parked call: it was not leased, and is to be dropped. From
    `AsyncDeliveries.begin`: another worker has parked it since this one took it."""


@dataclass(frozen=True, slots=True)
class AuditWrite:
    """What the script that ends a call writes to the audit: so there is one entry per call, whatever fails when.

    Attributes:
        text: The entry for the stream; empty: it gets none.
        limit: About how many entries the stream keeps.
        ended: Called when it was this script that ended the call, with the reason why the stream did not take the
            entry, or with an empty text.
    """

    text: str
    limit: int
    ended: Callable[[str], None]


NO_ENTRY = AuditWrite("", 0, lambda _: None)


class AuditSource(Protocol):
    """What a worker knows of a call that it runs."""

    def write(self, status: str | None = None, result: Any = None, size_bytes: int | None = None) -> AuditWrite:
        """The audit entry of the call, which ends now: with Celery's state, the result that is stored, and its size;
        with none of them if nothing is stored."""
        ...


@dataclass(slots=True)
class Delivery:
    """One message that this worker took.

    Attributes:
        tag: Of a call, the task id.
        queue: Where it was taken from, without a priority.
        count: The delivery count; deliveries that ended with a requeue do not count.
        given_back: How many earlier deliveries were requeued, delayed, parked or passed on. No two deliveries of a
            message have the same `count` and the same `given_back`.
        state: The state of the call when it was taken.
        owner: Who began it, if it has begun.
        size_bytes: Of the message, if it was fetched in the package's own way.
        begun_before: All who had begun it when it was taken, in order.
        signer: Who signed it, if its signature was verified.
        counted: The limits in whose rate and concurrency it was counted when it was taken, a line for each: its id, and
            what it used of the rate (`limit_counters.give_back`). Empty once that is given back, or the call has begun.
        charges: What its result is counted for, in JSON; see `limit_counters.answer_counted`.
        priority: That of the list that it was taken from.
        begins_as: The owner as whom this worker begins it, known before Redis has replied.
        runs: It is in the pool, and goes on when the connection to Redis is replaced.
        answered: Result and acknowledgement went out together.
        kept: It must not be acknowledged: its answer could not be stored.
        unbegins: If it is requeued, the begin marker of this worker is removed: it was not sent, or it did not complete
            and is to be sent again.
        wait_s: If it is requeued, how long it is delayed before it is back in its queue.
        parking: If it is requeued, and parked instead: what is written of it; None if it was not parked after all.
        record: What the worker knows of it; None for what is not a call.
        large: What is to be kept with its answer; None if that is small.
        pass_on: If it is requeued, moves it to the worker that has to run it instead; false: there is none any more.
        requeued: Called once it is back in its queue, delayed or parked; None if nobody has to know.
        forget: Has the channel count it as waiting for its acknowledgement no longer; None if it has no channel.
    """

    tag: str
    queue: str
    count: int = 1
    state: CallState = CallState.NONE
    owner: str = ""
    size_bytes: int = 0
    begins_as: str = ""
    runs: bool = False
    answered: bool = False
    kept: bool = False
    unbegins: bool = False
    wait_s: float = 0.0
    parking: Parking | None = None
    record: AuditSource | None = None
    requeued: Callable[[], None] | None = None
    forget: Callable[[], None] | None = None
    pass_on: "Callable[[RedisExchange, Delivery], bool] | None" = None
    large: LargeWrite | None = None
    begun_before: tuple[Begun, ...] = ()
    signer: str = ""
    counted: str = ""
    charges: str = ""
    priority: Priority = NORMAL
    given_back: int = 0

    def large_of(self, result: object) -> LargeWrite | None:
        """What is to be kept with an answer; None if it is small, or another one."""
        return self.large if self.large is not None and self.large.result is result else None

    @property
    def counted_in(self) -> frozenset[str]:
        """The ids of the limits in which it is counted."""
        return frozenset([line.partition(" ")[0] for line in self.counted.splitlines()])

    def take_counted(self) -> str:
        """What is to be given back, because it is not sent; the second time nothing."""
        counted, self.counted = self.counted, ""
        return counted

    @property
    def lease(self) -> str:
        """Its name among the leases."""
        return f"{self.queue}\n{self.tag}"

    @property
    def name(self) -> str:
        """Its name in this process, which may take one message twice."""
        return f"{self.tag} {self.number}"

    @property
    def number(self) -> str:
        """Which delivery of the message it is."""
        return f"{self.count}.{self.given_back}" if self.given_back else str(self.count)

    @property
    def slots(self) -> dict[str, Any]:
        """What the steps that give it back take."""
        return {
            "home": self.queue,
            "tag": self.tag,
            "delivery_count": self.count,
            "given_back": self.given_back,
            "begun_as": self.begins_as if self.unbegins else "",
        }
