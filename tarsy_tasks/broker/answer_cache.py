"""The cache of answers, as it is in Redis: what is kept, and who asks for what is not.

Owns the scripts. A place holds the answers of one server to one credential, a hash: each field is a question, as a
digest, and its value the time until which the answer counts, and in the next line the answer. The field `generation`
changes whenever something is dropped: what was asked before that is not kept any more. The field `bytes` is the size of
all answers; when they would be too large, all are dropped.

A call that finds nothing becomes the leader of a flight: it asks the server, and all others with the same question, in
whatever worker, wait for what it keeps. The leader has a lease on that, which lapses with its worker. Each script may
be sent twice. What is kept, and for how long, is decided in `worker.calls.result_cache`.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.audit_probe import PROBE_AUDIT
from tarsy_tasks.broker.script import NOW, Key, Table, script

__all__ = ["LARGEST_BYTES", "drop", "find_or_lead", "keep", "release", "renew"]

LARGEST_BYTES = 2 * 1024 * 1024
"""Of one answer; a larger one is not kept."""
_MOST_BYTES = 32 * 1024 * 1024
"""Of all answers in one place."""
_REMEMBERED_S = 24 * 3600

_RELEASE = "if redis.call('GET', flight) == owner then redis.call('DEL', flight) end"


# Returns the generation, and what is kept. Only the generation if the caller is the leader, or wants no answer, or the
# audit takes no entry, and a call has to be refused for that where all others are. None if somebody else is the leader.
@script(
    PROBE_AUDIT,
    NOW,
    """
    local kept = redis.call('HMGET', place, field, 'generation')
    local generation = kept[2] or ''
    if is_asking then return {generation} end
    if kept[1] then
        local head, text = string.match(kept[1], '^([%d.]+)\\n(.*)$')
        local ends = tonumber(head)
        -- An answer that would be kept for too long is one of a clock that was wrong.
        if ends and now < ends and ends <= now + ttl_s + 1 then
            return is_audited and probe_audit() and {generation} or {generation, text}
        end
    end
    if redis.call('SET', flight, owner, 'NX', 'EX', lease_s) or redis.call('GET', flight) == owner then
        return {generation}
    end
    return false
    """,
    known={"audit": keys.AUDIT},
)
def find_or_lead(
    *,
    place: Key,
    field: str,
    flight: Key,
    owner: str,
    ttl_s: float,
    lease_s: int,
    is_audited: bool,
    is_asking: bool,
) -> list[bytes] | None: ...


# Keeps an answer, unless something was dropped since `generation` was found. Returns 1 if it is kept.
@script(
    NOW,
    f"{_RELEASE} local most_bytes = {_MOST_BYTES}",
    """
    if (redis.call('HGET', place, 'generation') or '') ~= generation then return 0 end
    local value = string.format('%.6f\\n', now + ttl_s) .. text
    local before = redis.call('HGET', place, field)
    if redis.call('HINCRBY', place, 'bytes', #value - (before and #before or 0)) > most_bytes then
        redis.call('DEL', place)
        redis.call('HSET', place, 'generation', generation, 'bytes', #value)
    end
    redis.call('HSET', place, field, value)
    if redis.call('TTL', place) < ttl_s then redis.call('EXPIRE', place, math.ceil(ttl_s)) end
    return 1
    """,
    grows=True,
)
def keep(
    *, place: Key, field: str, flight: Key, owner: str, text: str | bytes, ttl_s: float, generation: str
) -> int: ...


@script(_RELEASE)
def release(*, flight: Key, owner: str) -> None: ...


@script("if redis.call('GET', flight) == owner then redis.call('EXPIRE', flight, lease_s) end")
def renew(*, flight: Key, owner: str, lease_s: int) -> None: ...


# Forgets the answers in these fields, or all of them. `generation` is one that never was; it is kept for as long as a
# call may take. A key of another type is replaced.
@script(
    f"local keep_s = {_REMEMBERED_S}",
    """
    if everything or redis.call('TYPE', place).ok ~= 'hash' then redis.call('DEL', place) end
    for _, field in ipairs(fields) do
        local before = redis.call('HGET', place, field)
        if before then
            redis.call('HDEL', place, field)
            redis.call('HINCRBY', place, 'bytes', -#before)
        end
    end
    redis.call('HSET', place, 'generation', generation)
    if redis.call('TTL', place) < keep_s then redis.call('EXPIRE', place, keep_s) end
    """,
)
def drop(*, place: Key, fields: Table, everything: bool, generation: str) -> None: ...
