"""Calls that wait for tasks of their MCP servers: which worker asks a server about which task, and when.

Owns the scripts that keep a task with its call, give the calls that are due to a worker, and note what it found out.
They are parked calls (`parked_calls`) whose record has these fields, too:

| field | |
|---|---|
| `task` | the server's id of the task: who knows it can ask for the result, so no agent can read it |
| `sent_at`, `attempts`, `approval`, `charges`, `principal` | what is known of the call that was sent |
| `events` | 1: somebody listens to the events of the call |
| `holder` | the worker whose own process the server is; nobody else asks while it lives |
| `message` | what the server last said of the task, masked |
| `returns` | how often the call was woken for a task that turned out not to be done |
| `rounds`, `answered` | how often the task has asked for input; the keys of what it was answered |
| `task_until` | how long it waits for the task, while it waits for input (`input_rounds`), and `reason` says so |
| `decision` | why it was woken: `done`, `cancelled` or `expired` |

`tarsy:polled:<server>` has the places of these calls by when the server is asked again. A worker that takes some puts
their time off by the length of a lease: so each has one worker at a time, and the tasks of a worker that is lost are
those of others soon. `tarsy:server-task:<server>:<digest>` says which call a task belongs to.

The begin marker of such a call stays: it was sent, and is not sent again. An agent that cancels it leaves
`tarsy:cancelled:<id>`, as for a call that runs, and the worker that sees that has the server cancel the task.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.parked_waking import KEPT_S, WAKE
from tarsy_tasks.broker.script import NOW, Key, Table, constants, script
from tarsy_tasks.broker.steps import KEYS, MARKER_TTL_S

__all__ = ["Asked", "DueTask", "keep", "settle", "take_due", "take_revoked"]

_SEARCHED = 1000
"""How many are looked at in one go, of each server."""


class DueTask(NamedTuple):
    """A call whose task this worker is to ask about.

    Attributes:
        place: Queue and tag, with a line break between.
        is_cancelled: Nobody waits any more.
        has_listener: Somebody listens to the events of the call.
        message: What the server last said, masked.
        sent_at: As in `ParkedRecord`, as are the next two.
    """

    server: str
    place: str
    task: str
    principal: str
    is_cancelled: bool
    has_listener: bool
    message: str
    sent_at: float
    reason: str
    answered: str

    @property
    def tag(self) -> str:
        """The task id of the call."""
        return self.place.partition("\n")[2]

    @property
    def home(self) -> str:
        """Its queue."""
        return self.place.partition("\n")[0]


class Asked(NamedTuple):
    """What a worker has found out about a task.

    Attributes:
        verdict: Why the call is woken: `done`, `cancelled` or `expired`; empty: the task goes on.
        wait_s: In how many seconds the server is asked again.
        message: What it said, masked; empty: nothing new.
    """

    due: DueTask
    verdict: str
    wait_s: float = 0.0
    message: str = ""


# Returns 0 for a task that another call waits for.
@script(
    constants(marker_ttl_s=MARKER_TTL_S, kept_s=KEPT_S),
    NOW,
    r"""
    local left_s = math.ceil(math.max(0, ends_at - now))
    local owner = redis.call('GET', owned)
    -- A server that was restarted may begin to count again: only a call that still waits has its task.
    if owner and owner ~= tag and redis.call('HEXISTS', unacked, owner) == 1 then return 0 end
    redis.call('SET', owned, tag, 'EX', left_s + kept_s)
    redis.call('DEL', parked_call)
    for name, value in pairs(record) do redis.call('HSET', parked_call, name, value) end
    redis.call('HSET', parked_call, 'until', string.format('%.3f', ends_at))
    redis.call('EXPIRE', parked_call, left_s + kept_s)
    redis.call('EXPIRE', marker, left_s + marker_ttl_s)
    return 1
    """,
    known=KEYS,
)
def _keep(*, tag: str, owned: Key, record: Table, ends_at: float) -> int: ...


async def keep(
    exchange: AsyncRedisExchange, tag: str, server: str, task: str, record: dict[str, Any], until: float
) -> bool:
    """Keep the task that a server has answered a call with, before the call is parked: so that it is not lost with this
    worker. False if another call waits for it.

    Args:
        record: The fields of the record of the call.
    """
    owned = keys.server_task_key(server, task)
    record = {name: value for name, value in record.items() if value not in ("", 0)}
    return bool(await _keep.run_async(exchange, tag=tag, owned=owned, record=record, ends_at=until))


_TAKE = (
    constants(
        cancelled_prefix=keys.cancelled_key(""),
        searched=_SEARCHED,
        quiet=fleet.QUIET,
    )
    + r"""
    local found = {}
    local function is_alive(holder)
        local said_at = redis.call('ZSCORE', workers, holder)
        return said_at and now - said_at < lease_s
    end
    local function read(server, place, tag, is_cancelled, is_once)
        local task, holder, principal, events, message, sent_at, reason, answered = unpack(redis.call('HMGET',
            parked_prefix .. tag, 'task', 'holder', 'principal', 'events', 'message', 'sent_at', 'reason', 'answered'))
        if not task then return false end
        if holder and holder ~= instance then
            if is_alive(holder) then return true end
            redis.call('HDEL', parked_prefix .. tag, 'holder')  -- any worker can try
        end
        -- Only now: else one that cannot ask its server would keep the others from it.
        if is_once and redis.call('HSETNX', parked_prefix .. tag, 'cancelling', 1) == 0 then return true end
        redis.call('ZADD', polled_prefix .. server, now + lease_s, place)
        found[#found + 1] = {server, place, task, principal or '', is_cancelled and '1' or '', events or '',
            message or '', sent_at or '0', reason or '', answered or ''}
        return true
    end
    """
)
_KEYS = {**KEYS, "workers": keys.WORKERS}


# Returns a list for each call that is due, and in how many seconds the next one is. Of each server a part of the others
# is looked through for those that were cancelled, from `offset` on.
@script(
    NOW,
    WAKE,
    _TAKE,
    r"""
    local next_s
    for server, most in pairs(servers) do
        local polled, first = polled_prefix .. server, #found
        local size = redis.call('ZCARD', polled)
        local function is_parked(place)
            if redis.call('ZSCORE', parked, place) then return true end
            redis.call('ZREM', polled, place)
        end
        local places = size == 0 and {} or redis.call('ZRANGEBYSCORE', polled, '-inf', now, 'LIMIT', 0, searched)
        for _, place in ipairs(places) do
            if #found - first >= most then break end
            local tag = string.match(place, '\n(.*)$') or ''
            if is_parked(place) then
                local is_cancelled = redis.call('EXISTS', cancelled_prefix .. tag) == 1
                if not read(server, place, tag, is_cancelled) then redis.call('ZREM', polled, place) end
            end
        end
        local from = size > searched and offset % size or 0
        for _, place in ipairs(size == 0 and {} or redis.call('ZRANGE', polled, from, from + searched - 1)) do
            if #found - first >= most then break end
            local tag = string.match(place, '\n(.*)$') or ''
            if redis.call('EXISTS', cancelled_prefix .. tag) == 1 and is_parked(place) then
                read(server, place, tag, true, true)
            end
        end
        local score = size > 0 and redis.call('ZRANGE', polled, 0, 0, 'WITHSCORES')[2]
        if score then next_s = math.min(next_s or math.huge, tonumber(score) - now) end
    end
    return {found, next_s and tostring(next_s) or ''}
    """,
    known=_KEYS,
)
def _take_due(*, servers: Table, instance: str, lease_s: float, offset: int) -> tuple[list[list[bytes]], bytes]: ...


async def take_due(
    exchange: AsyncRedisExchange, servers: Mapping[str, int], instance: str, lease_s: float, offset: int
) -> tuple[list[DueTask], float | None]:
    """The calls whose tasks this worker is to ask about now, for as long as a lease; and in how many seconds the next
    one is due, None if there is none.

    Args:
        servers: Those that it serves, and how many it can take of each.
        offset: Grows with each look, so that in the end all calls were looked at that may have been cancelled.
    """
    found, next_s = await _take_due.run_async(
        exchange, servers=dict(servers), instance=instance, lease_s=lease_s, offset=offset * _SEARCHED
    )
    return list(map(_read_due, found)), float(next_s) if next_s else None


# A parked call that waits for something else goes back to its queue, where Celery finds that it is revoked. One that
# waits for a task is marked as cancelled: each worker hears of a revocation once, and this one may not serve its
# server, or be lost before the task is cancelled.
@script(
    constants(marker_ttl_s=MARKER_TTL_S),
    NOW,
    WAKE,
    _TAKE,
    r"""
    local is_served = {}
    for _, server in ipairs(servers) do is_served[server] = true end
    for _, tag in ipairs(tags) do
        local record = parked_prefix .. tag
        local home, task = unpack(redis.call('HMGET', record, 'home', 'task'))
        local place = home and home .. '\n' .. tag
        if place and redis.call('ZSCORE', parked, place) then
            local server = string.match(home, '^' .. queue_prefix .. '([^:]*)')
            if not (task and server) then wake(place)
            else
                redis.call('SET', cancelled_prefix .. tag, 1, 'EX', marker_ttl_s)
                if is_served[server] then read(server, place, tag, true, true) end
            end
        end
    end
    return found
    """,
    known=_KEYS,
)
def _take_revoked(*, tags: Table, servers: Table, instance: str, lease_s: float) -> list[list[bytes]]: ...


async def take_revoked(
    exchange: AsyncRedisExchange, tags: Iterable[str], servers: Iterable[str], instance: str, lease_s: float
) -> list[DueTask]:
    """Of calls that were revoked those whose tasks this worker is to cancel now; other parked ones are woken.

    Args:
        servers: Those that it serves.
    """
    found = await _take_revoked.run_async(
        exchange, tags=list(tags), servers=list(servers), instance=instance, lease_s=lease_s
    )
    return list(map(_read_due, found))


@script(
    NOW,
    WAKE,
    r"""
    for _, each in ipairs(asked) do
        local server, place, verdict, wait_s, message = unpack(each)
        local polled, record = polled_prefix .. server, parked_prefix .. (string.match(place, '\n(.*)$') or '')
        if not redis.call('ZSCORE', parked, place) then redis.call('ZREM', polled, place)
        elseif verdict ~= '' then
            redis.call('HSETNX', record, 'decision', verdict)
            wake(place)
        else
            redis.call('ZADD', polled, 'XX', now + wait_s, place)
            if message ~= '' and redis.call('EXISTS', record) == 1 then
                redis.call('HSET', record, 'message', message)
            end
        end
    end
    """,
    known=KEYS,
)
def _settle(*, asked: Table) -> None: ...


async def settle(exchange: AsyncRedisExchange, asked: Iterable[Asked]) -> None:
    """Note what this worker has found out about tasks."""
    rows = [(each.due.server, each.due.place, each.verdict, each.wait_s, each.message) for each in asked]
    await _settle.run_async(exchange, asked=rows)


def _read_due(found: list[bytes]) -> DueTask:
    server, place, task, principal, is_cancelled, has_listener, message, sent_at, *more = map(as_text, found)
    flags = bool(is_cancelled), bool(has_listener)
    return DueTask(server, place, task, principal, *flags, message, float(sent_at), *more)
