"""What a worker reads of the record of a parked call, when the call goes on.

Owns the shape of it in Python; what the fields are for is in `parked_calls` and `server_tasks`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

__all__ = ["ParkedRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRecord:
    """Attributes:
    digest: Of what was asked.
    until: When it is or was woken in any case; time of Redis.
    decision: `approved`, `denied`, `answered` or `expired`; empty: nothing was decided. `refused`: too many calls of
        its principal were parked. Of a task also `done` and `cancelled`.
    by: Who decided, comma-separated.
    why: The reason that they gave.
    resumed_at: When it was woken; None before.
    allowance_s: How long it may take from then on.
    reason: Why it waits, or waited.
    approved: What was approved of it before, as a digest; empty if nothing was.
    approved_by: By whom.
    task: The server's id of the task that it waits for, a secret; empty: it waits for something else.
    task_until: How long it waits for that, while it waits for input of the task; time of Redis.
    sent_at: When the server gave it that; time of Redis.
    attempts: How often it had been sent by then.
    approval: What had been decided about sending it, as in the audit.
    charges: As of `Delivery`.
    events: 1 if somebody listens to its events.
    holder: The worker whose own process the server is.
    returns: How often it was woken for a task that turned out not to be done.
    held: 1 if its session waits, in a worker: the record says nothing about a call that is delivered again.
    rounds: How often its task has asked for input.
    answered: The keys of what that asked, and was answered; JSON.
    answered_by: Who has answered, as in the audit.
    """

    digest: str
    until: float
    decision: str = ""
    by: str = ""
    why: str = ""
    resumed_at: float | None = None
    allowance_s: float = 0.0
    reason: str = ""
    approved: str = ""
    approved_by: str = ""
    task: str = ""
    task_until: float = 0.0
    sent_at: float = 0.0
    attempts: int = 0
    approval: str = ""
    charges: str = ""
    events: int = 0
    holder: str = ""
    returns: int = 0
    held: int = 0
    rounds: int = 0
    answered: str = ""
    answered_by: str = ""

    FIELDS: ClassVar[tuple[str, ...]]
    _NUMBERS: ClassVar[Mapping[str, Callable[[str], float]]] = {
        **dict.fromkeys(("until", "resumed_at", "allowance_s", "task_until", "sent_at"), float),
        **dict.fromkeys(("attempts", "events", "returns", "held", "rounds"), int),
    }

    @classmethod
    def read(cls, found: list[Any]) -> "ParkedRecord | None":
        """The record, of the values of its `FIELDS`; None if there is none."""
        texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in found]
        given = {name: text for name, text in zip(cls.FIELDS, texts, strict=True) if text}
        if "digest" not in given:
            return None
        values: dict[str, Any] = {"until": 0.0}
        for name, text in given.items():
            values[name] = cls._NUMBERS[name](text) if name in cls._NUMBERS else text
        return cls(**values)

    def task_fields(self) -> dict[str, Any]:
        """What is kept of its task when it is parked again."""
        names = ("task", "sent_at", "attempts", "approval", "charges", "events", "holder", "returns", "rounds")
        kept = {name: getattr(self, name) for name in (*names, "answered", "answered_by")}
        return {name: value for name, value in kept.items() if value}


ParkedRecord.FIELDS = tuple(each.name for each in fields(ParkedRecord))
