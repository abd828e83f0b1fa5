"""Limits over all workers: what is counted for them in Redis, and the scripts of a call that count it.

Owns rates (GCRA), running calls, and the calls and bytes of a day, all by the time of Redis. Which limits hold for a
call is in `policy.limits`, and comes here as data: what a counter is called, and its numbers. Nothing here is a round
trip of its own: the check is a part of the script that writes the begin marker, or of the one that takes a message, and
the bytes of a result are counted by the script that stores it. Where a call has no limits, the scripts are those of
`steps` and `fetch`.

Each limit has five keys, whatever the number of its counters, which are their members:

    rate       counter → until when its rate is used up, the "theoretical arrival time" of GCRA
    promised   counter and queue, with a line break between → the time that was last named to a call from this queue
               that waits: so not all come back at once, and none waits for those of other agents
    held       counter and lease, with a line break between, of each call that runs
    calls:DAY  counter → calls of this day
    bytes:DAY  counter → bytes of their results

A call is held as long as it has its lease. So whatever answers it, requeues it, or ends its worker, frees it too, and
what is left of it in `held` means nothing; it is removed a little at a time.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.script import NOW, Key, constants, script
from tarsy_tasks.broker.steps import ANSWER_CHECK, ANSWER_RECORD, ANSWER_STORE, BEGIN_CHECK, BEGIN_MARK, step

__all__ = [
    "COUNT_RESULT",
    "LONGEST_PAUSE_S",
    "OverLimit",
    "answer_counted",
    "begin_limited",
    "give_back",
    "limit_fetch",
    "read_pauses",
    "share_pause",
]

LONGEST_PAUSE_S = 300.0
"""So long at most a server is believed that asks to wait."""
_DAY_S = 86400
_CONCURRENCY_S = 0.5
"""When to try again while too many calls run: nobody knows when one of them ends."""
_STEP_S = 0.02
"""Between two calls that wait for others to end."""

_PREFIX = keys.limit_key("")
COUNTERS = (
    constants(limit_prefix=_PREFIX, day_s=_DAY_S, held_ttl_s=2 * _DAY_S)
    + r"""
    local day = math.floor(now / day_s)
    local function key_of(limit, what) return limit_prefix .. limit.id .. ':' .. what end
    -- Only workers write here, and only sorted sets: anything else is replaced.
    local function use(command, key, ...)
        local found = redis.pcall(command, key, ...)
        if type(found) ~= 'table' or not found.err then return found end
        if not string.find(found.err, 'WRONGTYPE') then return error(found) end
        redis.call('DEL', key)
        return redis.call(command, key, ...)
    end
    local function read(limit, what, counter)
        return tonumber(use('ZSCORE', key_of(limit, what), counter or limit.counter) or 0)
    end
    local function as_time(time) return string.format('%.6f', time) end
    local function keep(limit, what, ttl_s) redis.call('EXPIRE', key_of(limit, what), math.ceil(ttl_s)) end
    -- Times before now are as good as none.
    local function set_time(limit, what, time, ttl_s, counter)
        use('ZADD', key_of(limit, what), as_time(time), counter or limit.counter)
        redis.call('ZREMRANGEBYSCORE', key_of(limit, what), '-inf', '(' .. as_time(now))
        keep(limit, what, ttl_s + 1)
    end
    local function has_lease(lease)
        local renewed = redis.call('ZSCORE', leases, lease)
        return renewed and tonumber(renewed) >= now - lease_s
    end
    -- How many calls run, if that matters: at most as many as it returns while there is room for `wanted` more.
    local function count_running(limit, own, wanted)
        local key, counter = key_of(limit, 'held'), limit.counter
        local first, last = '[' .. counter .. '\n', '(' .. counter .. '\11'
        local count = use('ZLEXCOUNT', key, first, last)
        if count + wanted <= limit.concurrency then return count end
        count = 0
        for _, member in ipairs(redis.call('ZRANGE', key, first, last, 'BYLEX')) do
            local lease = string.sub(member, #counter + 2)
            if not has_lease(lease) then redis.call('ZREM', key, member)
            elseif lease ~= own then count = count + 1 end
        end
        return count
    end
    local function hold(limit, lease)
        local key = key_of(limit, 'held')
        use('ZADD', key, 0, limit.counter .. '\n' .. lease)
        keep(limit, 'held', held_ttl_s)
        for _, member in ipairs(redis.call('ZRANDMEMBER', key, 2)) do
            if not has_lease(string.match(member, '\n(.*)$') or '') then redis.call('ZREM', key, member) end
        end
    end
    -- From when on a call is in rate, and until when the rate is used up. The clock of Redis may have been set back,
    -- and a rate may have been changed.
    local function read_rate(limit)
        local used_until = math.min(math.max(read(limit, 'rate'), now), now + limit.tolerance + limit.interval)
        return used_until - limit.tolerance, used_until
    end
    local function use_rate(limit)
        local _, used_until = read_rate(limit)
        set_time(limit, 'rate', used_until + limit.interval, limit.tolerance + limit.interval)
        return used_until + limit.interval
    end
    """
)
"""Lua functions for the counters of limits. They need `NOW`, the key `leases`, and `lease_s`."""

_ADMIT = (
    constants(concurrency_s=_CONCURRENCY_S, step_s=_STEP_S)
    + r"""
    local function find_over(limit, own)
        if limit.none then return 'none', 0 end
        local tomorrow_s = (day + 1) * day_s - now
        if limit.calls and read(limit, 'calls:' .. day) >= limit.calls then return 'calls', tomorrow_s end
        if limit.bytes and read(limit, 'bytes:' .. day) >= limit.bytes then return 'bytes', tomorrow_s end
        if limit.concurrency and count_running(limit, own, 1) >= limit.concurrency then
            return 'concurrency', concurrency_s
        end
        if limit.interval then
            local from = read_rate(limit)
            if from > now then return 'rate', from - now end
        end
    end
    -- What is over and does not wait comes first, then what takes longest.
    local function find_worst(limits, own)
        local worst
        for _, limit in ipairs(limits) do
            local kind, wait_s = find_over(limit, own)
            if kind then
                local waits = limit.waits and (kind == 'rate' or kind == 'concurrency') or false
                if not worst or worst.waits and not waits or worst.waits == waits and wait_s > worst.wait_s then
                    worst = {limit = limit, kind = kind, wait_s = wait_s, waits = waits}
                end
            end
        end
        return worst
    end
    -- One after the other: all that wait would otherwise come back at once, for one of them. For each queue by itself:
    -- nobody knows which of those that wait in it will still come.
    local function promise(over, patience_s)
        local limit = over.limit
        local waiter = limit.counter .. '\n' .. home
        local last = math.min(read(limit, 'promised', waiter), now + day_s)
        local at = math.max(now + over.wait_s, last + (over.kind == 'rate' and limit.interval or step_s))
        over.wait_s, over.waits = at - now, at - now <= patience_s
        if over.waits then set_time(limit, 'promised', at, day_s, waiter) end
    end
    local function admit(limits, own, patience_s)
        local over = find_worst(limits, own)
        if over then
            if over.waits then promise(over, patience_s) end
            return {'', '', '', over.limit.id, over.kind, as_time(over.wait_s), over.waits and 1 or 0}
        end
        for _, limit in ipairs(limits) do
            if limit.interval then use_rate(limit) end
            if limit.concurrency then hold(limit, own) end
            if limit.calls then
                redis.call('ZINCRBY', key_of(limit, 'calls:' .. day), 1, limit.counter)
                keep(limit, 'calls:' .. day, 2 * day_s)
            end
        end
    end
    """
)


class OverLimit(NamedTuple):
    """Which limit a call is over.

    Attributes:
        id: Of the limit.
        kind: What of it: `rate`, `concurrency`, `calls`, `bytes`, or `none` if it permits no call.
        wait_s: When to try again.
        waits: The call may wait for that.
    """

    id: str
    kind: str
    wait_s: float
    waits: bool


# As `steps.begin`, if the call is within its limits; else it does not begin, and the fields of `OverLimit` follow. What
# this owner has begun before is not counted twice: the reply was lost.
@step(
    NOW,
    COUNTERS,
    _ADMIT,
    BEGIN_CHECK,
    r"""
    if state ~= 'begun' or current ~= owner then
        local over = admit(cjson.decode(limits), home .. '\n' .. tag, patience_s)
        if over then return over end
    end
    """,
    BEGIN_MARK,
)
def begin_limited(
    *,
    tag: str,
    home: str,
    owner: str,
    begun_at: str,
    earlier_owner: str,
    is_audited: bool,
    limits: str,
    patience_s: float,
    lease_s: float,
) -> list[bytes]: ...


COUNT_RESULT = (
    constants(limit_prefix=_PREFIX, day_s=_DAY_S)
    + r"""
    local function count_result(bytes)
        for _, charge in ipairs(cjson.decode(charges)) do
            local counted = limit_prefix .. charge[1] .. ':bytes:' .. math.floor(now / day_s)
            local added = redis.pcall('ZINCRBY', counted, bytes, charge[2])
            if type(added) == 'table' then
                redis.call('DEL', counted)
                redis.call('ZADD', counted, bytes, charge[2])
            end
            redis.call('EXPIRE', counted, 2 * day_s)
        end
    end
    """
)
"""A Lua function that counts the bytes of a result for the limits in `charges`."""


# As `steps.answer`, and counts the bytes of the result. `charges` are the ids of limits and their counters, in JSON.
@step(NOW, COUNT_RESULT, ANSWER_CHECK, ANSWER_STORE, "count_result(#result)", ANSWER_RECORD)
def answer_counted(
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
    charges: str,
) -> tuple[int, bytes]: ...


_FETCHED = r"""
    local by_server, of_home, left_out = cjson.decode(fetch_limits), {}, {}
    local function find_limits(home)
        local own = string.match(home, '^(.-)' .. worker_mark) or home
        local at = string.find(own, agent_mark, 1, true)
        local server = string.sub(own, #queue_prefix + 1, at and at - 1)
        local agent = at and string.sub(own, at + #agent_mark)
        local found = {}
        for _, limit in ipairs(by_server[server] or {}) do
            local concerned = not agent and limit.shared
            if agent and limit.agents then
                for _, pattern in ipairs(limit.agents) do
                    concerned = concerned or string.find(string.lower(agent), pattern) ~= nil
                end
            elseif agent then concerned = true end
            if concerned then
                local names = {limit.by_agent and (agent or anonymous) or nil}
                if limit.server ~= '' then names[#names + 1] = limit.server end
                local counter = #names > 0 and table.concat(names, ' ') or '*'
                found[#found + 1] = {
                    id = limit.id, counter = counter, interval = limit.interval, tolerance = limit.tolerance,
                    concurrency = limit.concurrency,
                }
            end
        end
        of_home[home] = found
        return found
    end
    -- How many of `most` calls of a queue are within the limits now.
    local function allow(home, most)
        for _, limit in ipairs(of_home[home] or find_limits(home)) do
            local room, wait_s = most, concurrency_s / 10
            if limit.concurrency then room = limit.concurrency - count_running(limit, '', most) end
            if limit.interval then
                local from = read_rate(limit)
                local in_rate = from <= now and math.floor((now - from) / limit.interval) + 1 or 0
                if in_rate < room then room, wait_s = in_rate, from - now end
            end
            if room < most then most = room end
            if most <= 0 then
                local queue = string.match(home, '^(.-)' .. worker_mark) or home
                queue = string.match(queue, '^(.-)' .. agent_mark) or queue
                left_out[queue] = math.min(left_out[queue] or wait_s, wait_s)
                return 0
            end
        end
        return most
    end
    -- The limits in which a call is counted now, a line for each: its id, and what `give_back` needs of its rate.
    local function count_call(home, lease)
        local lines = {}
        for n, limit in ipairs(of_home[home] or find_limits(home)) do
            lines[n] = limit.id
            if limit.interval then
                lines[n] = string.format('%s %.17g %.6f %s', limit.id, limit.interval, use_rate(limit), limit.counter)
            end
            if limit.concurrency then hold(limit, lease) end
        end
        return #lines > 0 and table.concat(lines, '\n') or nil
    end
    local function report_left_out(fetched, unseen)
        for queue, wait_s in pairs(left_out) do
            fetched[#fetched + 1] = {queue, as_time(unseen[queue] and 0 or wait_s)}
        end
    end
    """


def limit_fetch(terms: Mapping[str, Any], lease_s: float, anonymous: str) -> str:
    """What `declare_fetch` takes as `limiting`: leave out what is over its limits.

    Args:
        terms: By server, as `policy.limits.Limits.build_fetch_terms` gives them.
        lease_s: How long a lease lasts.
        anonymous: Who sends what is in the queue of a server.
    """
    values = constants(
        lease_s=lease_s,
        fetch_limits=json.dumps(terms),
        agent_mark=keys.AGENT_MARK,
        worker_mark=keys.WORKER_MARK,
        queue_prefix=keys.QUEUE_PREFIX,
        anonymous=anonymous,
        concurrency_s=_CONCURRENCY_S,
    )
    return f"{values}\n{COUNTERS}\n{_FETCHED}"


# A call that was counted when it was taken is not sent: others may be. Not once the rate would have come back by
# itself: it may have been saved up since, and there would be more calls at once than the burst.
@script(
    NOW,
    constants(limit_prefix=_PREFIX),
    r"""
    for id, interval, used_until, counter in string.gmatch(counted, '(%S+) (%S+) (%S+) ([^\n]+)') do
        local key = limit_prefix .. id .. ':rate'
        local known = now < tonumber(used_until) and redis.pcall('ZSCORE', key, counter)
        if type(known) == 'string' then
            redis.call('ZADD', key, string.format('%.6f', tonumber(known) - interval), counter)
        end
    end
    """,
)
def give_back(*, counted: str) -> None: ...


# A server that asked twice has to be left alone until the later time.
@script(
    NOW,
    r"""
    local known = redis.pcall('ZSCORE', pauses, server)
    if type(known) == 'table' then
        redis.call('DEL', pauses)
        known = false
    end
    local until_s = math.max(tonumber(known or 0), now + math.min(wait_s, longest_s))
    redis.call('ZADD', pauses, string.format('%.6f', until_s), server)
    redis.call('ZREMRANGEBYSCORE', pauses, '-inf', now)
    redis.call('EXPIRE', pauses, longest_s + 1)
    """,
    known={"pauses": keys.PAUSES},
)
def share_pause(*, server: str, wait_s: float, longest_s: float) -> None: ...


# Returns the servers that asked to wait, each with the seconds that are left, as a text.
@script(
    NOW,
    r"""
    local found = redis.pcall('ZRANGEBYSCORE', pauses, '(' .. string.format('%.6f', now), '+inf', 'WITHSCORES')
    if found.err then return {} end
    for n = 2, #found, 2 do found[n] = string.format('%.6f', math.min(found[n] - now, longest_s)) end
    return found
    """,
    known={"pauses": keys.PAUSES},
)
def read_pauses(*, longest_s: float) -> list[bytes]: ...
