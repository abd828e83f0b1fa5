"""Keeps the stream open in which agents record calls.

Owns the one script that repairs it. Redis gives an entry an id above that of the one before. So after an entry
with an id in the far future, which any agent may write, all later ones have such ids; and after the highest of all ids
it takes no more. Deleting the entry does not help: the stream is written again, with its true ids.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.script import NOW, constants, script

__all__ = ["FURTHEST_AHEAD_S", "repair_agent_audit"]

FURTHEST_AHEAD_S = 3600
"""An entry whose id is further ahead of the clock of Redis has not got it from Redis."""


# Returns whether there is more to do, and how many entries have got other ids, or -1. Entries go to `rebuilt` in
# portions; which was the last one is known from there, so any number of workers may do this, and be killed.
@script(
    constants(most=500, most_moved=1000, ahead_s=FURTHEST_AHEAD_S, ttl_s=keys.AUDIT_TTL_S),
    NOW,
    """
    local info = redis.pcall('XINFO', 'STREAM', audit)
    if info.err then return {0, -1} end  -- there is none, or it is not a stream
    local highest = ''
    for n = 1, #info, 2 do if info[n] == 'last-generated-id' then highest = info[n + 1] end end
    local latest = string.format('%.0f', (now + ahead_s) * 1000)
    if tonumber(string.match(highest, '^%d+')) <= tonumber(latest) then return {0, -1} end
    local copied = redis.call('XREVRANGE', rebuilt, '+', '-', 'COUNT', 1)[1]
    local entries = redis.call('XRANGE', audit, copied and '(' .. copied[1] or '-', latest, 'COUNT', most)
    for _, entry in ipairs(entries) do redis.call('XADD', rebuilt, entry[1], unpack(entry[2])) end
    redis.call('EXPIRE', rebuilt, ttl_s)
    if #entries == most then return {1, -1} end
    local moved = redis.call('XRANGE', audit, '(' .. latest, '+', 'COUNT', most_moved)
    redis.call('DEL', audit)
    if copied or #entries > 0 then redis.call('RENAME', rebuilt, audit) end
    for _, entry in ipairs(moved) do redis.call('XADD', audit, '*', unpack(entry[2])) end
    redis.call('EXPIRE', audit, ttl_s)
    return {0, #moved}
    """,
    known={"audit": keys.AGENT_AUDIT, "rebuilt": keys.REBUILT_AGENT_AUDIT},
)
def repair_agent_audit() -> tuple[int, int]: ...
