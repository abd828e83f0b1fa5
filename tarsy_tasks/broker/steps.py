"""The steps in which a message moves between its states, each one Lua script.

Owns the scripts, each harmless when sent twice, and what each needs, in the comment above it. What the states are says
`deliveries`, which calls them.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.script import Script
from tarsy_tasks.broker.sweep import NAMED_QUEUE

__all__ = [
    "ACKNOWLEDGE",
    "ANSWER",
    "BEGIN",
    "DISCARD",
    "PUBLISH",
    "PURGE",
    "RENEW",
    "REQUEUE",
    "TAKE",
    "TELL",
    "UNBEGIN",
    "WITHDRAW",
]

_NOW = "local t = redis.call('TIME') local now = t[1] + t[2] / 1000000 "
_RECORD = f"""
    local function record(key, text, limit)
        if text == '' then return '' end
        local id = redis.pcall('XADD', key, 'MAXLEN', '~', limit, '*', '{keys.AUDIT_FIELD}', text)
        if type(id) == 'table' then return id.err end  -- an answer is worth more than its entry
        redis.call('EXPIRE', key, {keys.AUDIT_TTL_S})
        return ''
    end
    """

# KEYS: unacked, waiting, queue, queues. ARGV: tag, message, when it is garbage, name in `queues`.
PUBLISH = Script(
    _NOW
    + """
    if redis.call('HSETNX', KEYS[1], ARGV[1], KEYS[3] .. '\\n' .. ARGV[3] .. '\\n' .. ARGV[2]) == 0 then return 0 end
    redis.call('ZADD', KEYS[2], now, ARGV[1])
    redis.call('ZADD', KEYS[4], 'NX', now, ARGV[4])
    return redis.call('LPUSH', KEYS[3], ARGV[2])
    """,
    grows=True,
)

# KEYS: unacked, waiting, leases, marker, withdrawn. ARGV: tag, marker's ttl, books of a message that a stock producer
# sent or '', whether it is a suspect from the beginning, lease.
TAKE = Script(
    _NOW
    + """
    local mark = redis.call('HMGET', KEYS[4], 'mark', 'owner')
    local is_withdrawn = not mark[1] and redis.call('EXISTS', KEYS[5]) == 1
    local has_books = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
    if not (has_books or mark[1] or is_withdrawn) then
        if ARGV[3] == '' then return {0, '', ''} end
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
        has_books = true
    end
    if has_books then redis.call('HSET', KEYS[4], 'taken', 1) end
    redis.call('ZADD', KEYS[3], now, ARGV[5])
    redis.call('ZREM', KEYS[2], ARGV[1])
    local count = redis.pcall('HINCRBY', KEYS[4], 'deliveries', 1)
    if type(count) == 'table' then  -- a damaged marker must not stop the worker
        count = 1
        redis.call('HSET', KEYS[4], 'deliveries', count)
    end
    if ARGV[4] ~= '' then redis.call('HSET', KEYS[4], 'suspect', 1) else redis.call('HDEL', KEYS[4], 'suspect') end
    redis.call('EXPIRE', KEYS[4], ARGV[2])
    return {count, is_withdrawn and 'withdrawn' or mark[1] or '', mark[2] or ''}
    """
)

# KEYS: marker, audit, withdrawn. ARGV: owner, who may have begun it before, marker's ttl, whether the audit has to be
# there.
BEGIN = Script(
    f"""
    local mark = redis.call('HMGET', KEYS[1], 'mark', 'owner')
    if mark[1] == 'answered' then return {{mark[1], ''}} end
    if not mark[1] and redis.call('EXISTS', KEYS[3]) == 1 then return {{'withdrawn', ''}} end
    if mark[1] == 'begun' and mark[2] ~= ARGV[1] and mark[2] ~= ARGV[2] then return mark end
    if ARGV[4] ~= '' then
        local probe = redis.pcall('XADD', KEYS[2], '*', '{keys.AUDIT_FIELD}', '')
        if type(probe) == 'table' then return {{'', '', probe.err}} end
        redis.call('XDEL', KEYS[2], probe)
        redis.call('EXPIRE', KEYS[2], {keys.AUDIT_TTL_S})
    end
    redis.call('HSET', KEYS[1], 'mark', 'begun', 'owner', ARGV[1])
    redis.call('EXPIRE', KEYS[1], ARGV[3])
    return {{'', ''}}
    """
)

# KEYS: marker. ARGV: owner.
UNBEGIN = Script(
    """
    local mark = redis.call('HMGET', KEYS[1], 'mark', 'owner')
    if mark[1] == 'begun' and mark[2] == ARGV[1] then redis.call('HDEL', KEYS[1], 'mark', 'owner') end
    """
)

# KEYS: unacked, leases, marker, result, audit, withdrawn. ARGV: tag, marker's ttl, result, its ttl, owner, reply
# channel, lease, marker's ttl if the message went back to its queue meanwhile, audit entry, how many are kept. The
# first answer stays, and what another owner began in the meantime, that one answers. Of what an agent withdrew from its
# queue the agent tells the audit.
ANSWER = Script(
    _RECORD
    + """
    local mark = redis.call('HMGET', KEYS[3], 'mark', 'owner', 'taken')
    if mark[1] == 'begun' and mark[2] ~= ARGV[5] then return {0, ''} end
    local is_mine = mark[1] or mark[3] or redis.call('EXISTS', KEYS[6]) == 0
    redis.call('HDEL', KEYS[1], ARGV[1])
    local is_held = redis.call('ZREM', KEYS[2], ARGV[7]) == 1
    if mark[1] == 'answered' then return {0, ''} end
    if ARGV[4] == '' then redis.call('SET', KEYS[4], ARGV[3])
    else redis.call('SET', KEYS[4], ARGV[3], 'EX', ARGV[4]) end
    redis.call('PUBLISH', KEYS[4], ARGV[3])
    redis.call('PUBLISH', ARGV[6], ARGV[3])
    redis.call('HSET', KEYS[3], 'mark', 'answered')
    redis.call('EXPIRE', KEYS[3], is_held and ARGV[2] or ARGV[8])
    if not is_mine then return {0, ''} end
    return {1, record(KEYS[5], ARGV[9], ARGV[10])}
    """
)

# KEYS: unacked, leases, marker, audit, withdrawn. ARGV: tag, marker's ttl, lease, marker's ttl if the message went back
# to its queue meanwhile, audit entry, how many are kept.
ACKNOWLEDGE = Script(
    _RECORD
    + """
    local found = redis.call('HMGET', KEYS[3], 'mark', 'taken')
    local mark, is_withdrawn = found[1], not found[1] and redis.call('EXISTS', KEYS[5]) == 1
    local is_mine = found[2] or not is_withdrawn
    redis.call('HDEL', KEYS[1], ARGV[1])
    local is_held = redis.call('ZREM', KEYS[2], ARGV[3]) == 1
    if is_withdrawn then redis.call('HDEL', KEYS[3], 'taken')  -- when this is sent twice it is not told again
    else redis.call('HSET', KEYS[3], 'mark', 'answered') end
    redis.call('EXPIRE', KEYS[3], is_held and ARGV[2] or ARGV[4])
    if mark == 'answered' or not is_mine then return {0, ''} end
    return {1, record(KEYS[4], ARGV[5], ARGV[6])}
    """
)

# KEYS: unacked, waiting, audit. ARGV: tag, queue, audit entry, how many are kept.
DISCARD = Script(
    _RECORD
    + NAMED_QUEUE
    + """
    if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return {0, ''} end
    local books = redis.call('HGET', KEYS[1], ARGV[1])
    if not books then return {0, ''} end
    redis.call('HDEL', KEYS[1], ARGV[1])
    local queue, message = string.match(books, '^([^\\n]*)\\n[^\\n]*\\n(.*)$')
    if queue then redis.pcall('LREM', named_queue(queue, ARGV[2]), -1, message) end
    return {1, record(KEYS[3], ARGV[3], ARGV[4])}
    """
)

# KEYS: marker, audit. ARGV: audit entry, how many are kept, marker's ttl.
TELL = Script(
    _RECORD
    + """
    if redis.call('HSETNX', KEYS[1], 'told', 1) == 0 then return {0, ''} end
    redis.call('EXPIRE', KEYS[1], ARGV[3])
    return {1, record(KEYS[2], ARGV[1], ARGV[2])}
    """
)

# KEYS: unacked, leases, waiting, marker, queue, queues. ARGV: tag, marker's ttl, lease.
REQUEUE = Script(
    _NOW
    + """
    if redis.call('ZREM', KEYS[2], ARGV[3]) == 0 then return 0 end
    local books = redis.call('HGET', KEYS[1], ARGV[1])
    local message = books and string.match(books, '^[^\\n]*\\n[^\\n]*\\n(.*)$')
    if not message then return 0 end
    redis.call('RPUSH', KEYS[5], message)
    redis.call('ZADD', KEYS[3], now, ARGV[1])
    redis.call('ZADD', KEYS[6], 'NX', now, KEYS[5])
    redis.call('HINCRBY', KEYS[4], 'deliveries', -1)
    redis.call('HDEL', KEYS[4], 'suspect')
    redis.call('EXPIRE', KEYS[4], ARGV[2])
    return 1
    """
)

# KEYS: leases. ARGV: leases.
RENEW = Script(
    _NOW
    + """
    for _, lease in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 'XX', now, lease) end
    """
)

# KEYS: unacked, waiting, marker, withdrawn. ARGV: tag, ttl.
WITHDRAW = Script(
    """
    local mark = redis.call('HGET', KEYS[3], 'mark')
    if mark then return {mark, 1} end
    redis.call('SET', KEYS[4], 1, 'EX', ARGV[2])
    if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
        local books = redis.call('HGET', KEYS[1], ARGV[1])
        redis.call('HDEL', KEYS[1], ARGV[1])
        if books then
            local queue, message = string.match(books, '^([^\\n]*)\\n[^\\n]*\\n(.*)$')
            redis.call('LREM', queue, -1, message)
        end
    end
    return {'', redis.call('HEXISTS', KEYS[3], 'taken')}
    """
)

# KEYS: unacked, waiting, queue.
PURGE = Script(
    """
    for _, tag in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do redis.call('HDEL', KEYS[1], tag) end
    local size = redis.call('LLEN', KEYS[3])
    redis.call('DEL', KEYS[2], KEYS[3])
    return size
    """
)
