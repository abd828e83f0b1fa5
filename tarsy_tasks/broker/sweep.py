"""The search for messages that were lost: on their way to a worker, with it, or because nobody waits for them any more.

Owns the one script that searches, and what it found. The worker's `lease` decides how often it runs; one live worker is
enough.
"""

from dataclasses import dataclass

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.entries import ANNOUNCE, ENTRIES, MARKER_TTL_S
from tarsy_tasks.broker.script import NOW, Table, constants, script
from tarsy_tasks.broker.steps import KEYS
from tarsy_tasks.broker.task_headers import LONGEST_NAME

__all__ = ["DEAD_LETTER_TTL_S", "QUARANTINE_FROM_DELIVERY", "Swept", "sweep"]

QUARANTINE_FROM_DELIVERY = 3
"""The delivery from which on a call is quarantined. If its worker is lost while it is quarantined, it becomes a dead
letter. Messages other than calls always count as quarantined. `_MOST_DELIVERIES` is the most that a call can have."""
_MOST_DELIVERIES = 10
"""The last delivery of a call that could not be quarantined before its worker was lost."""
DEAD_LETTER_TTL_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found.

    Attributes:
        restored: Tags of messages that went back to their queues.
        dead_letters: Tags of those that any worker made dead letters within the last minute: that worker may have died
            before it could report them.
        garbage: Tags and queues of messages that still wait at their garbage time, 10 minutes after their deadline:
            their agents have not withdrawn them, and are gone.
        dropped: Tags of messages of bound agents that were never taken, and are in no queue: nothing says that it was
            their agent that wrote what is in the in-flight table.
        is_crowded: Many names were listed as queues that have no messages, or as messages that do not exist; the next
            sweep removes more of them.
    """

    restored: tuple[str, ...] = ()
    dead_letters: tuple[str, ...] = ()
    garbage: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    is_crowded: bool = False


# Returns the attributes of `Swept`, with the queues of the garbage after their tags. Agents, too, list queues: the
# `served` ones are searched whatever else is listed.
@script(
    constants(
        quarantine_from=QUARANTINE_FROM_DELIVERY,
        most_deliveries=_MOST_DELIVERIES,
        sweep_limit=200,
        search_limit=1000,  # of messages at the head of a queue: those behind them are younger
        most_queues=1000,
        most_unknown=5000,  # of all queues together: each costs Redis 3 us
        longest_name=LONGEST_NAME,
        reported_s=60,
        marker_ttl_s=MARKER_TTL_S,
        dead_letter_ttl_s=DEAD_LETTER_TTL_S,
        marker_prefix=keys.call_marker(""),
        dead_letter_prefix=keys.dead_letter_key(""),
        waiting_prefix=keys.waiting_key(""),
    ),
    NOW,
    ENTRIES,
    ANNOUNCE,
    r"""
    local last, quiet_until = unpack(redis.call('HMGET', sweeps, 'last', 'quiet_until'))
    redis.call('HSET', sweeps, 'last', now)
    redis.call('EXPIRE', sweeps, 3600)
    local swept_at = tonumber(last or '0')
    if now - swept_at > quiet_s or swept_at > now + 1 then
        -- Redis was down or frozen, or nobody swept: leases could not be renewed, and their owners may be alive.
        redis.call('HSET', sweeps, 'quiet_until', now + quiet_s)
        return {{}, {}, {}, {}, {}, 0}
    end
    if quiet_until and now < tonumber(quiet_until) then return {{}, {}, {}, {}, {}, 0} end
    local restored, garbage, homes, dropped = {}, {}, {}, {}
    local function put_back(tag, entry, queue, is_to_blame)
        local name, rest, message = string.match(entry, '^([^\n]*)(\n[^\n]*\n(.*))$')
        local list = named_queue(name, queue)
        if is_to_blame or not message then  -- a damaged entry must not stop the sweep
            redis.call('ZREM', waiting_prefix .. queue, tag)
            redis.call('HDEL', unacked, tag)
            if #tag > longest_name then tag = redis.sha1hex(tag) end  -- people are to read it
            redis.call('SET', dead_letter_prefix .. tag, message and list .. rest or entry, 'EX', dead_letter_ttl_s)
            redis.call('ZADD', dead_letters, now, tag)
            redis.call('EXPIRE', dead_letters, dead_letter_ttl_s)
            redis.call('ZREMRANGEBYSCORE', dead_letters, '-inf', now - dead_letter_ttl_s)
        else
            redis.call('RPUSH', list, message)
            redis.call('ZADD', waiting_prefix .. queue, now, tag)
            redis.call('ZADD', queues, 'NX', now, queue)
            pcall(announce, queue)  -- old rules of Redis must not stop the sweep
            redis.pcall('HDEL', marker_prefix .. tag, 'taken')  -- nobody has it: its agent records a withdrawal
            -- It may wait for long, and that it had begun must stay known.
            redis.call('EXPIRE', marker_prefix .. tag, dead_letter_ttl_s)
            restored[#restored + 1] = string.sub(tag, 1, longest_name)
        end
    end
    for _, lease in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now - lease_s, 'LIMIT', 0, sweep_limit)) do
        redis.call('ZREM', leases, lease)
        local home, tag = string.match(lease, '^([^\n]*)\n(.*)$')
        local entry = tag and entry_of(tag, home)
        if entry then
            local deliveries, alone = unpack(redis.call('HMGET', marker_prefix .. tag, 'deliveries', 'suspect'))
            local count = tonumber(deliveries) or 0
            put_back(tag, entry, home, (alone and count >= quarantine_from) or count >= most_deliveries)
        end
    end
    local function look(tag, home, place)
        local entry = entry_of(tag, home)
        if not entry then
            redis.call('ZREM', place, tag)
            return false
        end
        local queue, garbage_at, message = split_entry(entry)
        local length
        if queue then
            queue = named_queue(queue, home)
            length = redis.pcall('LLEN', queue)
        end
        if not queue then
            put_back(tag, entry, home, true)
        elseif garbage_at ~= '' and now > (tonumber(garbage_at) or 0) then
            garbage[#garbage + 1] = tag
            homes[#homes + 1] = home
        elseif type(length) == 'table' or length > search_limit
            or redis.call('LPOS', queue, message, 'RANK', -1, 'MAXLEN', search_limit) then
            redis.call('ZADD', place, now, tag)  -- it waits: the next look is a lease later
            pcall(announce, home)
        elseif not was_taken(tag, home) then
            redis.call('HDEL', unacked, tag)
            redis.call('ZREM', place, tag)
            dropped[#dropped + 1] = string.sub(tag, 1, longest_name)
        else
            -- Popped for a connection that broke; or it ended its worker before that could take it.
            local pops = redis.pcall('HINCRBY', marker_prefix .. tag, 'lost_pops', 1)
            redis.call('EXPIRE', marker_prefix .. tag, marker_ttl_s)
            put_back(tag, entry, home, type(pops) == 'table' or pops >= quarantine_from * 5)
        end
        return true
    end
    local spare = most_unknown
    local function search(home)
        local place = waiting_prefix .. home
        if redis.call('EXISTS', place) == 0 then return false end
        repeat  -- agents list messages, too: those that do not exist must not hide the others
            local found = redis.call('ZRANGEBYSCORE', place, '-inf', now - lease_s, 'LIMIT', 0, sweep_limit)
            local known = 0
            for _, tag in ipairs(found) do
                if look(tag, home, place) then known = known + 1 end
            end
            spare = spare - (#found - known)
        until known > 0 or #found < sweep_limit or spare <= 0
        return true
    end
    for _, home in ipairs(served) do search(home) end
    local empty = {}
    for _, home in ipairs(redis.call('ZRANGE', queues, 0, most_queues - 1)) do
        -- Of many queues the next sweep begins with others.
        if #home <= longest_name and search(home) then redis.call('ZADD', queues, now, home)
        else empty[#empty + 1] = home end
    end
    if #empty > 0 then redis.call('ZREM', queues, unpack(empty)) end
    redis.call('EXPIRE', queues, marker_ttl_s)
    local is_crowded = spare <= 0 or (#empty > 0 and redis.call('ZCARD', queues) > most_queues)
    local aside = redis.call('ZRANGEBYSCORE', dead_letters, now - reported_s, '+inf')
    return {restored, aside, garbage, homes, dropped, is_crowded and 1 or 0}
    """,
    known=KEYS,
)
def sweep(
    *, served: Table, lease_s: float, quiet_s: float
) -> tuple[list[bytes], list[bytes], list[bytes], list[bytes], list[bytes], int]: ...
