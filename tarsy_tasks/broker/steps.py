"""The steps in which a message moves between its states, each one Lua script.

Owns the scripts. Each may be sent twice, for a reply may be lost. `deliveries` explains the states, and
when each step is taken.

An entry of the in-flight table is a text of three lines: queue, garbage time, message. A lease is one of two: queue and
tag. The marker of a call is a hash with the fields `mark` (its state), `owner`, `begun` (who began it and when, a line
each), `taken`, `message` (`entries`), `deliveries` (the delivery count), `given_back` (how many do not count in it),
`lost_pops`, `suspect` (it is quarantined), `parked`, `parked_by` and `resumed` (`parked_calls`) and `told` (its dead
letter is in the audit and in the log).
"""

from functools import partial
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.audit_probe import PROBE_AUDIT
from tarsy_tasks.broker.begun import LONGEST_CHARS
from tarsy_tasks.broker.entries import ANNOUNCE, ENTRIES, GIVE_BACK, MARKER_TTL_S, TAKE
from tarsy_tasks.broker.script import NOW, Key, KnownKey, Table, constants, script

ENDED_TTL_S = 600
"""How long a marker outlives the answer of its call, unless a copy of the message went back to its queue meanwhile, or
the call was parked: what was decided is known for longer, and counts once, though its agent can send it again."""

_RECORD = f"""
    local function record(stream, text, limit)
        if text == '' then return '' end
        local id = redis.pcall('XADD', stream, 'MAXLEN', '~', limit, '*', '{keys.AUDIT_FIELD}', text)
        if type(id) == 'table' then return id.err end  -- the call is answered, also without its audit entry
        redis.call('EXPIRE', stream, {keys.AUDIT_TTL_S})
        return ''
    end
    """

KEYS: dict[str, KnownKey] = {
    "unacked": keys.UNACKED,
    "leases": keys.LEASES,
    "delayed": keys.DELAYED,
    "parked": keys.PARKED,
    "queues": keys.QUEUES,
    "sweeps": keys.SWEEPS,
    "dead_letters": keys.DEAD_LETTERS,
    "audit": keys.AUDIT,
    "waiting": (keys.waiting_key, "home"),
    "marker": (keys.call_marker, "tag"),
    "withdrawn": (keys.withdrawn_key, "tag"),
    "parked_call": (keys.parked_key, "tag"),
    "cancelled": (keys.cancelled_key, "tag"),
    "dead_letter": (keys.dead_letter_key, "tag"),
    "stored_result": (keys.result_key, "tag"),
}
"""The keys of calls, by slot; `home` is a queue without its priority."""

step = partial(script, constants(marker_ttl_s=MARKER_TTL_S, ended_ttl_s=ENDED_TTL_S), known=KEYS)
"""Declares a step: a script that has the keys above, and how long markers are kept."""
_LEASE = r"local lease = home .. '\n' .. tag"


PUBLISH = r"""
    announce(home, worker)
    if redis.call('HSETNX', unacked, tag, queue .. '\n' .. garbage_at .. '\n' .. message) == 0 then return 0 end
    redis.call('ZADD', waiting, now, tag)
    redis.call('ZADD', queues, 'NX', now, home)
    return redis.call('LPUSH', queue, message)
    """
"""In Lua, what `publish` does. It needs `NOW` and `ANNOUNCE`, and `worker`: who alone is to look, if it is nil, all."""


@step(NOW, ANNOUNCE, "local worker", PUBLISH, grows=True)
def publish(*, queue: Key, tag: str, message: str, garbage_at: str, home: str) -> int: ...


# Returns the delivery count, the state, the owner, the lines of all who began it, and how often it was given back
# before. The count is 0 if the message has no entry, because its producer wrote none, and `new_entry` is empty.
@step(
    NOW,
    TAKE,
    "return take(tag, home, waiting, marker, withdrawn, new_entry, is_quarantined)",
)
def take(*, tag: str, home: str, new_entry: str, is_quarantined: bool) -> tuple[int, bytes, bytes, bytes, int]: ...


BEGIN_CHECK = (
    PROBE_AUDIT
    + """
    local state, current, begun, is_parked = unpack(redis.call('HMGET', marker, 'mark', 'owner', 'begun', 'parked'))
    if is_parked then return {'parked', ''} end
    if state == 'answered' then return {state, ''} end
    if not state and redis.call('EXISTS', withdrawn) == 1 then return {'withdrawn', ''} end
    if state == 'begun' and current ~= owner and current ~= earlier_owner then return {state, current} end
    local trouble = is_audited and probe_audit()
    if trouble then return {'', '', trouble} end
    """
)
"""In Lua, whether a call may begin: what `begin` does before it writes the marker."""
BEGIN_MARK = f"""
    if not state or current ~= owner then
        begun = string.sub((begun or '') .. owner .. ' ' .. begun_at .. '\\n', -{LONGEST_CHARS})
    end
    redis.call('HSET', marker, 'mark', 'begun', 'owner', owner, 'begun', begun or '')
    redis.call('EXPIRE', marker, marker_ttl_s)
    return {{'', ''}}
    """
"""The rest of `begin`."""


# Returns state and owner, both empty if the call may be sent; then the error of the audit, if it has one.
@step(BEGIN_CHECK, BEGIN_MARK)
def begin(*, tag: str, owner: str, begun_at: str, earlier_owner: str, is_audited: bool) -> list[bytes]: ...


UNBEGIN = (
    constants(longest_begun=LONGEST_CHARS)
    + r"""
    local function unbegin(owner)
        if owner == '' then return end
        local state, current, begun = unpack(redis.call('HMGET', marker, 'mark', 'owner', 'begun'))
        if state ~= 'begun' or current ~= owner then return end
        redis.call('HDEL', marker, 'mark', 'owner')
        begun = string.sub(begun or '', -longest_begun)  -- agents may write longer ones, and the pattern is quadratic
        redis.call('HSET', marker, 'begun', (string.gsub(begun, '[^\n]*\n$', '')))
        if redis.call('EXISTS', cancelled) == 1 then redis.call('SET', withdrawn, 1, 'EX', marker_ttl_s) end
    end
    """
)
"""In Lua, a function that removes the begin marker of `owner`, if there is one. A step that gives a call back calls it
in any case: another worker that has taken the call since waits for this one."""


@step(UNBEGIN, "unbegin(owner)")
def unbegin(*, tag: str, owner: str) -> None: ...


ANSWER_CHECK = (
    _LEASE
    + _RECORD
    + """
    local state, current, taken, resumed, is_parked = unpack(redis.call('HMGET', marker,
        'mark', 'owner', 'taken', 'resumed', 'parked'))
    if is_parked then  -- by another worker, after this one took it
        redis.call('ZREM', leases, lease)
        return {0, ''}
    end
    if state == 'begun' and current ~= owner and current ~= begins_as then return {0, ''} end
    local is_recorded_here = state or taken or redis.call('EXISTS', withdrawn) == 0
    redis.call('HDEL', unacked, tag)
    local is_leased = redis.call('ZREM', leases, lease) == 1
    if state == 'answered' then return {0, ''} end
    """
)
"""In Lua, whether an answer is to be stored: the call is over in any case."""
STORE = """
    if ttl_s > 0 then redis.call('SET', key, result, 'EX', ttl_s) else redis.call('SET', key, result) end
    redis.call('PUBLISH', key, result)
    redis.call('PUBLISH', channel, result)
    """
"""In Lua, storing and announcing a result."""
ANSWER_STORE = (
    STORE
    + """
    redis.call('HSET', marker, 'mark', 'answered')
    redis.call('EXPIRE', marker, is_leased and not resumed and ended_ttl_s or marker_ttl_s)
    """
)
"""In Lua, storing an answer: what `answer` does next, before it writes the audit entry."""
ANSWER_RECORD = """
    if not is_recorded_here then return {0, ''} end
    return {1, record(audit, entry, limit)}
    """
"""The rest of `answer`."""


# The first answer stays. A call that another owner has begun is answered by that one, and one that another worker has
# parked since, by the worker that takes it when it is woken. What an agent withdrew from its queue, the agent records.
# Returns whether this step ended the call, and the error of the audit or nothing; so do the next three.
@step(ANSWER_CHECK, ANSWER_STORE, ANSWER_RECORD)
def answer(
    *,
    tag: str,
    home: str,
    owner: str,
    begins_as: str,
    key: Key,
    result: str | bytes,
    ttl_s: int,
    channel: str,
    entry: str,
    limit: int,
) -> tuple[int, bytes]: ...


# For results in another Redis: the state of the call, if `answer` would refuse this result; else an empty text.
@step(
    """
    local state, current, is_parked = unpack(redis.call('HMGET', marker, 'mark', 'owner', 'parked'))
    if is_parked then return 'parked' end
    if state == 'answered' then return state end
    return state == 'begun' and current ~= owner and current ~= begins_as and state or ''
    """
)
def find_other_answerer(*, tag: str, owner: str, begins_as: str) -> bytes: ...


# For what never became a message, because what should have sent it has failed. Nothing may be known of it.
@step(
    "if redis.call('EXISTS', marker, key) > 0 or redis.call('HEXISTS', unacked, tag) == 1 then return end",
    STORE,
)
def store_unless_known(*, tag: str, key: Key, result: str | bytes, ttl_s: int, channel: str) -> None: ...


# As in `answer`, it does nothing if another owner has begun the call.
@step(
    _LEASE,
    _RECORD,
    """
    local state, current, taken, resumed, is_parked = unpack(redis.call('HMGET', marker,
        'mark', 'owner', 'taken', 'resumed', 'parked'))
    if is_parked then
        redis.call('ZREM', leases, lease)
        return {0, ''}
    end
    if state == 'begun' and current ~= owner and current ~= begins_as then return {0, ''} end
    local is_withdrawn = not state and redis.call('EXISTS', withdrawn) == 1
    local is_recorded_here = taken or not is_withdrawn
    redis.call('HDEL', unacked, tag)
    local is_leased = redis.call('ZREM', leases, lease) == 1
    if is_withdrawn then redis.call('HDEL', marker, 'taken')  -- when this is sent twice, it is recorded once
    else redis.call('HSET', marker, 'mark', 'answered') end
    redis.call('EXPIRE', marker, is_leased and not resumed and ended_ttl_s or marker_ttl_s)
    if state == 'answered' or not is_recorded_here then return {0, ''} end
    return {1, record(audit, entry, limit)}
    """,
)
def acknowledge(*, tag: str, home: str, owner: str, begins_as: str, entry: str, limit: int) -> tuple[int, bytes]: ...


@step(
    _RECORD,
    ENTRIES,
    """
    if redis.call('ZREM', waiting, tag) == 0 then return {0, ''} end
    local in_flight = redis.call('HGET', unacked, tag)
    if not in_flight then return {0, ''} end
    redis.call('HDEL', unacked, tag)
    local queue, _, message = split_entry(in_flight)
    if queue then redis.pcall('LREM', named_queue(queue, home), -1, message) end
    return {1, record(audit, entry, limit)}
    """,
)
def discard(*, tag: str, home: str, entry: str, limit: int) -> tuple[int, bytes]: ...


# For a dead letter, unless it has a result, or an operator has retried or dropped it.
@step("if redis.call('EXISTS', dead_letter) == 0 or redis.call('EXISTS', key) == 1 then return end", STORE)
def refuse(*, tag: str, key: Key, result: str | bytes, ttl_s: int, channel: str) -> None: ...


@step(
    _RECORD,
    """
    if redis.call('EXISTS', dead_letter) == 0 then return {0, ''} end  -- an operator has retried or dropped it
    if redis.call('HSETNX', marker, 'told', 1) == 0 then return {0, ''} end
    redis.call('EXPIRE', marker, marker_ttl_s)
    return {1, record(audit, entry, limit)}
    """,
)
def record_dead_letter(*, tag: str, entry: str, limit: int) -> tuple[int, bytes]: ...


@step(
    _LEASE,
    NOW,
    ENTRIES,
    ANNOUNCE,
    UNBEGIN,
    GIVE_BACK,
    """
    unbegin(begun_as)
    if not is_current() then return 0 end
    redis.call('ZREM', leases, lease)
    local in_flight = entry_of(tag, home)
    if not in_flight then return 0 end
    local queue, _, message = split_entry(in_flight)
    if not message then return 0 end
    redis.call('RPUSH', named_queue(queue, home), message)
    redis.call('ZADD', waiting, now, tag)
    pcall(announce, home)  -- the sweep announces it again; with old rules of Redis the rest must not be left out
    redis.call('ZADD', queues, 'NX', now, home)
    if redis.call('EXISTS', cancelled) == 1 then redis.call('SET', withdrawn, 1, 'EX', marker_ttl_s) end
    end_uncounted()
    -- Nobody has it: if it is withdrawn now, its agent records that.
    redis.call('HDEL', marker, 'suspect', 'taken')
    redis.call('EXPIRE', marker, marker_ttl_s)
    return 1
    """,
)
def requeue(*, home: str, tag: str, delivery_count: int, given_back: int, begun_as: str) -> int: ...


# Returns 0, and does nothing, if the time has come, or nobody waits for it any more. Nothing has to be done if another
# worker has taken the message since.
@step(
    _LEASE,
    NOW,
    UNBEGIN,
    GIVE_BACK,
    """
    unbegin(begun_as)
    if not is_current() then return 1 end
    local due = math.max(due_at, now + wait_s)
    if due <= now or redis.call('EXISTS', withdrawn) == 1 then return 0 end
    local has_entry = redis.call('HEXISTS', unacked, tag) == 1
    if has_entry then redis.call('ZADD', delayed, due, lease) end  -- of another type, it fails: the lease is kept
    redis.call('ZREM', leases, lease)
    if not has_entry then return 1 end
    end_uncounted()
    redis.call('HDEL', marker, 'suspect', 'taken')  -- as in `requeue`
    redis.call('EXPIRE', marker, marker_ttl_s + math.ceil(due - now))
    return 1
    """,
)
def delay(
    *, home: str, tag: str, delivery_count: int, given_back: int, begun_as: str, due_at: float, wait_s: float
) -> int: ...


@step(NOW, "for _, lease in ipairs(renewed) do redis.call('ZADD', leases, 'XX', now, lease) end")
def renew(*, renewed: Table) -> None: ...


# Returns the state, empty if the call was withdrawn, and whether a worker has or had it. The worker that runs a call
# which has begun cancels it.
@step(
    ENTRIES,
    constants(waiting_prefix=keys.waiting_key("")),
    """
    local state = redis.call('HGET', marker, 'mark')
    if state == 'begun' then redis.call('SET', cancelled, 1, 'EX', cancel_ttl_s) end
    if state then return {state, 1} end
    redis.call('SET', withdrawn, 1, 'EX', marker_ttl_s)
    local is_delayed = redis.pcall('ZREM', delayed, home .. '\\n' .. tag) == 1
        or redis.call('HEXISTS', marker, 'parked') == 1
    local queue, _, message = split_entry(redis.call('HGET', unacked, tag) or '')
    local own, place = home, waiting
    -- In an affinity queue. If a worker has moved it there, the one that takes it from there records the withdrawal.
    local beside = queue and string.match(queue, '^[^\\6]*')
    if beside and string.sub(beside, 1, #home + #worker_mark) == home .. worker_mark
        and redis.call('HEXISTS', marker, 'taken') == 0 then
        own, place = beside, waiting_prefix .. beside
    end
    if redis.pcall('ZREM', place, tag) == 1 or is_delayed then
        redis.call('HDEL', unacked, tag)
        if message and not is_delayed then redis.call('LREM', named_queue(queue, own), -1, message) end
    end
    return {'', redis.call('HEXISTS', marker, 'taken')}
    """,
)
def withdraw(*, tag: str, home: str, cancel_ttl_s: int) -> tuple[bytes, int]: ...


# The lists of a queue are one for each priority. What is delayed goes for the bound agents of its server, too.
@step(
    constants(agent_mark=keys.AGENT_MARK),
    """
    local size = 0
    for _, list in ipairs(lists) do size = size + redis.call('LLEN', list) end
    for _, tag in ipairs(redis.call('ZRANGE', waiting, 0, -1)) do redis.call('HDEL', unacked, tag) end
    redis.call('DEL', waiting, unpack(lists))
    for _, place in ipairs(redis.pcall('ZRANGE', delayed, 0, -1)) do
        local owner, tag = string.match(place, '^([^\\n]*)\\n(.*)$')
        if owner == home or owner and string.sub(owner, 1, #home + #agent_mark) == home .. agent_mark then
            redis.call('HDEL', unacked, tag)
            size = size + redis.call('ZREM', delayed, place)
        end
    end
    return size
    """,
)
def purge(*lists: Key, home: str) -> int: ...


def quarantining(tag: str) -> tuple[tuple[Any, ...], ...]:
    """The commands after which a call counts as quarantined."""
    marker = keys.call_marker(tag)
    return ("HSET", marker, "suspect", 1), ("EXPIRE", marker, MARKER_TTL_S)
