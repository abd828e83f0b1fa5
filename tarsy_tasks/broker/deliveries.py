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
queue and put back. Its books are a field of `tarsy:unacked`, its place in `tarsy:waiting` or `tarsy:leases`, and its
marker `tarsy:call:<tag>`. The tag of a call is its task id.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tarsy_tasks import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.script import Script
from tarsy_tasks.broker.sweep import SWEEP, Swept

__all__ = ["MAX_DELIVERIES", "Deliveries", "Delivery", "Entry", "Mark", "Trail"]

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


@dataclass(frozen=True, slots=True)
class Entry:
    """What the audit gets in the step that ends a call: then it has one entry for each, whoever dies when.

    Attributes:
        text: For the stream; empty: it gets none.
        limit: About how many entries the stream keeps.
        told: Called when it was this step that ended the call, with why the stream did not take the entry, or with
            nothing.
    """

    text: str
    limit: int
    told: Callable[[str], None]


class Trail(Protocol):
    """What a worker knows of a call in its hands."""

    def entry(self, status: str | None = None, result: Any = None, size_bytes: int | None = None) -> Entry:
        """The entry of the call, which ends now.

        Args:
            status: Celery's state, None if nothing is stored.
            result: What is stored.
            size_bytes: Its size.
        """
        ...


@dataclass(slots=True)
class Delivery:
    """One message in the hands of this worker.

    Attributes:
        tag: Its name in the books; of a call the task id.
        queue: Where it was taken from.
        count: The how manieth delivery it is; those that a shutting down worker gave back do not count.
        mark: What the marker said when it was taken.
        owner: Who began it, if anybody did.
        runs: The pool has it: it goes on when the connection to Redis is made anew.
        answered: Result and acknowledgement went out together.
        kept: It must not be acknowledged: its answer could not be stored.
        trail: For the audit; None for what is no call.
    """

    tag: str
    queue: str
    count: int = 1
    mark: Mark = Mark.NONE
    owner: str = ""
    runs: bool = False
    answered: bool = False
    kept: bool = False
    trail: Trail | None = None


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

# KEYS: unacked, waiting, queue. ARGV: tag, message, when it is garbage.
_PUBLISH = Script(
    _NOW
    + """
    if redis.call('HSETNX', KEYS[1], ARGV[1], KEYS[3] .. '\\n' .. ARGV[3] .. '\\n' .. ARGV[2]) == 0 then return 0 end
    redis.call('ZADD', KEYS[2], now, ARGV[1])
    return redis.call('LPUSH', KEYS[3], ARGV[2])
    """,
    grows=True,
)

# KEYS: unacked, waiting, leases, marker. ARGV: tag, marker's ttl, books of a message that a stock producer sent or '',
# whether it is a suspect from the beginning.
_TAKE = Script(
    _NOW
    + """
    local mark = redis.call('HMGET', KEYS[4], 'mark', 'owner')
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and not mark[1] then
        if ARGV[3] == '' then return {0, '', ''} end
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    end
    redis.call('ZADD', KEYS[3], now, ARGV[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
    local count = redis.call('HINCRBY', KEYS[4], 'deliveries', 1)
    if ARGV[4] ~= '' then redis.call('HSET', KEYS[4], 'suspect', 1) else redis.call('HDEL', KEYS[4], 'suspect') end
    redis.call('EXPIRE', KEYS[4], ARGV[2])
    return {count, mark[1] or '', mark[2] or ''}
    """
)

# KEYS: marker, audit. ARGV: owner, who may have begun it before, marker's ttl, whether the audit has to be there.
_BEGIN = Script(
    f"""
    local mark = redis.call('HMGET', KEYS[1], 'mark', 'owner')
    if mark[1] == 'answered' or mark[1] == 'withdrawn' then return {{mark[1], ''}} end
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
_UNBEGIN = Script(
    """
    local mark = redis.call('HMGET', KEYS[1], 'mark', 'owner')
    if mark[1] == 'begun' and mark[2] == ARGV[1] then redis.call('HDEL', KEYS[1], 'mark', 'owner') end
    """
)

# KEYS: unacked, leases, marker, result, audit. ARGV: tag, marker's ttl, result, its ttl, owner, audit entry, how many
# are kept. The first answer stays, and what another owner began in the meantime, that one answers. Of what an agent
# withdrew from its queue the agent tells the audit.
_ANSWER = Script(
    _RECORD
    + """
    local mark = redis.call('HMGET', KEYS[3], 'mark', 'owner')
    if mark[1] == 'begun' and mark[2] ~= ARGV[5] then return {0, ''} end
    local is_mine = redis.call('HDEL', KEYS[1], ARGV[1]) == 1 or mark[1] ~= 'withdrawn'
    redis.call('ZREM', KEYS[2], ARGV[1])
    if mark[1] == 'answered' then return {0, ''} end
    if ARGV[4] == '' then redis.call('SET', KEYS[4], ARGV[3])
    else redis.call('SET', KEYS[4], ARGV[3], 'EX', ARGV[4]) end
    redis.call('PUBLISH', KEYS[4], ARGV[3])
    redis.call('HSET', KEYS[3], 'mark', 'answered')
    redis.call('EXPIRE', KEYS[3], ARGV[2])
    if not is_mine then return {0, ''} end
    return {1, record(KEYS[5], ARGV[6], ARGV[7])}
    """
)

# KEYS: unacked, leases, marker, audit. ARGV: tag, marker's ttl, audit entry, how many are kept.
_ACKNOWLEDGE = Script(
    _RECORD
    + """
    local mark = redis.call('HGET', KEYS[3], 'mark')
    local is_mine = redis.call('HDEL', KEYS[1], ARGV[1]) == 1 or mark ~= 'withdrawn'
    redis.call('ZREM', KEYS[2], ARGV[1])
    if mark ~= 'withdrawn' then redis.call('HSET', KEYS[3], 'mark', 'answered') end
    redis.call('EXPIRE', KEYS[3], ARGV[2])
    if mark == 'answered' or not is_mine then return {0, ''} end
    return {1, record(KEYS[4], ARGV[3], ARGV[4])}
    """
)

# KEYS: unacked, waiting, audit. ARGV: tag, audit entry, how many are kept.
_DISCARD = Script(
    _RECORD
    + """
    if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return {0, ''} end
    local books = redis.call('HGET', KEYS[1], ARGV[1])
    if not books then return {0, ''} end
    redis.call('HDEL', KEYS[1], ARGV[1])
    local queue, message = string.match(books, '^([^\\n]*)\\n[^\\n]*\\n(.*)$')
    if queue then redis.call('LREM', queue, -1, message) end
    return {1, record(KEYS[3], ARGV[2], ARGV[3])}
    """
)

# KEYS: marker, audit. ARGV: audit entry, how many are kept, marker's ttl.
_TELL = Script(
    _RECORD
    + """
    if redis.call('HSETNX', KEYS[1], 'told', 1) == 0 then return {0, ''} end
    redis.call('EXPIRE', KEYS[1], ARGV[3])
    return {1, record(KEYS[2], ARGV[1], ARGV[2])}
    """
)

# KEYS: unacked, leases, waiting, marker. ARGV: tag, marker's ttl.
_REQUEUE = Script(
    _NOW
    + """
    if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
    local books = redis.call('HGET', KEYS[1], ARGV[1])
    if not books then return 0 end
    local queue, message = string.match(books, '^([^\\n]*)\\n[^\\n]*\\n(.*)$')
    redis.call('RPUSH', queue, message)
    redis.call('ZADD', KEYS[3], now, ARGV[1])
    redis.call('HINCRBY', KEYS[4], 'deliveries', -1)
    redis.call('HDEL', KEYS[4], 'suspect')
    redis.call('EXPIRE', KEYS[4], ARGV[2])
    return 1
    """
)

# KEYS: leases. ARGV: tags.
_RENEW = Script(
    _NOW
    + """
    for _, tag in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 'XX', now, tag) end
    """
)

# KEYS: unacked, waiting, marker. ARGV: tag, marker's ttl.
_WITHDRAW = Script(
    """
    local mark = redis.call('HGET', KEYS[3], 'mark')
    if mark and mark ~= 'withdrawn' then return {mark, 1} end
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
    return {'', redis.call('HEXISTS', KEYS[1], ARGV[1])}
    """
)

# KEYS: unacked, waiting, queue.
_PURGE = Script(
    """
    for _, tag in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
        local books = redis.call('HGET', KEYS[1], tag)
        if not books or string.sub(books, 1, #KEYS[3] + 1) == KEYS[3] .. '\\n' then
            redis.call('ZREM', KEYS[2], tag)
            redis.call('HDEL', KEYS[1], tag)
        end
    end
    local size = redis.call('LLEN', KEYS[3])
    redis.call('DEL', KEYS[3])
    return size
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
        self._run(_PUBLISH, (keys.UNACKED, keys.WAITING, queue), tag, message, when)

    def take(self, queue: str, tag: str, message: Callable[[], str], *, is_suspect: bool = True) -> Delivery:
        """A message was popped from its queue: lease it.

        Args:
            message: Gives its text, for the books of a message whose producer kept none.
            is_suspect: Should this worker die, the message may be to blame. Of a call `suspect` says so.
        """
        names = (keys.UNACKED, keys.WAITING, keys.LEASES, keys.call_marker(tag))
        suspect = "1" if is_suspect else ""
        count, mark, owner = self._run(_TAKE, names, tag, MARKER_TTL_S, "", suspect)
        if not count:
            count, mark, owner = self._run(_TAKE, names, tag, MARKER_TTL_S, f"{queue}\n\n{message()}", suspect)
        return Delivery(tag, queue, int(count), Mark(_text(mark)), _text(owner))

    def begin(self, delivery: Delivery, owner: str, *, after: str = "", is_audited: bool = False) -> str:
        """Note that a call begins, just before it is sent; `delivery.mark` is `Mark.NONE` afterwards if it may be, and
        else says why not. `delivery.owner` is whoever began it.

        Args:
            owner: Who begins it; each delivery has another.
            after: It may run although this owner began it before.
            is_audited: It may only begin if the audit takes an entry.

        Returns:
            Why the audit takes none, and then it has not begun; or nothing.
        """
        names = (keys.call_marker(delivery.tag), keys.AUDIT)
        mark, other, *trouble = self._run(_BEGIN, names, owner, after or owner, MARKER_TTL_S, "1" if is_audited else "")
        if trouble:
            return _text(trouble[0])
        delivery.mark = Mark(_text(mark))
        delivery.owner = owner if delivery.mark is Mark.NONE else _text(other)
        return ""

    def unbegin(self, tag: str, owner: str) -> None:
        """It was not sent after all."""
        self._run(_UNBEGIN, (keys.call_marker(tag),), owner)

    def suspect(self, tag: str) -> None:
        """A call whose workers died runs alone now: should this one die, too, the call is to blame."""
        marker = keys.call_marker(tag)
        self.exchange.execute(("HSET", marker, "suspect", 1), ("EXPIRE", marker, MARKER_TTL_S))

    def acquit(self, tag: str) -> None:
        """Such a call runs alone no more: should its worker die, another one may be to blame."""
        self.exchange.execute(("HDEL", keys.call_marker(tag), "suspect"))

    def answer(
        self,
        delivery: Delivery,
        result_key: str,
        result: str | bytes,
        lifetime_s: int | None,
        entry: Entry | None = None,
    ) -> None:
        """Store and announce a call's result and take the call off the books, unless it was answered before, or
        somebody else than `delivery.owner` has begun it.
        """
        names = (keys.UNACKED, keys.LEASES, keys.call_marker(delivery.tag), result_key, keys.AUDIT)
        arguments = (delivery.tag, ENDED_TTL_S, result, lifetime_s or "", delivery.owner)
        self._end(_ANSWER, names, arguments, entry)

    def acknowledge(self, tag: str, entry: Entry | None = None) -> None:
        """Take a message off the books."""
        names = (keys.UNACKED, keys.LEASES, keys.call_marker(tag), keys.AUDIT)
        self._end(_ACKNOWLEDGE, names, (tag, ENDED_TTL_S), entry)

    def discard(self, tag: str, entry: Entry | None = None) -> None:
        """Throw a message away that waits in its queue."""
        self._end(_DISCARD, (keys.UNACKED, keys.WAITING, keys.AUDIT), (tag,), entry)

    def tell(self, tag: str, entry: Entry) -> None:
        """Tell the audit of a message that was set aside, if nobody has done so."""
        names = (keys.call_marker(tag), keys.AUDIT)
        is_first, trouble = self._run(_TELL, names, entry.text, entry.limit, MARKER_TTL_S)
        if is_first:
            entry.told(_text(trouble))

    def _end(self, step: Script, names: tuple[str, ...], arguments: tuple[Any, ...], entry: Entry | None) -> None:
        audit = ("", 0) if entry is None else (entry.text, entry.limit)
        is_first, trouble = self._run(step, names, *arguments, *audit)
        if is_first and entry is not None:
            entry.told(_text(trouble))

    def books_of(self, tag: str) -> bytes:
        """The books of a message, empty if there are none."""
        return self.exchange.execute(("HGET", keys.UNACKED, tag))[0] or b""

    def books_set_aside(self, tag: str) -> bytes:
        """The books of a message that was set aside, empty if there are none."""
        return self.exchange.execute(("GET", keys.poison_key(tag)))[0] or b""

    def requeue(self, tag: str) -> None:
        """Give a message back to the head of its queue; that is no failed delivery."""
        self._run(_REQUEUE, (keys.UNACKED, keys.LEASES, keys.WAITING, keys.call_marker(tag)), tag, MARKER_TTL_S)

    def renew(self, tags: Collection[str]) -> None:
        """Renew the leases of messages that are still held."""
        self._run(_RENEW, (keys.LEASES,), *tags)

    def mark_of(self, tag: str) -> Mark:
        """What the marker of a call says now."""
        return Mark(_text(self.exchange.execute(("HGET", keys.call_marker(tag), "mark"))[0] or b""))

    def is_forgotten(self, tag: str) -> bool:
        """Whether nothing is known of a call: it never reached the books, or was answered long ago."""
        known = self.exchange.execute(("HEXISTS", keys.UNACKED, tag), ("EXISTS", keys.call_marker(tag)))
        return not any(known)

    def withdraw(self, tag: str) -> tuple[Mark, bool]:
        """Nobody waits for a call any more: unless it has begun, it never will.

        Returns:
            `Mark.NONE` if it was withdrawn, else what has become of it; and whether a worker has or had it, which
            tells the audit.
        """
        names = (keys.UNACKED, keys.WAITING, keys.call_marker(tag))
        mark, is_taken = self._run(_WITHDRAW, names, tag, MARKER_TTL_S)
        return Mark(_text(mark)), bool(is_taken)

    def purge(self, queue: str) -> int:
        """Empty a queue; how many messages it had."""
        return int(self._run(_PURGE, (keys.UNACKED, keys.WAITING, queue)))

    def sweep(self, lease_s: float, quiet_s: float) -> Swept:
        """Put back what was lost on its way, or by a worker that renews no lease.

        Args:
            lease_s: How long a lease holds.
            quiet_s: When nobody swept for so long Redis was away, and the owners get as long to renew their leases.
        """
        names = (keys.UNACKED, keys.WAITING, keys.LEASES, keys.SWEEPS, keys.POISONED)
        found = self._run(
            SWEEP,
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
        )
        return Swept(*(tuple(map(_text, tags)) for tags in found))

    def _run(self, script: Script, names: tuple[str, ...], *arguments: Any) -> Any:
        return script.run(self.exchange, names, *arguments)

    @property
    def exchange(self) -> RedisExchange:
        """For commands of others that concern the same Redis."""
        if self._exchange is None:
            self._exchange = self._open_exchange()
        return self._exchange


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
