"""The search for messages that were lost: on their way to a worker, with it, or because nobody wants them any more.

Owns the one script that looks, in one step, and what it found. How often it runs, the worker's `lease` says; it needs
no more than one worker that lives.
"""

from dataclasses import dataclass

from tarsy_tasks.broker.script import Script

__all__ = ["NAMED_QUEUE", "SWEEP", "Swept"]

NAMED_QUEUE = """
    -- Agents write books, too: of a queue that one of them names only its priority is believed.
    local function named_queue(name, home)
        local separator = '\\6\\22'
        if string.sub(name, 1, #home + 2) == home .. separator then return name end
        return home
    end
    """


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found.

    Attributes:
        restored: Tags of messages that went back to their queues.
        dead_letters: Tags of those that were set aside within the last minute, by whomever: whoever did may have died
            before it said so.
        unwanted: Tags and queues of those that wait, and that nobody can want any more.
    """

    restored: tuple[str, ...] = ()
    dead_letters: tuple[str, ...] = ()
    unwanted: tuple[tuple[str, str], ...] = ()


# KEYS: unacked, queues, leases, sweeps, poisoned. ARGV: lease, quiet time, deliveries allowed, limit, search limit,
# poison's ttl, prefixes of marker and poison keys, marker's ttl, deliveries at most, for how long poison is told,
# prefix of waiting keys.
SWEEP = Script(
    NAMED_QUEUE
    + """
    local t = redis.call('TIME') local now = t[1] + t[2] / 1000000
    local lease, quiet, allowed, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
    local last = redis.call('HMGET', KEYS[4], 'last', 'quiet_until')
    redis.call('HSET', KEYS[4], 'last', now)
    redis.call('EXPIRE', KEYS[4], 3600)
    local swept = tonumber(last[1] or '0')
    if now - swept > quiet or swept > now + 1 then
        -- Redis was away or frozen, or nobody looked: leases could not be renewed, and their owners may be well.
        redis.call('HSET', KEYS[4], 'quiet_until', now + quiet)
        return {{}, {}, {}, {}}
    end
    if last[2] and now < tonumber(last[2]) then return {{}, {}, {}, {}} end
    local restored, unwanted, homes = {}, {}, {}
    local function put_back(tag, books, queue, is_blamed)
        local rest, message = string.match(books, '^[^\\n]*(\\n[^\\n]*\\n(.*))$')
        if is_blamed or not message then  -- damaged books must not stop the sweep
            redis.call('ZREM', ARGV[12] .. queue, tag)
            redis.call('HDEL', KEYS[1], tag)
            redis.call('SET', ARGV[8] .. tag, message and queue .. rest or books, 'EX', ARGV[6])
            redis.call('ZADD', KEYS[5], now, tag)
            redis.call('EXPIRE', KEYS[5], ARGV[6])
            redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now - ARGV[6])
        else
            redis.call('RPUSH', queue, message)
            redis.call('ZADD', ARGV[12] .. queue, now, tag)
            redis.call('ZADD', KEYS[2], 'NX', now, queue)
            redis.call('EXPIRE', ARGV[7] .. tag, ARGV[6])  -- it may wait long, and what had begun must stay known
            restored[#restored + 1] = tag
        end
    end
    for _, held in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now - lease, 'LIMIT', 0, limit)) do
        redis.call('ZREM', KEYS[3], held)
        local home, tag = string.match(held, '^([^\\n]*)\\n(.*)$')
        local books = tag and redis.call('HGET', KEYS[1], tag)
        if books then
            local marker = redis.call('HMGET', ARGV[7] .. tag, 'deliveries', 'suspect')
            local count = tonumber(marker[1]) or 0
            put_back(tag, books, home, (marker[2] and count >= allowed) or count >= tonumber(ARGV[10]))
        end
    end
    local function look(tag, home, waiting)
        local books = redis.call('HGET', KEYS[1], tag)
        local queue, garbage, message, length
        if books then queue, garbage, message = string.match(books, '^([^\\n]*)\\n([^\\n]*)\\n(.*)$') end
        if queue then
            queue = named_queue(queue, home)
            length = redis.pcall('LLEN', queue)
        end
        if not books then
            redis.call('ZREM', waiting, tag)
        elseif not queue then
            put_back(tag, books, home, true)
        elseif garbage ~= '' and now > (tonumber(garbage) or 0) then
            unwanted[#unwanted + 1] = tag
            homes[#homes + 1] = home
        elseif type(length) == 'table' or length > tonumber(ARGV[5])
            or redis.call('LPOS', queue, message, 'RANK', -1, 'MAXLEN', ARGV[5]) then
            redis.call('ZADD', waiting, now, tag)  -- it waits: the next look is a lease later
        else
            -- Popped for a connection that broke; or it ended its worker before that could take it.
            local pops = redis.pcall('HINCRBY', ARGV[7] .. tag, 'lost_pops', 1)
            redis.call('EXPIRE', ARGV[7] .. tag, ARGV[9])
            put_back(tag, books, home, type(pops) == 'table' or pops >= allowed * 5)
        end
    end
    for _, home in ipairs(redis.call('ZRANGE', KEYS[2], 0, ARGV[5])) do
        local waiting = ARGV[12] .. home
        for _, tag in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', now - lease, 'LIMIT', 0, limit)) do
            look(tag, home, waiting)
        end
        -- Of many queues the next sweep begins with others.
        if redis.call('EXISTS', waiting) == 0 then redis.call('ZREM', KEYS[2], home)
        else redis.call('ZADD', KEYS[2], now, home) end
    end
    redis.call('EXPIRE', KEYS[2], ARGV[9])
    return {restored, redis.call('ZRANGEBYSCORE', KEYS[5], now - ARGV[11], '+inf'), unwanted, homes}
    """
)
