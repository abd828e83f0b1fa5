"""The watches of resources, as they are in Redis: who watches what, and which worker has subscribed to it.

Owns the scripts. Each watch has a record, a hash with what is watched and the worker that holds the watch. Its agent
renews the record; when that has expired, the agent is gone. All watches together are a sorted set, by when the right of
their worker to hold them lapses: after that, and from when a worker gives one up, another worker may take it over. What
a worker does with a watch is in `worker.calls.resource_watches`.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.script import NOW, Key, Table, constants, script

__all__ = ["LEASE_S", "MOST", "MOST_OF_ONE", "MOST_SHARED", "add", "claim", "member_of", "read_member", "renew"]

LEASE_S = 30
"""How long the record of a watch lasts that its agent does not renew."""
MOST = 5000
MOST_OF_ONE = 200
"""Watches in all, and those of one bound agent; or of one process, if the agents have no Redis users of their own."""
MOST_SHARED = 2500
"""Where agents are bound, those of all others together: they choose the ids by which processes are told apart."""
_KEPT_S = 24 * 3600

_KNOWN = {"watches": keys.WATCHES}


def member_of(server: str, agent: str, watch_id: str) -> str:
    """A watch in the sorted set; neither server ids nor names of agents have a colon."""
    return f"{server}:{agent}:{watch_id}"


def read_member(member: bytes) -> tuple[str, str, str]:
    """The reverse of `member_of`."""
    server, agent, watch_id = member.decode().split(":", 2)
    return server, agent, watch_id


# Returns 1 if it is there now, 0 if there are too many. `owner` is what follows the server in the members of one
# owner; it begins with two colons if that is no bound agent.
@script(
    NOW,
    constants(lease_s=LEASE_S, kept_s=_KEPT_S, most=MOST, most_of_one=MOST_OF_ONE),
    """
    if redis.call('EXISTS', record) == 0 then
        local all = redis.call('ZCARD', watches)
        if all >= most then return 0 end
        if all >= most_of_one then
            local own, shared = 0, 0
            for _, each in ipairs(redis.call('ZRANGE', watches, 0, -1)) do
                local at = string.find(each, ':', 1, true)
                if at and string.sub(each, at, at + #owner - 1) == owner then own = own + 1 end
                if at and string.sub(each, at, at + 1) == '::' then shared = shared + 1 end
            end
            if own >= most_of_one then return 0 end
            if string.sub(owner, 1, 2) == '::' and shared >= most_shared then return 0 end
        end
    end
    redis.call('HSET', record, 'watch', text, 'worker', instance)
    redis.call('EXPIRE', record, lease_s)
    redis.call('ZADD', watches, now + held_s, member)
    redis.call('EXPIRE', watches, kept_s)
    return 1
    """,
    known=_KNOWN,
    grows=True,
)
def add(*, record: Key, member: str, owner: str, text: str, most_shared: int, instance: str, held_s: float) -> int: ...


# Returns what is watched, or None if the watch is another worker's, or has ended.
@script(
    NOW,
    """
    local lapses = redis.call('ZSCORE', watches, member)
    if not lapses or tonumber(lapses) > now then return false end
    local text = redis.call('HGET', record, 'watch')
    if not text then
        redis.call('ZREM', watches, member)
        return false
    end
    redis.call('HSET', record, 'worker', instance)
    redis.call('ZADD', watches, now + held_s, member)
    return text
    """,
    known=_KNOWN,
)
def claim(*, record: Key, member: str, instance: str, held_s: float) -> bytes | None: ...


# Goes on holding these watches. Returns the numbers of those that have ended or are another worker's, counted from 1,
# and the members that may be taken over: of lost workers, too, or only what was given up. An agent that asks for a
# longer lease does not get one.
@script(
    NOW,
    constants(lease_s=LEASE_S, kept_s=_KEPT_S),
    """
    local lost = {}
    for n, record in ipairs(records) do
        local worker = redis.call('HGET', record, 'worker')
        if worker == instance then
            redis.call('ZADD', watches, now + held_s, members[n])
            redis.call('EXPIRE', record, lease_s, 'LT')
        else
            table.insert(lost, n)
            if not worker then redis.call('ZREM', watches, members[n]) end
        end
    end
    if #records > 0 then redis.call('EXPIRE', watches, kept_s) end
    return {lost, redis.call('ZRANGEBYSCORE', watches, '-inf', of_lost and now or 0)}
    """,
    known=_KNOWN,
)
def renew(
    *records: Key, members: Table, instance: str, held_s: float, of_lost: bool
) -> tuple[list[int], list[bytes]]: ...
