"""What scripts know of the entries of the in-flight table, in Lua.

Owns reading an entry, taking the message that it stands for, and telling the workers of a bound agent's queue. An entry
is a text of three lines: queue, garbage time, message.

Agents write entries, so anyone who knows the id of a call can replace its entry: a worker that puts it back would put
what another agent wrote into the queue of this one. So of a message in the queue of a bound agent, which only it
and workers can write, its marker keeps a digest when it is taken (`message`), and what is put back later has to be that
message (`entry_of`). What is not counts as no entry, as if it had been deleted, which anyone who knows the id can do.

The message of a parked call is in its entry only. So another one with its id that is taken meanwhile, from any sender,
is not that call, and `take` leaves all that is known of the call as it is.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.begun import LONGEST_CHARS
from tarsy_tasks.broker.script import constants

__all__ = ["ANNOUNCE", "ENTRIES", "GIVE_BACK", "MARKER_TTL_S", "TAKE"]

MARKER_TTL_S = 7 * 24 * 3600
"""How long it stays known that a call has begun, or was withdrawn: nobody may look for it before."""

ENTRIES = (
    constants(
        queue_prefix=keys.QUEUE_PREFIX,
        agent_mark=keys.AGENT_MARK,
        worker_mark=keys.WORKER_MARK,
        marked_prefix=keys.call_marker(""),
    )
    + r"""
    local function split_entry(entry) return string.match(entry, '^([^\n]*)\n([^\n]*)\n(.*)$') end
    -- Agents write entries, too: of the queue that an entry names only the priority is believed, if it is served.
    local function named_queue(name, home)
        if not name or string.sub(name, 1, #home + 2) ~= home .. '\6\22' then return home end
        if string.sub(home, 1, #queue_prefix) ~= queue_prefix then return name end
        local number, is_agents = string.sub(name, #home + 3), string.find(home, agent_mark, 1, true)
        local is_served = number == '3' or number == '6' or (number == '9' and not is_agents)
        return is_served and string.sub(home, -6) ~= '.check' and name or home
    end
    local function is_of_agent(home) return string.find(home, agent_mark, 1, true) end
    local function digest_of(home, message)
        local at = string.find(home, worker_mark, 1, true)
        return redis.sha1hex((at and string.sub(home, 1, at - 1) or home) .. '\n' .. message)
    end
    -- What was taken from there; nothing if it is gone, or somebody has replaced it.
    local function entry_of(tag, home)
        local entry = redis.call('HGET', unacked, tag)
        local taken = entry and is_of_agent(home) and redis.pcall('HGET', marked_prefix .. tag, 'message')
        if type(taken) ~= 'string' then return entry end
        local _, _, message = split_entry(entry)
        if message and digest_of(home, message) == taken then return entry end
        redis.call('HDEL', unacked, tag)
        return false
    end
    -- Whether a message of an agent was ever taken from there; one that was not cannot have been lost on its way.
    local function was_taken(tag, home)
        return not is_of_agent(home) or type(redis.pcall('HGET', marked_prefix .. tag, 'message')) == 'string'
    end
    """
)
"""Lua functions that read entries. `home` is the queue that a message was taken from, without its priority; that of one
worker (`affinity_queue`) counts as the one that it belongs to."""

TAKE = (
    ENTRIES
    + constants(longest_begun=LONGEST_CHARS, records_prefix=keys.parked_key(""), all_parked=keys.PARKED)
    + r"""
    local function is_parked(tag)
        local home = redis.call('HGET', records_prefix .. tag, 'home')
        return home and redis.call('ZSCORE', all_parked, home .. '\n' .. tag)
    end
    local function take(tag, home, place, call_marker, withdrawal, new_entry, is_quarantined)
        local marked = redis.pcall('HMGET', call_marker, 'mark', 'owner', 'deliveries', 'given_back', 'begun', 'parked')
        if marked.err and string.find(marked.err, 'WRONGTYPE') then
            -- Nobody knows whether it has begun: it is not run, and its queue goes on.
            redis.call('DEL', call_marker)
            redis.call('HSET', call_marker, 'mark', 'overwritten')
            marked = {'overwritten', false, false}
        elseif marked.err then return error(marked) end
        local state, owner, earlier, given_back, begun, was_parked = unpack(marked)
        local is_withdrawn = not state and redis.call('EXISTS', withdrawal) == 1
        local has_entry = redis.call('HEXISTS', unacked, tag) == 1
        if was_parked and has_entry and not is_withdrawn and is_parked(tag) then
            redis.call('ZREM', place, tag)
            return {1, 'parked', '', '', 0}
        end
        if was_parked then redis.call('HDEL', call_marker, 'parked') end
        local is_lost = state == 'overwritten' and new_entry ~= ''  -- it becomes a dead letter by its entry
        if not has_entry and (is_lost or not (state or is_withdrawn)) then
            if new_entry == '' then return {0, '', '', '', 0} end
            redis.call('HSET', unacked, tag, new_entry)
            has_entry = true
        end
        redis.call('ZADD', leases, now, home .. '\n' .. tag)
        redis.call('ZREM', place, tag)
        local count = (tonumber(earlier or '') or 0) + 1  -- a damaged marker must not stop the worker
        local fields = {'deliveries', count}
        if has_entry then fields = {'taken', 1, unpack(fields)} end
        if is_of_agent(home) and new_entry ~= '' then
            local _, _, message = split_entry(new_entry)
            fields = {'message', digest_of(home, message), unpack(fields)}
        end
        if is_quarantined then fields = {'suspect', 1, unpack(fields)}
        elseif earlier then redis.call('HDEL', call_marker, 'suspect') end
        redis.call('HSET', call_marker, unpack(fields))
        redis.call('EXPIRE', call_marker, marker_ttl_s)
        begun = string.sub(begun or '', -longest_begun)
        state = is_withdrawn and 'withdrawn' or state or ''
        return {count, state, owner or '', begun, tonumber(given_back or '') or 0}
    end
    """
)
"""A Lua function that leases a message, and writes its entry if it has none: what `take` returns."""

GIVE_BACK = r"""
    local counted, given_before
    local function is_current()
        local found = redis.call('HMGET', marker, 'deliveries', 'given_back')
        counted, given_before = tonumber(found[1] or '') or 1, tonumber(found[2] or '') or 0
        local is_same = counted == delivery_count and given_before == given_back
        return is_same and redis.call('ZSCORE', leases, home .. '\n' .. tag) ~= false
    end
    local function end_uncounted()
        redis.call('HSET', marker, 'deliveries', counted - 1, 'given_back', given_before + 1)
    end
    """
"""Lua functions for the steps that give a message back: whether it is this delivery that has it, for its lease may have
lapsed, and another worker may have taken it since; and, after that, that this delivery does not count. They need the
slots `home`, `tag`, `delivery_count` and `given_back`."""

ANNOUNCE = (
    constants(
        queue_prefix=keys.QUEUE_PREFIX,
        agent_mark=keys.AGENT_MARK,
        worker_mark=keys.WORKER_MARK,
        agents_prefix=keys.agents_key(""),
        wakes=keys.WAKES,
        wake_ttl_s=60,
    )
    + r"""
    local function announce(home, worker)
        local at = string.find(home, agent_mark, 1, true)
        if not at or string.find(home, worker_mark, 1, true) then return end
        local server = string.sub(home, #queue_prefix + 1, at - 1)
        local set = agents_prefix .. server .. (worker and ':quiet' or '')
        local said = redis.pcall('SADD', set, string.sub(home, at + #agent_mark))
        -- A key of another type is deleted by a worker; the sweep announces again what waits.
        if type(said) == 'table' and not string.find(said.err, 'WRONGTYPE') then error(said) end
        if worker then redis.call('SET', wakes .. server .. ':' .. worker, 1, 'EX', wake_ttl_s) end
    end
    """
)
"""A Lua function that has workers look into a queue, if it is that of a bound agent: all of its server, or one of them.
The others find it when they look anyway."""
