"""Messages that were set aside, because each worker that had them was lost: what an operator can do with them.

Owns reading them back, giving them to their queues again and dropping them, each in one step. Who sets aside is the
sweep in `deliveries`; then they lie in Redis for a week. Anything may lie there: what cannot be read is shown as
damaged, and stays until it is dropped.
"""

import base64
import json
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter
from redis.exceptions import ResponseError

from tarsy_tasks import keys
from tarsy_tasks.signing import SIGNED, read_signed, sign

__all__ = ["DamagedMessage", "SetAside", "drop", "load", "load_arguments", "load_latest", "retry"]

_READ_LIMIT_BYTES = 1024 * 1024
"""A list reads no more than that of one message; they can be as large as Redis takes."""
_HEAD_BYTES = 256
_SHOWN_LIMIT = 200
_NO_STRING = "it is no string in Redis"
_CALLER = ("call_id", "agent_id", "run_id")

# KEYS: poison, poisoned, unacked, waiting, queue, marker, result, queues. ARGV: tag, digest of the books, message,
# name in `queues`.
# Its marker goes, and with it the count of its deliveries and what had begun; so does what its caller was told.
_RETRY = """
local books = redis.call('GET', KEYS[1])
if not books or redis.sha1hex(books) ~= ARGV[2] or redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then return 0 end
local t = redis.call('TIME')
redis.call('DEL', KEYS[1], KEYS[6], KEYS[7])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], KEYS[5] .. '\\n\\n' .. ARGV[3])
redis.call('ZADD', KEYS[4], t[1] + t[2] / 1000000, ARGV[1])
redis.call('ZADD', KEYS[8], 'NX', t[1] + t[2] / 1000000, ARGV[4])
redis.call('LPUSH', KEYS[5], ARGV[3])
return 1
"""


class DamagedMessage(ValueError):
    """A message that was set aside and cannot be read; the text says why."""


@dataclass(frozen=True)
class SetAside:
    """One message that was set aside.

    Attributes:
        id: Of a call the task id, which its agent knows, too.
        queue: Where it came from, None if that cannot be read.
        set_aside_at: Seconds since the epoch, by the clock of Redis.
        kept_s: For how many seconds it is kept.
        size_bytes: Length of the message as it lies in Redis.
        task: Name of the Celery task, None if it was not read.
        tool: Canonical name of what was called, None if it was not read.
        caller: Who called, as far as the message says: `call_id`, `agent_id`, `run_id`.
        damage: Why it cannot be read, None if it can or was not tried.
    """

    id: str
    queue: str | None
    set_aside_at: float
    kept_s: int
    size_bytes: int
    task: str | None = None
    tool: str | None = None
    caller: dict[str, str] | None = None
    damage: str | None = None


class _Message(BaseModel):
    """kombu's form of a message."""

    model_config = ConfigDict(extra="allow")

    body: str
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def is_signed(self) -> bool:
        return (self.model_extra or {}).get("content-type") == SIGNED


_Body = TypeAdapter(tuple[list[Any], dict[str, Any], Any])
"""Celery's: positional arguments, keyword arguments, and how the task hangs together with others."""


@dataclass(frozen=True)
class _Books:
    """The books of a message that can be read, and what it says."""

    text: bytes
    queue: str
    message: _Message
    args: list[Any]
    kwargs: dict[str, Any]
    embed: Any

    @property
    def is_encoded(self) -> bool:
        return self.message.properties.get("body_encoding") == "base64"

    @property
    def call(self) -> dict[str, Any]:
        """The fourth argument of a call, which says who asks."""
        found: Any = self.argument(3, "call")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def argument(self, position: int, name: str) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name)


def load_latest(redis: Any, limit: int) -> tuple[list[SetAside], int]:
    """The messages that were set aside last, newest first, and how many there are in all.

    Args:
        redis: A redis-py client of the broker's database, one that decodes nothing.
    """
    found = redis.zrevrange(keys.POISONED, 0, limit - 1, withscores=True)
    messages = [_describe(redis, tag, at, read_limit_bytes=_READ_LIMIT_BYTES) for tag, at in found]
    return [message for message in messages if message is not None], redis.zcard(keys.POISONED)


def load(redis: Any, tag: str) -> SetAside | None:
    """One message that was set aside, None if there is none of that id."""
    at = redis.zscore(keys.POISONED, tag)
    return _describe(redis, tag.encode(), at or 0.0, read_limit_bytes=None)


def load_arguments(redis: Any, tag: str) -> Any:
    """The arguments of the tool as the message has them: text, an object or nothing. They may hold secrets.

    Raises:
        DamagedMessage: It cannot be read.
    """
    return _read(_text_of(redis, tag) or b"").argument(2, "arguments")


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
    books = _read(text)
    home = keys.without_priority(books.queue)
    names = (
        keys.poison_key(tag),
        keys.POISONED,
        keys.UNACKED,
        keys.waiting_key(home),
        books.queue,
        keys.call_marker(tag),
        keys.result_key(tag),
        keys.QUEUES,
    )
    digest = sha1(text, usedforsecurity=False).hexdigest()
    return bool(redis.eval(_RETRY, len(names), *names, tag, digest, _without_deadline(books), home))


def drop(redis: Any, tag: str) -> bool:
    """Forget a message. Returns whether it was there."""
    pipeline = redis.pipeline(transaction=True)
    pipeline.delete(keys.poison_key(tag))
    pipeline.zrem(keys.POISONED, tag)
    return any(pipeline.execute())


def _describe(redis: Any, raw_tag: bytes, at: float, *, read_limit_bytes: int | None) -> SetAside | None:
    tag = raw_tag.decode(errors="replace")
    key = keys.poison_key(tag)
    kept_s = redis.ttl(key)
    if kept_s == -2:
        return None
    try:
        size_bytes: int = redis.strlen(key)
        is_read = read_limit_bytes is None or size_bytes <= read_limit_bytes
        text: bytes = redis.get(key) if is_read else redis.getrange(key, 0, _HEAD_BYTES)
    except ResponseError:
        return SetAside(tag, None, at, kept_s, 0, damage=_NO_STRING)
    queue = text.partition(b"\n")[0].decode(errors="replace") if b"\n" in text else None
    if not is_read:
        return SetAside(tag, queue, at, kept_s, size_bytes)
    try:
        books = _read(text)
    except DamagedMessage as damage:
        return SetAside(tag, queue, at, kept_s, size_bytes, damage=str(damage))
    tool = f"{books.argument(0, 'server')}.{books.argument(1, 'tool')}"[:_SHOWN_LIMIT]
    caller = {name: str(books.call[name])[:_SHOWN_LIMIT] for name in _CALLER if books.call.get(name)}
    task = str(books.message.headers.get("task"))[:_SHOWN_LIMIT]
    return SetAside(tag, queue, at, kept_s, size_bytes, task, tool, caller)


def _text_of(redis: Any, tag: str) -> bytes | None:
    try:
        return redis.get(keys.poison_key(tag))
    except ResponseError:
        raise DamagedMessage(_NO_STRING) from None


def _read(text: bytes) -> _Books:
    queue, *rest = text.split(b"\n", 2)
    if len(rest) < 2:
        raise DamagedMessage("it does not begin with the name of its queue")
    try:
        message = _Message.model_validate_json(rest[1])
        body = base64.b64decode(message.body) if message.properties.get("body_encoding") == "base64" else message.body
    except ValueError as error:
        raise DamagedMessage(f"it is no message of a Celery task ({type(error).__name__})") from None
    try:
        said = read_signed(body) if message.is_signed else None
    except ValueError as error:
        raise DamagedMessage(str(error)) from None
    try:
        parts = _Body.validate_json(body) if said is None else _Body.validate_python(said)
        return _Books(text, queue.decode(), message, *parts)
    except ValueError as error:
        # Its text may quote arguments.
        raise DamagedMessage(f"it is no message of a Celery task ({type(error).__name__})") from None


def _without_deadline(books: _Books) -> str:
    books.call.pop("deadline", None)
    parts = [books.args, books.kwargs, books.embed]
    body = sign(parts) if books.message.is_signed else json.dumps(parts)
    headers = {**books.message.headers, "expires": None}
    headers.pop("garbage_at", None)
    changed = {"headers": headers, "body": base64.b64encode(body.encode()).decode() if books.is_encoded else body}
    return json.dumps(books.message.model_dump() | changed)
