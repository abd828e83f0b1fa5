"""Waking a parked call: putting its message back into its queue, where any worker takes it.

Owns that, in Lua, and how long a record is kept. What a parked call is, and what wakes it, is in `parked_calls`.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.entries import ANNOUNCE, ENTRIES
from tarsy_tasks.broker.parked_places import PLACES
from tarsy_tasks.broker.script import constants

__all__ = ["KEPT_S", "WAKE"]

KEPT_S = 24 * 3600
"""How long a record outlives the end of its waiting: a decision that comes too late, or twice, learns so."""

WAKE = (
    constants(
        waiting_prefix=keys.waiting_key(""),
        garbage_s=600,
        blocked_s=60,
        kept_s=KEPT_S,
        worker_mark=keys.WORKER_MARK,
        polled_prefix=keys.polled_key(""),
    )
    + f"\n{ENTRIES}\n{ANNOUNCE}\n{PLACES}"
    + r"""
    local function wake(place)
        local home, tag = string.match(place, '^([^\n]*)\n(.*)$')
        local entry = tag and entry_of(tag, home)
        if entry then
            local record = parked_prefix .. tag
            local given_s, holder, task = unpack(redis.call('HMGET', record, 'allowance_s', 'holder', 'task'))
            if task then
                local server = string.match(home, '^' .. queue_prefix .. '([^:]*)')
                if server then redis.call('ZREM', polled_prefix .. server, place) end
            end
            local allowance_s = tonumber(given_s or '') or 0
            local queue, garbage_at, message = split_entry(entry)
            local list = named_queue(queue, home)
            if holder then  -- only its worker has the server's process
                local own = string.match(home, '^(.-)' .. worker_mark) or home
                own = own .. worker_mark .. holder
                home, list = own, own .. string.sub(list, #home + 1)
                queue = list
            end
            if message then  -- of a damaged entry the sweep makes a dead letter
                if garbage_at ~= '' then garbage_at = string.format('%.3f', now + allowance_s + garbage_s) end
                redis.call('HSET', unacked, tag, queue .. '\n' .. garbage_at .. '\n' .. message)
            end
            -- As in `release_due`: keys of another type must not stop the others.
            local size = message and redis.pcall('RPUSH', list, message)
            local added = redis.pcall('ZADD', waiting_prefix .. home, now, tag)
            if type(size) ~= 'number' and type(added) ~= 'number' then
                redis.call('ZADD', parked, now + blocked_s, place)
                return #entry
            end
            redis.pcall('ZADD', queues, 'NX', now, home)
            pcall(announce, home)  -- the sweep announces it again
            if redis.call('EXISTS', record) == 1 then
                redis.call('HSET', record, 'resumed_at', string.format('%.3f', now))
                redis.call('EXPIRE', record, math.ceil(allowance_s) + kept_s)
            end
            redis.call('HDEL', marker_prefix .. tag, 'parked')
            redis.call('HSET', marker_prefix .. tag, 'resumed', 1)
            redis.call('DEL', result_prefix .. tag)
        end
        if not entry then  -- it was withdrawn
            have_forgotten(place)
            return nil
        end
        leave(place, tag)
        return #entry
    end
    """
)
"""A Lua function that puts a parked call back into its queue, or into that of the worker that holds what it needs. It
returns the bytes that it has read, nil if the call was withdrawn. It needs `NOW`."""
