"""Dead letters, as the pages show them: which calls they were, without their messages.

Owns joining the index of dead letters and the audit. The messages hold arguments that nobody masked, so Flower has no
right to read them; `tarsy-tasks dead-letters` shows, retries and drops them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.sweep import DEAD_LETTER_TTL_S
from tarsy_tasks.dashboard.recent_calls import RecentCalls
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter

__all__ = ["DeadLetterList", "ShownDeadLetter", "read_dead_letters"]

_SHOWN = 100
_SCAN_LIMIT = 20_000


@dataclass(frozen=True)
class ShownDeadLetter:
    """One dead letter.

    Attributes:
        id: Of a call, the task id.
        moved_at: When it was moved out of its queue, in seconds since the epoch by the clock of Redis.
        expires_at: When Redis deletes it.
        entry: Its audit entry; None if there is none, or it is no longer there.
    """

    id: str
    moved_at: float
    expires_at: float
    entry: AuditEntry | None


@dataclass(frozen=True)
class DeadLetterList:
    """The latest, newest first, and how many there are in all."""

    letters: tuple[ShownDeadLetter, ...]
    total: int


def read_dead_letters(broker: Any, recent: RecentCalls) -> DeadLetterList:
    """All that Redis keeps. Raises `RedisError`."""
    now = broker.time()[0]
    found: list[tuple[bytes, float]] = broker.zrevrange(keys.DEAD_LETTERS, 0, _SHOWN - 1, withscores=True)
    kept = [(tag.decode(errors="replace"), at) for tag, at in found if at > now - DEAD_LETTER_TTL_S]
    entries: Mapping[str, AuditEntry] = {}
    if kept:
        wanted = AuditFilter(error_code=ErrorCode.SET_ASIDE)
        entries = {entry.task_id: entry for entry in recent.find_further(wanted, _SHOWN, _SCAN_LIMIT).entries}
    letters = tuple(ShownDeadLetter(tag, at, at + DEAD_LETTER_TTL_S, entries.get(tag)) for tag, at in kept)
    return DeadLetterList(letters, broker.zcard(keys.DEAD_LETTERS) if len(found) == _SHOWN else len(letters))
