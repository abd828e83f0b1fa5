"""Parked calls: they wait for a person or for a machine, and hold no slot, no thread and no session meanwhile.

Owns the scripts that park a call, decide about it, and wake it when its time is over; how it gets back into its queue
is in `parked_waking`. It knows neither Celery nor MCP, and not why a call waits: a worker's interceptor ends a call
with `interceptors.Parked`, and looks at what was decided when the call comes back. What people see of them is in
`parked_views`.

**States.** A parked call is a message of the in-flight table, as one with an ETA is (`delayed`): its entry stays, so
Celery's task is unfinished, and chains, groups and chords wait for it. Waking it puts the same message back at the head
of its queue, and any worker goes on with the same task id:

    leased ──park──► parked ──approved, denied, expired──► waiting ──take──► leased, with the decision in its record
                        └──withdraw──► withdrawn: its agent cancelled it

- Only a call whose `CallInfo.park` is set is parked. All others are `rejected`: nobody would wait for them.
- A delivery that ends with parking does not count. A worker that is lost before it has parked a call has lost a lease,
  and the call is delivered again; one that is lost afterwards had it no more. Nothing of a parked call is in a process.
- A parked call has not begun, so an answer that denies it is sure of that. Whether it runs once when it is woken is
  decided as for every call, by its begin marker (`deliveries`). One that waits for a task of its server has begun, and
  its marker stays: it is never sent again.

- Of one principal only so many are parked at once. A further one goes back to its queue as `refused`, and the worker
  that takes it answers it. One that was parked before is parked again in any case.

**Keys.** `tarsy:parked` is a sorted set of the places (queue and tag, as in `tarsy:delayed`) by when they are woken in
any case; others have parts of it (`parked_places`). `tarsy:parked:<id>` is the call's record, a hash with a TTL;
workers and operators write it, agents cannot:

| field | |
|---|---|
| `home`, `until` | where it goes back to, and when at the latest |
| `reason`, `about` | why it waits; what people see of it, in JSON, masked (`ParkedCallView`) |
| `approved`, `approved_by` | of a call that was approved and waits again: the digest that was approved, and by whom |
| `task` and others | of a call that waits for a task of its server (`server_tasks`) |
| `digest` | of what was asked: a decision names it, and a worker compares it with what it is about to send |
| `needs`, `approvals` | how many people have to approve it, and who has, a line each |
| `approvals_folded` | the same names as they are compared (`_fold`) |
| `principal` | who called, if that is verified: nobody approves a call of their own |
| `decision`, `by`, `why` | `approved`, `denied`, `answered`, `expired` or `refused`, once; by whom, and why a denial |
| `allowance_s`, `resumed_at` | how long it may take once it is woken, and when that was |

The field `parked` of the call's marker says the same to agents, who may read markers: so a call is withdrawn as ever.
Woken, it has `resumed`: such a marker outlives the record, so that no agent has a decision count a second time.
While it is parked, its result is Celery's usual text with the state `PARKED`, which is not one of Celery's states of
tasks that are done; `ParkedCall` is what agents read there, and it is published as an answer is.

**Deadlines.** What its agent waits for a parked call does not count from when it was sent: its deadline is `until`, and
woken, it has its whole time again. Record, marker and the stored state follow `until`. At `until` it is woken like any
other, as `expired`, so that a worker answers it: with an audit entry, and for Celery's canvas.

All times are those of Redis. Each script may be sent twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.entries import GIVE_BACK, MARKER_TTL_S
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.parked_places import PLACES
from tarsy_tasks.broker.parked_records import ParkedRecord
from tarsy_tasks.broker.parked_views import TASK, ParkedCallView, load, load_waiting
from tarsy_tasks.broker.parked_waking import KEPT_S, WAKE
from tarsy_tasks.broker.script import NOW, Table, constants, script
from tarsy_tasks.broker.steps import KEYS, UNBEGIN

__all__ = [
    "TASK",
    "Decided",
    "ParkedCallView",
    "ParkedRecord",
    "Parking",
    "decide",
    "load",
    "load_waiting",
    "wake_due",
]


class Decided(StrEnum):
    """What became of a decision."""

    APPROVED = "approved"
    DENIED = "denied"
    COUNTED = "counted"
    """It was recorded, and another person has to approve the call, too."""
    REPEATED = "repeated"
    """The same person has approved it before, and another one has to."""
    OWN = "own"
    """It is a call of the same principal."""
    CHANGED = "changed"
    """It is about other arguments than those that the call has."""
    LATE = "late"
    """It was decided before."""
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    GONE = "gone"
    """Its message was deleted or replaced, or it has ended."""
    OTHER = "other"
    """It waits for something else: answers, and not an approval."""
    UNKNOWN = "unknown"
    """There is no such parked call."""


# Returns 0, and does not park it, in three cases: nobody waits for the call any more (one that waits for a task is
# parked nevertheless, so that its task is cancelled); it is one too many; another worker has taken it since. If `owner`
# has begun the call, that other worker only waits for it, and the call is parked nevertheless, once. The begin marker
# of `begun_as` is removed, whatever is returned. With the record of the same question the earlier approvals stay: its
# worker was lost, and another one asks again.
@script(
    constants(marker_ttl_s=MARKER_TTL_S, kept_s=KEPT_S, polled_ttl_s=32 * 24 * 3600, refused_s=600),
    NOW,
    UNBEGIN,
    PLACES,
    GIVE_BACK,
    r"""
    local lease = home .. '\n' .. tag
    local mark, current, resumed, parked_by = unpack(redis.call('HMGET', marker,
        'mark', 'owner', 'resumed', 'parked_by'))
    local is_owner = mark == 'begun' and current == owner and parked_by ~= owner
    unbegin(begun_as)
    if not record.task and redis.call('EXISTS', withdrawn) == 1 then return 0 end
    if not (is_current() or is_owner) then  -- it may be this one that has parked it, and the reply was lost
        local is_same = redis.call('HGET', parked_call, 'digest') == record.digest
        return is_same and redis.call('ZSCORE', parked, lease) and 1 or 0
    end
    if redis.call('HEXISTS', unacked, tag) == 0 then
        redis.call('ZREM', leases, lease)
        return 1
    end
    if not resumed and not has_room(record.principal, most) then
        if not record.task then  -- of a task all is known already
            redis.call('DEL', parked_call, input)
            for _, name in ipairs({'digest', 'reason'}) do redis.call('HSET', parked_call, name, record[name]) end
            redis.call('EXPIRE', parked_call, refused_s)
        end
        redis.call('HSET', parked_call, 'decision', 'refused')
        return 0
    end
    list_place(lease, ends_at, record.principal, record.reason)
    redis.call('ZADD', parked, ends_at, lease)  -- of another type, it fails: the lease is kept
    redis.call('ZREM', leases, lease)
    local left_s = math.ceil(math.max(0, ends_at - now))
    if redis.call('HGET', parked_call, 'digest') ~= record.digest then redis.call('DEL', parked_call) end
    for name, value in pairs(record) do redis.call('HSET', parked_call, name, value) end
    redis.call('HDEL', parked_call, 'decision', 'by', 'why', 'resumed_at')  -- it waits again
    redis.call('HSET', parked_call, 'home', home, 'until', string.format('%.3f', ends_at))
    redis.call('EXPIRE', parked_call, left_s + kept_s)
    if next(kept) then redis.call('DEL', input) end
    for name, value in pairs(kept) do redis.call('HSET', input, name, value) end
    redis.call('EXPIRE', input, left_s + kept_s)
    end_uncounted()
    redis.call('HDEL', marker, 'suspect', 'taken')  -- nobody has it: if it is withdrawn, its agent records that
    redis.call('HSET', marker, 'parked', 1, 'parked_by', owner)
    redis.call('EXPIRE', marker, left_s + marker_ttl_s)
    if polled ~= '' then
        redis.call('ZADD', polled, now + poll_s, lease)
        redis.call('EXPIRE', polled, polled_ttl_s)
    end
    if state ~= '' then
        redis.call('SET', stored_result, state, 'EX', left_s + kept_s)
        redis.call('PUBLISH', stored_result, state)
        redis.call('PUBLISH', channel, state)
    end
    return 1
    """,
    known={**KEYS, "input": (keys.input_key, "tag")},
)
def _park(
    *,
    home: str,
    tag: str,
    delivery_count: int,
    given_back: int,
    ends_at: float,
    record: Table,
    kept: Table,
    state: str,
    channel: str,
    polled: str,
    poll_s: float,
    begun_as: str,
    owner: str,
    most: int,
) -> int: ...


@dataclass(frozen=True, slots=True)
class Parking:
    """What `park` writes of a call.

    Attributes:
        record: The fields of its record that are known when it is parked.
        until: When it is woken in any case, in seconds since the epoch by the clock of Redis.
        state: What is stored as the state of the task, in Celery's form; empty to store none.
        polled: The set of those of its server that wait for a task; empty: it does not.
        poll_s: In how many seconds the server is asked about the task.
        input_round: As of `interceptors.Parked`.
        owner: Who has begun the call; empty: it has not begun.
        most: How many calls of its principal may be parked at once; 0: any number.
        state_elsewhere: In place of `state` if results are in another Redis (`results_elsewhere`).
    """

    record: dict[str, Any]
    until: float
    state: str
    polled: str = ""
    poll_s: float = 0.0
    input_round: Mapping[str, str] = field(default_factory=dict[str, str])
    owner: str = ""
    most: int = 0
    state_elsewhere: str = ""

    def park(
        self, exchange: RedisExchange, *, home: str, tag: str, delivery_count: int, given_back: int, begun_as: str
    ) -> bool:
        """Park a call that this worker has taken; False if nobody waits for it any more, it is one too many, or another
        worker has taken it since and does not wait for this one. The arguments are `Delivery.slots`."""
        return bool(
            _park.run(
                exchange,
                home=home,
                tag=tag,
                delivery_count=delivery_count,
                given_back=given_back,
                begun_as=begun_as,
                ends_at=self.until,
                record=self.record,
                kept=dict(self.input_round),
                state=self.state,
                channel=keys.reply_channel(tag, keys.agent_of_queue(home)),
                polled=self.polled,
                poll_s=self.poll_s,
                owner=self.owner,
                most=self.most,
            )
        )


@script(
    NOW,
    WAKE,
    r"""
    local home, ends_at, needs, decision, asked, approvals, folded = unpack(redis.call('HMGET', parked_call,
        'home', 'until', 'needs', 'decision', 'digest', 'approvals', 'approvals_folded'))
    if not home or redis.call('HEXISTS', parked_call, 'task') == 1 then return 'unknown' end
    if redis.call('HGET', parked_call, 'reason') ~= 'approval' then return 'other' end
    if decision then return decision == 'expired' and decision or 'late' end
    if asked ~= digest then return 'changed' end
    if now >= tonumber(ends_at) then return 'expired' end
    if redis.call('EXISTS', withdrawn) == 1 then return 'withdrawn' end
    local place = home .. '\n' .. tag
    if not entry_of(tag, home) then
        have_forgotten(place)
        return 'gone'
    end
    local decided_by = by
    if is_approved then
        if is_own then return 'own' end
        local count = 1
        for name in string.gmatch(folded or '', '[^\n]+') do
            if name == by_folded then return 'repeated' end
            count = count + 1
        end
        local everyone = count > 1 and approvals .. '\n' .. by or by
        local everyone_folded = count > 1 and folded .. '\n' .. by_folded or by_folded
        redis.call('HSET', parked_call, 'approvals', everyone, 'approvals_folded', everyone_folded)
        if count < (tonumber(needs) or 1) then return 'counted' end
        decided_by = string.gsub(everyone, '\n', ', ')
    end
    local verdict = is_approved and 'approved' or 'denied'
    redis.call('HSET', parked_call, 'decision', verdict, 'by', decided_by, 'why', why)
    wake(place)
    return verdict
    """,
    known=KEYS,
)
def _decide(*, tag: str, digest: str, is_approved: bool, by: str, by_folded: str, is_own: bool, why: str) -> bytes: ...


# As `delayed.release_due`. What agents have withdrawn is found by looking through all of them, a part each time; so are
# those that older workers have parked and not listed. Returns in how many seconds the next one is due, and the ids of
# those that were withdrawn.
@script(
    constants(most=200, most_bytes=1024 * 1024, looked_at=300),
    NOW,
    WAKE,
    r"""
    local bytes, withdrawn_tags = 0, {}
    local function forget_withdrawn(place)
        forget(place)
        withdrawn_tags[#withdrawn_tags + 1] = string.match(place, '\n(.*)$')
    end
    for _, place in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', now, 'LIMIT', 0, most)) do
        if bytes >= most_bytes then break end
        local record = parked_prefix .. (string.match(place, '\n(.*)$') or '')
        if redis.call('EXISTS', record) == 1 then redis.call('HSETNX', record, 'decision', 'expired') end
        local read = wake(place)
        if read then bytes = bytes + read else forget_withdrawn(place) end
    end
    local size = redis.call('ZCARD', parked)
    local first = size > looked_at and look * looked_at % size or 0
    local looked = redis.call('ZRANGE', parked, first, first + looked_at - 1, 'WITHSCORES')
    for n = 1, #looked, 2 do
        if is_withdrawn_from(looked[n]) then forget_withdrawn(looked[n])
        else list_if_missing(looked[n], looked[n + 1]) end
    end
    for _, name in ipairs({inbox_people, inbox_tasks}) do  -- an older worker that wakes a call leaves it there
        redis.pcall('ZREMRANGEBYSCORE', name, '-inf', now - lost_s)
    end
    local due = redis.call('ZRANGE', parked, 0, 0, 'WITHSCORES')[2]
    return {due and tostring(due - now) or '', withdrawn_tags}
    """,
    known=KEYS,
)
def _wake_due(*, look: int) -> tuple[bytes, list[bytes]]: ...


def wake_due(
    exchange: RedisExchange, look: int = 0, on_withdrawn: Callable[[list[str]], None] = lambda _: None
) -> float | None:
    """Wake parked calls that have waited as long as they may, and forget withdrawn ones. Returns in how many seconds
    the next one ends, 0 or less if some are left that have ended already; None if there is none.

    Args:
        look: Grows with each call, so that in the end all parked calls were looked at.
        on_withdrawn: Called with the ids of those that were forgotten, if there are any.
    """
    due_in_s, withdrawn = _wake_due.run(exchange, look=look)
    if withdrawn:
        on_withdrawn([tag.decode(errors="replace") for tag in withdrawn])
    return float(due_in_s) if due_in_s else None


def decide(redis: Any, view: ParkedCallView, *, is_approved: bool, by: str, why: str = "") -> Decided:
    """Approve or deny a parked call, as one person.

    Args:
        redis: A redis-py client that decodes nothing.
        view: What that person has seen: it has to be what the call still asks.
        by: Their name. `Ann` and ` ann ` are one person.
        why: Their reason, for the agent and the audit.
    """
    by, folded = " ".join(by.split()), _fold(by)
    # The digest is also that of the principal, so it is still the one that the view has.
    is_own = bool(view.principal) and folded == _fold(view.principal)
    command = _decide.command(
        tag=view.id,
        digest=view.digest,
        is_approved=is_approved,
        by=by,
        by_folded=folded,
        is_own=is_own,
        why=why,
    )
    found = redis.execute_command(*command)
    return Decided(found.decode() if isinstance(found, bytes) else found)


def _fold(name: str) -> str:
    """A name without what does not make it another one."""
    return " ".join(name.split()).casefold()
