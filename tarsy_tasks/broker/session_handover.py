"""Bringing the calls of isolated sessions to the workers that hold them.

Owns the moves between a queue and the affinity queues of the workers beside it. An affinity queue is one like any
other, in which nothing is lost; what waits there when its worker is gone goes back to where it came from.

Most calls say in a header which session they belong to, and so pass through no other worker: the script that publishes
them finds the holder and puts them there, or has only this worker look into the queue of a bound agent
(`publish_to_session`); or the one that takes them from their queue moves them there (`fetch`). The header is a hint:
anyone can write it, and nobody gains by it. A call is moved only beside the queue that it is in, to a worker that takes
calls from there, and this worker finds the session by the verified principal and the run. A call without the hint is
moved by the worker that took it (`forward`).
"""

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.entries import ANNOUNCE, ENTRIES, GIVE_BACK
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.script import NOW, Key, constants, script
from tarsy_tasks.broker.steps import KEYS, PUBLISH, UNBEGIN, step
from tarsy_tasks.broker.task_headers import LONGEST_NAME

__all__ = ["PASS_ON", "SESSION_HEADER", "forward", "publish_to_session", "take_back"]

SESSION_HEADER = "session"
"""Of a message: the `session_name_of` its call, as its sender knows it. If the sender does not know which principal
workers see in it, two with a space between."""

_FIND_HOLDER = (
    fleet.IS_ALIVE
    + constants(session_prefix=keys.session_key(""))
    + r"""
    -- Who holds the session of a call, if that is another worker, which is alive and takes calls beside this queue.
    local function find_holder(sessions, home, own)
        local first, second = string.match(sessions, '(%S+)%s*(%S*)')  -- more would cost more
        for _, name in ipairs({first, second}) do
            local known = name == '' and {} or redis.pcall('HMGET', session_prefix .. name, 'holder', 'home', 'lease_s')
            local holder, beside, lease_s = unpack(known.err and {} or known)
            if holder and holder ~= '' and beside == home then
                return holder ~= own and is_alive(holder, tonumber(lease_s)) and holder
            end
        end
    end
    """
)


# As `steps.publish`; but the call of a session that a worker holds goes into the affinity queue of that worker. What a
# bound agent sends stays in its own queue, because in an affinity queue it would get more than its share; but no other
# worker is woken. `sessions` is as in the header `SESSION_HEADER`. If Redis does not let the sender ask who holds a
# session, a worker moves the call.
@step(
    NOW,
    ANNOUNCE,
    constants(waiting_prefix=keys.waiting_key("")),
    _FIND_HOLDER,
    r"""
    local worker
    local holder = redis.acl_check_cmd('ZSCORE', heartbeats, '') and find_holder(sessions, home)
    if holder then
        local target = home .. worker_mark .. holder
        if string.find(home, agent_mark, 1, true) then worker = holder
        else queue, waiting, home = target .. string.sub(queue, #home + 1), waiting_prefix .. target, target
        end
    end
    """,
    PUBLISH,
    grows=True,
)
def publish_to_session(*, queue: Key, tag: str, message: str, garbage_at: str, home: str, sessions: str) -> int: ...


PASS_ON = (
    _FIND_HOLDER
    + constants(all_queues=keys.QUEUES, most_passed_on=64, session_header=SESSION_HEADER)
    + r"""
    local passed_on, passed_from = 0, nil
    -- Whether a call was moved. Only one that no worker has had: what was lost before is looked at by a worker.
    local function pass_on(session, tag, name, home, message)
        if passed_on >= most_passed_on or string.find(home, worker_mark, 1, true) then return false end
        local holder = find_holder(session, home, instance)
        if not holder or redis.call('EXISTS', marker_prefix .. tag) == 1 then return false end
        local _, garbage_at = split_entry(redis.call('HGET', unacked, tag) or '')
        if not garbage_at then return false end
        local target = home .. worker_mark .. holder
        local list = target .. string.sub(name, #home + 1)
        redis.call('HSET', unacked, tag, list .. '\n' .. garbage_at .. '\n' .. message)
        redis.call('ZREM', waiting_prefix .. home, tag)
        redis.call('ZADD', waiting_prefix .. target, now, tag)
        redis.call('ZADD', all_queues, 'NX', now, target)
        -- If it is withdrawn now, the worker that takes it records that: so it counts as `taken`.
        local fields = {'taken', 1}
        if is_of_agent(home) then fields = {'taken', 1, 'message', digest_of(home, message)} end
        redis.call('HSET', marker_prefix .. tag, unpack(fields))
        redis.call('EXPIRE', marker_prefix .. tag, marker_ttl_s)
        redis.call('LPUSH', list, message)
        passed_on, passed_from = passed_on + 1, home
        return true
    end
    """
)
"""Lua functions for `fetch`, which has the other names in them."""


# Returns 0, and does nothing, if the session is no longer there.
@step(
    NOW,
    ENTRIES,
    UNBEGIN,
    GIVE_BACK,
    r"""
    unbegin(begun_as)
    if redis.call('HGET', session, 'holder') ~= holder then return 0 end
    if not is_current() then return 1 end
    redis.call('ZREM', leases, home .. '\n' .. tag)
    local in_flight = entry_of(tag, home)
    local queue, garbage_at, message = split_entry(in_flight or '')
    if not message then return 1 end
    local list = target .. string.sub(named_queue(queue, home), #home + 1)
    redis.call('HSET', unacked, tag, list .. '\n' .. garbage_at .. '\n' .. message)
    redis.call('LPUSH', list, message)
    redis.call('ZADD', target_waiting, now, tag)
    redis.call('ZADD', queues, 'NX', now, target)
    -- If it is withdrawn now, the worker that takes it records that: so it stays `taken`.
    end_uncounted()
    redis.call('HDEL', marker, 'suspect')
    redis.call('EXPIRE', marker, marker_ttl_s)
    return 1
    """,
)
def _forward(
    *,
    session: Key,
    target_waiting: Key,
    tag: str,
    home: str,
    delivery_count: int,
    given_back: int,
    begun_as: str,
    holder: str,
    target: str,
) -> int: ...


# Agents list queues, too, under any names. One that may call every server can also fill lists whose names end with its
# own; so nothing with another mark behind the first one is moved, or it could get into the queue of another agent.
@script(
    NOW,
    ENTRIES,
    ANNOUNCE,
    fleet.IS_ALIVE,
    constants(
        most_queues=1000,
        most_messages=500,
        longest_name=LONGEST_NAME,
        waiting_prefix=keys.waiting_key(""),
    ),
    r"""
    local moved = {}
    local function move(queue, home)
        local place = waiting_prefix .. queue
        for _, tag in ipairs(redis.call('ZRANGE', place, 0, most_messages - 1)) do
            local in_flight = entry_of(tag, home)
            local name, garbage_at, message = split_entry(in_flight or '')
            redis.call('ZREM', place, tag)
            if message then
                local list = named_queue(name, queue)
                redis.call('LREM', list, 0, message)
                list = home .. string.sub(list, #queue + 1)
                redis.call('HSET', unacked, tag, list .. '\n' .. garbage_at .. '\n' .. message)
                redis.call('RPUSH', list, message)
                redis.call('ZADD', waiting_prefix .. home, now, tag)
                redis.call('ZADD', queues, 'NX', now, home)
                pcall(announce, home)
                moved[#moved + 1] = tag
            end
        end
    end
    for _, queue in ipairs(redis.call('ZRANGE', queues, 0, most_queues - 1)) do
        local home, instance
        if #queue <= longest_name then
            home, instance = string.match(queue, '^([^\n]-)' .. worker_mark .. '([^\n:]+)$')
        end
        if home and (instance == leaving or not is_alive(instance, lease_s)) then move(queue, home) end
    end
    return moved
    """,
    known=KEYS,
)
def _take_back(*, leaving: str, lease_s: float) -> list[bytes]: ...


def forward(exchange: RedisExchange, delivery: Delivery, session: str, holder: str) -> bool:
    """Move a message that this worker has leased into the affinity queue of the worker that holds its session; this
    delivery does not count. Returns False, and does nothing, if that worker holds it no longer. Nothing has to be done
    if another worker has taken the message since.

    Args:
        session: The key of the session.
    """
    target = keys.affinity_queue(delivery.queue.partition(keys.WORKER_MARK)[0], holder)
    waiting = keys.waiting_key(target)
    return bool(
        _forward.run(exchange, **delivery.slots, session=session, holder=holder, target=target, target_waiting=waiting)
    )


def take_back(exchange: RedisExchange, lease_s: float, leaving: str = "") -> list[str]:
    """Move what waits in the affinity queues of lost workers back to where it came from. Returns the tags.

    Args:
        lease_s: How long a worker counts as alive that renews nothing.
        leaving: A worker that takes no more calls, though it is alive.
    """
    return [as_text(tag) for tag in _take_back.run(exchange, leaving=leaving, lease_s=lease_s)]
