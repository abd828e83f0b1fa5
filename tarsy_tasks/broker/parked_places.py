"""Where parked calls are listed: all of them, those of one principal, and those that wait for the same.

Owns the sets, in Lua, and that a call which waits no more leaves all of them. What a parked call is, and its record, is
in `parked_calls`.

A place is queue and tag of a call, with a line break between; its score is when it is woken in any case. `tarsy:parked`
decides whether a call is parked. `tarsy:parked-by:<principal>` has those of one agent, of which there may be only so
many; `tarsy:inbox:people` and `tarsy:inbox:task` are what people see. All are written in the step that parks or wakes a
call, so none of them forgets one when a process is killed, or counts one twice.

Agents cannot write any of these keys. When one withdraws its call, the place stays until a worker finds that there is
no such message any more: workers look through all of them in turn, and through a part of an agent's own when that has
as many as it may. Then nothing of the call is kept. Only `wake_due` does that (`forget`); all others have it do so at
once: its caller has to know of these calls, because their state may be in another Redis.

When workers look through them, they also list places that are in `tarsy:parked` only: older workers did not list the
calls that they parked, and may still run beside newer ones.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_views import PEOPLE, TASK
from tarsy_tasks.broker.script import constants
from tarsy_tasks.interceptors import ANONYMOUS

__all__ = ["PLACES"]

_TTL_S = 32 * 24 * 3600
"""Longer than any call waits."""

PLACES = (
    constants(
        anonymous=ANONYMOUS,
        marker_prefix=keys.call_marker(""),
        parked_prefix=keys.parked_key(""),
        input_prefix=keys.input_key(""),
        result_prefix=keys.result_key(""),
        parked_by_prefix=keys.parked_by_key(""),
        inbox_people=keys.inbox_key(PEOPLE),
        inbox_tasks=keys.inbox_key(TASK),
        places_ttl_s=_TTL_S,
        lost_s=3600,
        searched=100,
    )
    + r"""
    local function is_withdrawn_from(place)
        return redis.call('HEXISTS', unacked, string.match(place, '\n(.*)$') or '') == 0
    end
    local function lists_of(principal, reason)
        return {parked_by_prefix .. (principal or anonymous), reason == 'task' and inbox_tasks or inbox_people}
    end
    local function list_place(place, until_s, principal, reason)
        local lists = lists_of(principal, reason)
        for _, name in ipairs(lists) do
            redis.call('ZADD', name, until_s, place)
            redis.call('EXPIRE', name, places_ttl_s)
        end
        redis.call('ZREMRANGEBYSCORE', lists[1], '-inf', now - lost_s)  -- of calls whose records were lost
    end
    -- A key of another type must not keep the others from being listed.
    local function list_if_missing(place, until_s)
        local tag = string.match(place, '\n(.*)$') or ''
        local principal, reason = unpack(redis.call('HMGET', parked_prefix .. tag, 'principal', 'reason'))
        for _, name in ipairs(reason and lists_of(principal, reason) or {}) do
            if redis.pcall('ZADD', name, 'NX', until_s, place) == 1 then redis.call('EXPIRE', name, places_ttl_s) end
        end
    end
    -- A key of another type must not keep a call from going on.
    local function leave(place, tag)
        local principal = redis.call('HGET', parked_prefix .. tag, 'principal') or anonymous
        for _, name in ipairs({parked_by_prefix .. principal, inbox_people, inbox_tasks}) do
            redis.pcall('ZREM', name, place)
        end
        redis.call('ZREM', parked, place)
    end
    local function have_forgotten(place) redis.call('ZADD', parked, 'XX', now, place) end
    local function forget(place)
        local tag = string.match(place, '\n(.*)$')
        if not tag then return redis.call('ZREM', parked, place) end
        leave(place, tag)
        local stored = redis.pcall('GETRANGE', result_prefix .. tag, 0, 30)
        if type(stored) == 'string' and string.find(stored, '"status": "PARKED"', 1, true) then
            redis.call('DEL', result_prefix .. tag)
        end
        redis.call('DEL', parked_prefix .. tag, input_prefix .. tag)
        redis.pcall('HDEL', marker_prefix .. tag, 'parked')
    end
    local function has_room(principal, most)
        local own = parked_by_prefix .. (principal or anonymous)
        if most <= 0 or redis.call('ZCARD', own) < most then return true end
        for _, place in ipairs(redis.call('ZRANDMEMBER', own, searched)) do
            if not redis.call('ZSCORE', parked, place) then redis.call('ZREM', own, place)
            elseif is_withdrawn_from(place) then
                have_forgotten(place)
                redis.call('ZREM', own, place)
            end
        end
        return redis.call('ZCARD', own) < most
    end
    """
)
"""Lua functions for these sets. They need `NOW` and the keys `parked` and `unacked`."""
