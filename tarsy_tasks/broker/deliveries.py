"""Where every call stands, from its publication to its answer: the books that a Redis restart, a dead worker and a cut
connection leave whole.

Owns the scripts that move a message between its states, each in one step and each harmless when sent twice (a delivery
may then be counted twice), for whoever loses the reply sends it again. All times are those of Redis: the clocks of
workers may be minutes apart. It knows neither Celery nor kombu: `kombu_transport` publishes and takes, the worker's
`guard` begins, `result_backend` answers, agents withdraw.

    published ──take──► leased ──begin──► begun ──answer──► answered
        ▲                 │ lease lapsed, or requeued
        └────────────────┘                              withdrawn: nobody waits any more, and it had not begun

A message is on the books from its publication: what was popped for a connection that broke is found missing in its
queue and put back. Its books are a field of `tarsy:unacked`, its place in `tarsy:waiting:<queue>` or `tarsy:leases`,
and its marker `tarsy:call:<tag>`. The tag of a call is its task id.

Agents write books, too, and each may have some of the queues only. So what the books say of a queue is never where a
message is put back: it goes where it waited, by the name of that key, or where it was taken, by its lease.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError

from tarsy_tasks import keys
from tarsy_tasks.broker.exchange import RedisExchange

__all__ = ["MAX_DELIVERIES", "Deliveries", "Delivery", "Mark", "Swept"]

MAX_DELIVERIES = 3
"""A message whose workers died so often is set aside, if the last time it was the suspect: a call has to run alone."""
_MOST_DELIVERIES = 10
"""So often a message is delivered at most, suspect or not: it may kill before its turn comes."""
POISON_TTL_S = 7 * 24 * 3600
MARKER_TTL_S = 7 * 24 * 3600
"""How long it stays known that a call has begun, or was withdrawn: nobody may be there to look for it."""
ENDED_TTL_S = 600
"""How long a marker outlives its call's answer: longer than any worker is frozen or cut off."""
_SWEEP_LIMIT = 200
_TOLD_S = 60
_SEARCH_LIMIT = 1000
"""A message is looked for among so many at the head of its queue. Behind them it cannot be missing yet: it is older."""


class Mark(StrEnum):
    """What a call's marker says of it."""

    NONE = ""
    BEGUN = "begun"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"


@dataclass(slots=True)
class Delivery:
    """One message in the hands of this worker.

    Attributes:
        tag: Its name in the books; of a call the task id.
        queue: Where it was taken from, whatever its priority.
        count: The how manieth delivery it is; those that a shutting down worker gave back do not count.
        mark: What the marker said when it was taken.
        owner: Who began it, if anybody did.
        runs: The pool has it: it goes on when the connection to Redis is made anew.
        answered: Result and acknowledgement went out together.
        kept: It must not be acknowledged: its answer could not be stored.
    """

    tag: str
    queue: str
    count: int = 1
    mark: Mark = Mark.NONE
    owner: str = ""
    runs: bool = False
    answered: bool = False
    kept: bool = False

    @property
    def lease(self) -> str:
        """Its name among the leases."""
        return f"{self.queue}\n{self.tag}"


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: tags of messages that went back to their queues, and of those that were set aside within the
    last minute, by whomever: whoever did may have died before it said so.
    """

    restored: tuple[str, ...]
    set_aside: tuple[str, ...]


class _Script:
    def __init__(self, text: str, *, grows: bool = False) -> None:
        # A Redis that is full takes nothing new, and everything that brings calls to their end.
        self.text = text if grows else f"#!lua flags=allow-oom\n{text}"
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_NOW = "local t = redis.call('TIME') local now = t[1] + t[2] / 1000000 "
# KEYS: unacked, leases. ARGV: tag first, lease last.
_DROP = "redis.call('HDEL', KEYS[1], ARGV[1]) redis.call('ZREM', KEYS[2], ARGV[#ARGV]) "

# KEYS: unacked, waiting, queue, queues. ARGV: tag, message, when it is garbage, name in `queues`.
_PUBLISH = _Script(
    _NOW
    + """
    if redis.call('HSETNX', KEYS[1], ARGV[1], KEYS[3] .. '\\n' .. ARGV[3] .. '\\n' .. ARGV[2]) == 0 then return 0 end
    redis.call('ZADD', KEYS[2], now, ARGV[1])
    redis.call('ZADD', KEYS[4], 'NX', now, ARGV[4])
    return redis.call('LPUSH', KEYS[3], ARGV[2])
    """,
    grows=True,
)

# KEYS: unacked, waiting, leases, marker. ARGV: tag, marker's ttl, books of a message that a stock producer sent or '',
# whether it is a suspect from the beginning, lease.
_TAKE = _Script(
    _NOW
    + """
    local mark = redis.call('HMGET', KEYS[4], 'mark', 'owner')
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and not mark[1] then
        if ARGV[3] == '' then return {0, '', ''} end
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    end
    redis.call('ZADD', KEYS[3], now, ARGV[5])
    redis.call('ZREM', KEYS[2], ARGV[1])
    local count = redis.pcall('HINCRBY', KEYS[4], 'deliveries', 1)
    if type(count) == 'table' then  -- agents can write markers, too
        count = 1
        redis.call('HSET', KEYS[4], 'deliveries', count)
    end
    if ARGV[4] ~= '' then redis.call('HSET', KEYS[4], 'suspect', 1) else redis.call('HDEL', KEYS[4], 'suspect') end
    redis.call('EXPIRE', KEYS[4], ARGV[2])
    return {count, mark[1] or '', mark[2] or ''}
    """
)

# KEYS: marker. ARGV: owner, who may have begun it before, marker's ttl.
_BEGIN = _Script(
    """
    local mark = redis.call('HMGET', KEYS[1], 'mark', 'owner')
    if mark[1] == 'answered' or mark[1] == 'withdrawn' then return {mark[1], ''} end
    if mark[1] == 'begun' and mark[2] ~= ARGV[1] and mark[2] ~= ARGV[2] then return mark end
    redis.call('HSET', KEYS[1], 'mark', 'begun', 'owner', ARGV[1])
    redis.call('EXPIRE', KEYS[1], ARGV[3])
    return {'', ''}
    """
)

# KEYS: marker. ARGV: owner.
_UNBEGIN = _Script(
    """
    local mark = redis.call('HMGET', KEYS[1], 'mark', 'owner')
    if mark[1] == 'begun' and mark[2] == ARGV[1] then redis.call('HDEL', KEYS[1], 'mark', 'owner') end
    """
)

# KEYS: unacked, leases, marker, result. ARGV: tag, marker's ttl, result, its ttl, owner, reply channel, lease.
# The first answer stays, and what another owner began in the meantime, that one answers.
_ANSWER = _Script(
    """
    local mark = redis.call('HMGET', KEYS[3], 'mark', 'owner')
    if mark[1] == 'begun' and mark[2] ~= ARGV[5] then return 0 end
    if mark[1] ~= 'answered' then
        if ARGV[4] == '' then redis.call('SET', KEYS[4], ARGV[3])
        else redis.call('SET', KEYS[4], ARGV[3], 'EX', ARGV[4]) end
        redis.call('PUBLISH', KEYS[4], ARGV[3])
        redis.call('PUBLISH', ARGV[6], ARGV[3])
        redis.call('HSET', KEYS[3], 'mark', 'answered')
        redis.call('EXPIRE', KEYS[3], ARGV[2])
    end
    """
    + _DROP
)

# KEYS: unacked, leases, marker. ARGV: tag, marker's ttl, lease.
_ACKNOWLEDGE = _Script(
    _DROP
    + """
    if redis.call('HGET', KEYS[3], 'mark') ~= 'withdrawn' then redis.call('HSET', KEYS[3], 'mark', 'answered') end
    redis.call('EXPIRE', KEYS[3], ARGV[2])
    """
)

# KEYS: unacked, leases, waiting, marker, queue, queues. ARGV: tag, marker's ttl, lease.
_REQUEUE = _Script(
    _NOW
    + """
    if redis.call('ZREM', KEYS[2], ARGV[3]) == 0 then return 0 end
    local books = redis.call('HGET', KEYS[1], ARGV[1])
    local message = books and string.match(books, '^[^\\n]*\\n[^\\n]*\\n(.*)$')
    if not message then return 0 end
    redis.call('RPUSH', KEYS[5], message)
    redis.call('ZADD', KEYS[3], now, ARGV[1])
    redis.call('ZADD', KEYS[6], 'NX', now, KEYS[5])
    redis.pcall('HINCRBY', KEYS[4], 'deliveries', -1)
    redis.call('HDEL', KEYS[4], 'suspect')
    redis.call('EXPIRE', KEYS[4], ARGV[2])
    return 1
    """
)

# KEYS: leases. ARGV: leases.
_RENEW = _Script(
    _NOW
    + """
    for _, lease in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 'XX', now, lease) end
    """
)

# KEYS: unacked, waiting, marker. ARGV: tag, marker's ttl.
_WITHDRAW = _Script(
    """
    local mark = redis.call('HGET', KEYS[3], 'mark')
    if mark and mark ~= 'withdrawn' then return mark end
    redis.call('HSET', KEYS[3], 'mark', 'withdrawn')
    redis.call('EXPIRE', KEYS[3], ARGV[2])
    if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
        local books = redis.call('HGET', KEYS[1], ARGV[1])
        redis.call('HDEL', KEYS[1], ARGV[1])
        if books then
            local queue, message = string.match(books, '^([^\\n]*)\\n[^\\n]*\\n(.*)$')
            redis.call('LREM', queue, -1, message)
        end
    end
    return ''
    """
)

# KEYS: unacked, waiting, queue.
_PURGE = _Script(
    """
    for _, tag in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do redis.call('HDEL', KEYS[1], tag) end
    local size = redis.call('LLEN', KEYS[3])
    redis.call('DEL', KEYS[2], KEYS[3])
    return size
    """
)

# KEYS: unacked, queues, leases, sweeps, poisoned. ARGV: lease, quiet time, deliveries allowed, limit, search limit,
# poison's ttl, prefixes of marker and poison keys, marker's ttl, deliveries at most, for how long poison is told,
# prefix of waiting keys.
_SWEEP = _Script(
    _NOW
    + """
    local lease, quiet, allowed, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
    local last = redis.call('HMGET', KEYS[4], 'last', 'quiet_until')
    redis.call('HSET', KEYS[4], 'last', now)
    redis.call('EXPIRE', KEYS[4], 3600)
    local swept = tonumber(last[1] or '0')
    if now - swept > quiet or swept > now + 1 then
        -- Redis was away or frozen, or nobody looked: leases could not be renewed, and their owners may be well.
        redis.call('HSET', KEYS[4], 'quiet_until', now + quiet)
        return {{}, {}}
    end
    if last[2] and now < tonumber(last[2]) then return {{}, {}} end
    local restored = {}
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
        local queue, garbage, message
        if books then queue, garbage, message = string.match(books, '^([^\\n]*)\\n([^\\n]*)\\n(.*)$') end
        if not books then
            redis.call('ZREM', waiting, tag)
        elseif not queue then
            put_back(tag, books, home, true)
        elseif garbage ~= '' and now > (tonumber(garbage) or 0) then
            redis.call('LREM', queue, -1, message)
            redis.call('ZREM', waiting, tag)
            redis.call('HDEL', KEYS[1], tag)
        elseif redis.call('LLEN', queue) > tonumber(ARGV[5])
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
    return {restored, redis.call('ZRANGEBYSCORE', KEYS[5], now - ARGV[11], '+inf')}
    """
)


class Deliveries:
    """The books of one broker. Safe to share between threads.

    Args:
        open_exchange: Called when Redis is first needed, and again until it succeeds.

    All methods raise redis-py's `RedisError`, or what `open_exchange` raises, when Redis cannot be reached.
    """

    def __init__(self, open_exchange: Callable[[], RedisExchange]) -> None:
        self._open_exchange = open_exchange
        self._exchange: RedisExchange | None = None

    def publish(self, queue: str, tag: str, message: str, garbage_at: float | None = None) -> None:
        """Put a message into a queue, and on the books; nothing if it is there already.

        Args:
            garbage_at: When nobody can want it any more, in seconds of the clock of Redis; None: never.
        """
        when = "" if garbage_at is None else f"{garbage_at:.3f}"
        home = keys.without_priority(queue)
        names = (keys.UNACKED, keys.waiting_key(home), queue, keys.QUEUES)
        self._run(_PUBLISH, names, tag, message, when, home)

    def take(self, queue: str, tag: str, message: Callable[[], str], *, is_suspect: bool = True) -> Delivery:
        """A message was popped from its queue: lease it.

        Args:
            message: Gives its text, for the books of a message whose producer kept none.
            is_suspect: Should this worker die, the message may be to blame. Of a call `suspect` says so.
        """
        delivery = Delivery(tag, keys.without_priority(queue))
        names = (keys.UNACKED, keys.waiting_key(delivery.queue), keys.LEASES, keys.call_marker(tag))
        suspect = "1" if is_suspect else ""
        count, mark, owner = self._run(_TAKE, names, tag, MARKER_TTL_S, "", suspect, delivery.lease)
        if not count:
            books = f"{queue}\n\n{message()}"
            count, mark, owner = self._run(_TAKE, names, tag, MARKER_TTL_S, books, suspect, delivery.lease)
        delivery.count, delivery.mark, delivery.owner = int(count), Mark(_text(mark)), _text(owner)
        return delivery

    def begin(self, delivery: Delivery, owner: str, *, after: str = "") -> None:
        """Note that a call begins, just before it is sent; `delivery.mark` is `Mark.NONE` afterwards if it may be, and
        else says why not. `delivery.owner` is whoever began it.

        Args:
            owner: Who begins it; each delivery has another.
            after: It may run although this owner began it before.
        """
        mark, other = self._run(_BEGIN, (keys.call_marker(delivery.tag),), owner, after or owner, MARKER_TTL_S)
        delivery.mark = Mark(_text(mark))
        delivery.owner = owner if delivery.mark is Mark.NONE else _text(other)

    def unbegin(self, tag: str, owner: str) -> None:
        """It was not sent after all."""
        self._run(_UNBEGIN, (keys.call_marker(tag),), owner)

    def suspect(self, tag: str) -> None:
        """A call whose workers died runs alone now: should this one die, too, the call is to blame."""
        marker = keys.call_marker(tag)
        self.exchange.execute(("HSET", marker, "suspect", 1), ("EXPIRE", marker, MARKER_TTL_S))

    def answer(self, delivery: Delivery, result_key: str, result: str | bytes, lifetime_s: int | None) -> None:
        """Store and announce a call's result and take the call off the books, unless it was answered before, or
        somebody else than `delivery.owner` has begun it.
        """
        names = (keys.UNACKED, keys.LEASES, keys.call_marker(delivery.tag), result_key)
        arguments = (delivery.tag, ENDED_TTL_S, result, lifetime_s or "", delivery.owner)
        self._run(_ANSWER, names, *arguments, keys.reply_channel(delivery.tag), delivery.lease)

    def acknowledge(self, delivery: Delivery) -> None:
        """Take a message off the books."""
        names = (keys.UNACKED, keys.LEASES, keys.call_marker(delivery.tag))
        self._run(_ACKNOWLEDGE, names, delivery.tag, ENDED_TTL_S, delivery.lease)

    def requeue(self, delivery: Delivery) -> None:
        """Give a message back to the head of its queue; that is no failed delivery."""
        waiting, marker = keys.waiting_key(delivery.queue), keys.call_marker(delivery.tag)
        names = (keys.UNACKED, keys.LEASES, waiting, marker, delivery.queue, keys.QUEUES)
        self._run(_REQUEUE, names, delivery.tag, MARKER_TTL_S, delivery.lease)

    def renew(self, deliveries: Iterable[Delivery]) -> None:
        """Renew the leases of messages that are still held."""
        self._run(_RENEW, (keys.LEASES,), *{delivery.lease for delivery in deliveries})

    def mark_of(self, tag: str) -> Mark:
        """What the marker of a call says now."""
        return Mark(_text(self.exchange.execute(("HGET", keys.call_marker(tag), "mark"))[0] or b""))

    def is_forgotten(self, tag: str) -> bool:
        """Whether nothing is known of a call: it never reached the books, or was answered long ago."""
        known = self.exchange.execute(("HEXISTS", keys.UNACKED, tag), ("EXISTS", keys.call_marker(tag)))
        return not any(known)

    def withdraw(self, tag: str, queue: str) -> Mark:
        """Nobody waits for a call any more: unless it has begun, it never will.

        Args:
            queue: Where it was published.

        Returns:
            `Mark.NONE` if it was withdrawn, else what has become of it.
        """
        names = (keys.UNACKED, keys.waiting_key(queue), keys.call_marker(tag))
        return Mark(_text(self._run(_WITHDRAW, names, tag, MARKER_TTL_S)))

    def purge(self, queue: str) -> int:
        """Empty a queue; how many messages it had."""
        return int(self._run(_PURGE, (keys.UNACKED, keys.waiting_key(queue), queue)))

    def sweep(self, lease_s: float, quiet_s: float) -> Swept:
        """Put back what was lost on its way, or by a worker that renews no lease.

        Args:
            lease_s: How long a lease holds.
            quiet_s: When nobody swept for so long Redis was away, and the owners get as long to renew their leases.
        """
        names = (keys.UNACKED, keys.QUEUES, keys.LEASES, keys.SWEEPS, keys.POISONED)
        restored, aside = self._run(
            _SWEEP,
            names,
            lease_s,
            quiet_s,
            MAX_DELIVERIES,
            _SWEEP_LIMIT,
            _SEARCH_LIMIT,
            POISON_TTL_S,
            keys.call_marker(""),
            keys.poison_key(""),
            MARKER_TTL_S,
            _MOST_DELIVERIES,
            _TOLD_S,
            keys.waiting_key(""),
        )
        return Swept(tuple(map(_text, restored)), tuple(map(_text, aside)))

    def _run(self, script: _Script, names: tuple[str, ...], *arguments: Any) -> Any:
        exchange = self.exchange
        try:
            return exchange.execute(("EVALSHA", script.digest, len(names), *names, *arguments))[0]
        except NoScriptError:
            # The first time, and after each restart of Redis.
            return exchange.execute(("EVAL", script.text, len(names), *names, *arguments))[0]

    @property
    def exchange(self) -> RedisExchange:
        """For commands of others that concern the same Redis."""
        if self._exchange is None:
            self._exchange = self._open_exchange()
        return self._exchange


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
