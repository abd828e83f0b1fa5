"""The watches of resources, as they are in Redis: who watches what, and which worker subscribes to it.

Owns the scripts. The watches of one server are a hash: the id of a watch, and in JSON what it is of and whose it is.
Each has a lease, a key of its own that its agent renews; without it the agent is gone. Of the workers with a session
with that server one subscribes, for as long as it renews the key that names it. What it does is in
`worker.process.resource_watches`.
"""

from tarsy_tasks.broker.script import Key, constants, script

__all__ = ["LEASE_S", "add", "change", "lead"]

LEASE_S = 30
"""How long an agent's lease lasts that is not renewed."""
_LEADER_S = 5
_KEPT_S = 24 * 3600
"""How long they are kept while no worker serves the server."""
_MOST, _MOST_OF_AGENT = 1000, 200
"""Watches of a server, and of one bound agent, or of all others together."""


# Returns 1 if it was added, 0 if there are too many. A watch that is there stays as it is.
@script(
    constants(lease_s=LEASE_S, kept_s=_KEPT_S, most=_MOST, most_of_agent=_MOST_OF_AGENT),
    """
    if redis.call('HEXISTS', watches, watch_id) == 0 then
        local all, own = 0, 0
        for n, each in ipairs(redis.call('HGETALL', watches)) do
            if n % 2 == 0 then
                all = all + 1
                if cjson.decode(each).agent == agent then own = own + 1 end
            end
        end
        if all >= most or own >= most_of_agent then return 0 end
        redis.call('HSET', watches, watch_id, text)
    end
    redis.call('EXPIRE', watches, kept_s)
    redis.call('SET', lease, '', 'EX', lease_s)
    return 1
    """,
    grows=True,
)
def add(*, watches: Key, lease: Key, watch_id: str, agent: str, text: str) -> int: ...


# Returns ids and watches, one after the other; None if another worker subscribes to them.
@script(
    constants(leader_s=_LEADER_S, kept_s=_KEPT_S),
    """
    local leader = redis.call('GET', watcher)
    if leader and leader ~= instance then return false end
    redis.call('SET', watcher, instance, 'EX', leader_s)
    redis.call('EXPIRE', watches, kept_s)
    return redis.call('HGETALL', watches)
    """,
)
def lead(*, watches: Key, watcher: Key, instance: str) -> list[bytes] | None: ...


# Replaces a watch, unless it has ended meanwhile.
@script("if redis.call('HEXISTS', watches, watch_id) == 1 then redis.call('HSET', watches, watch_id, text) end")
def change(*, watches: Key, watch_id: str, text: str) -> None: ...
