"""What servers have asked in calls that wait for input: what only workers may see of it, and answering it.

Owns the key of such a call beside its record (`parked_calls`). Neither agents nor dashboards can read it, because it
has what the server said of the call for itself. It does not know whether answers fit (`input_answers`), nor who may
give them.

| field of `tarsy:input:<id>` | |
|---|---|
| `round` | how often the server has asked in this call |
| `asked` | its questions, unmasked (`input_answers.AskedQuestion`) |
| `state` | its own state of the call, sent back as it is; absent if it has none |
| `sent` | digest of server, tool and arguments that it was asked with |
| `answers` | what it is answered, once somebody has: JSON, by its keys |

A call of the handshake era is not parked: the session waits, and the worker that holds it looks for the answer. Its
record says so (`held`), and it is in `tarsy:asking` instead of `tarsy:parked`. Answering it wakes nothing.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_waking import KEPT_S, WAKE
from tarsy_tasks.broker.script import NOW, Table, constants, script
from tarsy_tasks.broker.steps import KEYS

__all__ = ["Answered", "InputRound", "give_answers", "hold", "let_go"]

_KEYS = {**KEYS, "input": (keys.input_key, "tag"), "asking": keys.ASKING}


class Answered(StrEnum):
    """What became of an answer."""

    ANSWERED = "answered"
    CHANGED = "changed"
    """The server has asked something else since."""
    LATE = "late"
    """It was answered before."""
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """The call was cancelled, or has ended."""
    UNKNOWN = "unknown"
    """There is no call of this id that waits for input."""


@dataclass(frozen=True, slots=True)
class InputRound:
    """What is kept of one round of questions; texts are JSON, as in the table.

    Attributes:
        number: From 1 on.
        state: None if the server has none.
        answers: None as long as nobody has answered.
    """

    number: int
    asked: str
    sent: str
    state: str | None = None
    answers: str | None = None

    FIELDS = ("round", "asked", "sent", "state", "answers")

    @classmethod
    def read(cls, found: list[Any]) -> "InputRound | None":
        """That of the values of its `FIELDS`; None if there is none."""
        number, asked, sent, state, answers = [
            each.decode(errors="replace") if isinstance(each, bytes) else each for each in found
        ]
        if not (number and asked is not None and number.isdecimal()):
            return None
        return cls(int(number), asked, sent or "", state, answers)

    def fields(self) -> dict[str, str]:
        """As a hash in Redis, before it is answered."""
        state = {} if self.state is None else {"state": self.state}
        return {"round": str(self.number), "asked": self.asked, "sent": self.sent, **state}


@script(
    constants(input_kept_s=KEPT_S),
    NOW,
    WAKE,
    r"""
    local home, ends_at, decision, asked, reason, is_held = unpack(redis.call('HMGET', parked_call,
        'home', 'until', 'decision', 'digest', 'reason', 'held'))
    if reason ~= 'input_required' then return 'unknown' end
    if decision then return decision == 'expired' and decision or 'late' end
    if asked ~= digest then return 'changed' end
    if now >= tonumber(ends_at) then return 'expired' end
    if redis.call('EXISTS', withdrawn) == 1 or redis.call('HEXISTS', unacked, tag) == 0 then return 'withdrawn' end
    if not is_held and not entry_of(tag, home) then
        have_forgotten(home .. '\n' .. tag)
        return 'withdrawn'
    end
    redis.call('HSET', input, 'answers', answers)
    redis.call('HSET', parked_call, 'decision', 'answered', 'by', by)
    if not is_held then
        wake(home .. '\n' .. tag)
        redis.call('EXPIRE', input, input_kept_s)
    end
    return 'answered'
    """,
    known=_KEYS,
    grows=True,
)
def give_answers(*, tag: str, digest: str, answers: str, by: str) -> bytes: ...


# A session waits. The record takes the place of an earlier one. Returns 0, and does nothing, for a call that has ended:
# what is stored is its answer.
@script(
    constants(kept_s=KEPT_S),
    NOW,
    r"""
    if redis.call('HEXISTS', unacked, tag) == 0 or redis.call('HGET', marker, 'mark') == 'answered' then return 0 end
    local left_s = math.ceil(math.max(0, ends_at - now))
    redis.call('DEL', parked_call, input)
    for name, value in pairs(record) do redis.call('HSET', parked_call, name, value) end
    redis.call('HSET', parked_call, 'until', string.format('%.3f', ends_at))
    redis.call('EXPIRE', parked_call, left_s + kept_s)
    for name, value in pairs(kept) do redis.call('HSET', input, name, value) end
    redis.call('EXPIRE', input, left_s + kept_s)
    redis.call('ZREMRANGEBYSCORE', asking, '-inf', now)
    redis.call('ZADD', asking, ends_at, tag)
    redis.call('EXPIRE', asking, left_s + kept_s)
    if state ~= '' then
        redis.call('SET', stored_result, state, 'EX', left_s + kept_s)
        redis.call('PUBLISH', stored_result, state)
        redis.call('PUBLISH', channel, state)
    end
    return 1
    """,
    known=_KEYS,
    grows=True,
)
def hold(*, tag: str, ends_at: float, record: Table, kept: Table, state: str, channel: str) -> int: ...


# It waits no more. What is stored may be the answer of the call already.
@script(
    """
    if redis.call('HGET', parked_call, 'digest') ~= digest then return end
    redis.call('HSETNX', parked_call, 'decision', 'expired')
    redis.call('DEL', input)
    redis.call('ZREM', asking, tag)
    if string.find(redis.call('GETRANGE', stored_result, 0, 30), '"status": "PARKED"', 1, true) then
        redis.call('DEL', stored_result)
    end
    """,
    known=_KEYS,
)
def let_go(*, tag: str, digest: str) -> None: ...
