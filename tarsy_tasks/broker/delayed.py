"""The messages whose time has not come.

Owns the one script that moves those that are due into their queues. `steps.delay` puts a message here, when a worker
has taken it too early or gives its call back for a while. Its text stays in the in-flight table, so a message is in
exactly one place: in its queue, leased, or here. The worker's `lease` decides how often the script runs.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.entries import ANNOUNCE, ENTRIES
from tarsy_tasks.broker.script import NOW, constants, script
from tarsy_tasks.broker.steps import KEYS

__all__ = ["release_due"]


# Returns in how many seconds the next one is due, as a text: below 0 if some are left that are due; empty if there is
# none. A message whose entry is damaged counts as waiting, too: the sweep looks for it there and deals with it. Keys of
# another type must not stop the others, and a message stays here until it is somewhere else.
@script(
    constants(
        most=200,
        most_bytes=1024 * 1024,
        blocked_s=60,
        waiting_prefix=keys.waiting_key(""),
    ),
    NOW,
    ENTRIES,
    ANNOUNCE,
    r"""
    local bytes = 0
    for _, place in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, most)) do
        if bytes >= most_bytes then break end
        local home, tag = string.match(place, '^([^\n]*)\n(.*)$')
        local entry = tag and entry_of(tag, home)
        local is_moved = not entry
        if entry then
            local queue, _, message = split_entry(entry)
            local size = message and redis.pcall('LPUSH', named_queue(queue, home), message)
            local added = redis.pcall('ZADD', waiting_prefix .. home, now, tag)
            redis.pcall('ZADD', queues, 'NX', now, home)
            pcall(announce, home)
            is_moved = type(size) == 'number' or type(added) == 'number'
            bytes = bytes + #entry
        end
        if is_moved then redis.call('ZREM', delayed, place)
        else redis.call('ZADD', delayed, now + blocked_s, place) end
    end
    local due = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
    return due and tostring(due - now) or ''
    """,
    known=KEYS,
)
def release_due() -> bytes: ...
