"""Messages that were set aside, because each worker that had them was lost: what an operator can do with them.

Owns reading them back, giving them to their queues again and dropping them, each in one step. Who sets aside is the
sweep in `deliveries`; then they lie in Redis for a week. Anything may lie there: what cannot be read is shown as
damaged, and stays until it is dropped.
"""

import base64
import json
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.messages import DamagedMessage, InFlightEntry, read_entry
from tarsy_tasks.broker.signing import sign

__all__ = ["DamagedMessage", "DeadLetter", "drop", "load", "load_arguments", "load_latest", "retry"]

_READ_LIMIT_BYTES = 1024 * 1024
"""A list reads no more than that of one message; they can be as large as Redis takes."""
_HEAD_BYTES = 256
_NO_STRING = "it is no string in Redis"
_CALLER = ("call_id", "agent_id", "run_id")

# KEYS: poison, poisoned, unacked, waiting, queue, marker, result, queues, withdrawn. ARGV: tag, digest of the books,
# message, name in `queues`.
# Its marker goes, and with it the count of its deliveries and what had begun; so does what its caller was told.
_RETRY = """
local books = redis.call('GET', KEYS[1])
if not books or redis.sha1hex(books) ~= ARGV[2] or redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then return 0 end
local t = redis.call('TIME')
redis.call('DEL', KEYS[1], KEYS[6], KEYS[7], KEYS[9])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], KEYS[5] .. '\\n\\n' .. ARGV[3])
redis.call('ZADD', KEYS[4], t[1] + t[2] / 1000000, ARGV[1])
redis.call('ZADD', KEYS[8], 'NX', t[1] + t[2] / 1000000, ARGV[4])
redis.call('LPUSH', KEYS[5], ARGV[3])
return 1
"""


@dataclass(frozen=True)
class DeadLetter:
    """One message that was set aside.

    Attributes:
        id: Of a call the task id, which its agent knows, too.
        queue: Where it came from, None if that cannot be read.
        moved_at: Seconds since the epoch, by the clock of Redis.
        kept_s: For how many seconds it is kept.
        size_bytes: Length of the message as it lies in Redis.
        task: Name of the Celery task, None if it was not read.
        tool: Canonical name of what was called, None if it was not read.
        caller: Who called, as far as the message says: `call_id`, `agent_id`, `run_id`.
        damage: Why it cannot be read, None if it can or was not tried.
    """

    id: str
    queue: str | None
    moved_at: float
    kept_s: int
    size_bytes: int
    task: str | None = None
    tool: str | None = None
    caller: dict[str, str] | None = None
    damage: str | None = None


def load_latest(redis: Any, limit: int) -> tuple[list[DeadLetter], int]:
    """The messages that were set aside last, newest first, and how many there are in all.

    Args:
        redis: A redis-py client of the broker's database, one that decodes nothing.
    """
    found = redis.zrevrange(keys.DEAD_LETTERS, 0, limit - 1, withscores=True)
    messages = [_describe(redis, tag, at, read_limit_bytes=_READ_LIMIT_BYTES) for tag, at in found]
    return [message for message in messages if message is not None], redis.zcard(keys.DEAD_LETTERS)


def load(redis: Any, tag: str) -> DeadLetter | None:
    """One message that was set aside, None if there is none of that id."""
    at = redis.zscore(keys.DEAD_LETTERS, tag)
    return _describe(redis, tag.encode(), at or 0.0, read_limit_bytes=None)


def load_arguments(redis: Any, tag: str) -> Any:
    """The arguments of the tool as the message has them: text, an object or nothing. They may hold secrets.

    Raises:
        DamagedMessage: It cannot be read.
    """
    return read_entry(_text_of(redis, tag) or b"").call.arguments


def retry(redis: Any, tag: str) -> bool:
    """Give a message to its queue again, as if it had just been sent: it has no deadline any more, and its deliveries
    count from one.

    Returns:
        Whether it was there.

    Raises:
        DamagedMessage: It cannot be read.
    """
    text = _text_of(redis, tag)
    if text is None:
        return False
    books = read_entry(text)
    home = keys.without_priority(books.queue)
    names = (
        keys.dead_letter_key(tag),
        keys.DEAD_LETTERS,
        keys.UNACKED,
        keys.waiting_key(home),
        books.queue,
        keys.call_marker(tag),
        keys.result_key(tag),
        keys.QUEUES,
        keys.withdrawn_key(tag),
    )
    digest = sha1(text, usedforsecurity=False).hexdigest()
    return bool(redis.eval(_RETRY, len(names), *names, tag, digest, _without_deadline(books), home))


def drop(redis: Any, tag: str) -> bool:
    """Forget a message. Returns whether it was there."""
    pipeline = redis.pipeline(transaction=True)
    pipeline.delete(keys.dead_letter_key(tag))
    pipeline.zrem(keys.DEAD_LETTERS, tag)
    return any(pipeline.execute())


def _describe(redis: Any, raw_tag: bytes, at: float, *, read_limit_bytes: int | None) -> DeadLetter | None:
    tag = raw_tag.decode(errors="replace")
    key = keys.dead_letter_key(tag)
    kept_s = redis.ttl(key)
    if kept_s == -2:
        return None
    try:
        size_bytes: int = redis.strlen(key)
        is_read = read_limit_bytes is None or size_bytes <= read_limit_bytes
        text: bytes = redis.get(key) if is_read else redis.getrange(key, 0, _HEAD_BYTES)
    except ResponseError:
        return DeadLetter(tag, None, at, kept_s, 0, damage=_NO_STRING)
    queue = text.partition(b"\n")[0].decode(errors="replace") if b"\n" in text else None
    if not is_read:
        return DeadLetter(tag, queue, at, kept_s, size_bytes)
    try:
        books = read_entry(text)
    except DamagedMessage as damage:
        return DeadLetter(tag, queue, at, kept_s, size_bytes, damage=str(damage))
    tool = f"{books.call.server}.{books.call.tool}"
    caller = {name: str(books.call.info[name]) for name in _CALLER if books.call.info.get(name)}
    return DeadLetter(tag, queue, at, kept_s, size_bytes, books.task, tool, caller)


def _text_of(redis: Any, tag: str) -> bytes | None:
    try:
        return redis.get(keys.dead_letter_key(tag))
    except ResponseError:
        raise DamagedMessage(_NO_STRING) from None


def _without_deadline(books: InFlightEntry) -> str:
    books.call.info.pop("deadline", None)
    parts = [books.call.args, books.call.kwargs, books.embed]
    body = sign(parts) if books.message.is_signed else json.dumps(parts)
    headers = {**books.message.headers, "expires": None}
    headers.pop("garbage_at", None)
    changed = {"headers": headers, "body": base64.b64encode(body.encode()).decode() if books.is_encoded else body}
    return json.dumps(books.message.model_dump() | changed)
