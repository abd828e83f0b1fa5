"""Dead letters: messages that were moved out of their queues, because each worker that took them was lost.

Owns what an operator can do with them: read them, put them back into their queues, drop them. The `sweep` makes them,
and Redis keeps them for a week. One that cannot be read is shown as damaged, and stays until it is dropped.
"""

import base64
import json
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.entries import ANNOUNCE
from tarsy_tasks.broker.messages import DamagedMessage, InFlightEntry, read_entry
from tarsy_tasks.broker.script import NOW, Key, script
from tarsy_tasks.broker.signing import sign
from tarsy_tasks.broker.steps import KEYS

__all__ = ["DamagedMessage", "DeadLetter", "drop", "load", "load_arguments", "load_latest", "retry"]

_READ_LIMIT_BYTES = 1024 * 1024
"""A list reads no message that is longer; they can be as large as Redis takes."""
_HEAD_BYTES = 256
_NO_STRING = "its key in Redis does not hold a string"
_CALLER = ("call_id", "agent_id", "run_id")


# The marker goes, and with it the delivery count and the begin marker; so does the result that its caller got.
@script(
    NOW,
    ANNOUNCE,
    r"""
    local found = redis.call('GET', dead_letter)
    if not found or redis.sha1hex(found) ~= digest or redis.call('HEXISTS', unacked, tag) == 1 then return 0 end
    announce(home)  -- first: with old rules of Redis nothing is done
    redis.call('DEL', dead_letter, marker, stored_result, withdrawn)
    redis.call('ZREM', dead_letters, tag)
    redis.call('HSET', unacked, tag, queue .. '\n\n' .. message)
    redis.call('ZADD', waiting, now, tag)
    redis.call('ZADD', queues, 'NX', now, home)
    redis.call('LPUSH', queue, message)
    return 1
    """,
    known=KEYS,
    grows=True,
)
def _retry(*, queue: Key, home: str, tag: str, digest: str, message: str) -> int: ...


@dataclass(frozen=True)
class DeadLetter:
    """One dead letter.

    Attributes:
        id: Of a call, the task id, which its agent knows, too.
        queue: Where it came from, None if that cannot be read.
        moved_at: When it was moved out of its queue, in seconds since the epoch by the clock of Redis.
        kept_s: For how many more seconds Redis keeps it.
        size_bytes: Length of its text in Redis.
        task: Name of the Celery task, None if it was not read.
        tool: Canonical name of what was called, None if it was not read.
        caller: Who called, as the message says, if it does: `call_id`, `agent_id`, `run_id`.
        damage: Why it cannot be read; None if it can, or if nobody tried.
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
    """The latest dead letters, newest first, and how many there are in all; the client `redis` decodes nothing."""
    found = redis.zrevrange(keys.DEAD_LETTERS, 0, limit - 1, withscores=True)
    messages = [_describe(redis, tag, at, read_limit_bytes=_READ_LIMIT_BYTES) for tag, at in found]
    return [message for message in messages if message is not None], redis.zcard(keys.DEAD_LETTERS)


def load(redis: Any, tag: str) -> DeadLetter | None:
    """One dead letter, None if there is none of that id."""
    at = redis.zscore(keys.DEAD_LETTERS, tag)
    return _describe(redis, tag.encode(), at or 0.0, read_limit_bytes=None)


def load_arguments(redis: Any, tag: str) -> Any:
    """The arguments of the tool as the message has them: text, an object or nothing. They may hold secrets. Raises
    `DamagedMessage`."""
    return read_entry(_text_of(redis, tag) or b"").call.arguments


def retry(redis: Any, tag: str) -> bool:
    """Put a message back into its queue as if it had just been sent, without a deadline and with a delivery count of 0.
    Returns whether it was there; raises `DamagedMessage`."""
    text = _text_of(redis, tag)
    if text is None:
        return False
    entry = read_entry(text)
    command = _retry.command(
        queue=entry.queue,
        home=keys.without_priority(entry.queue),
        tag=tag,
        digest=sha1(text, usedforsecurity=False).hexdigest(),
        message=_without_deadline(entry),
    )
    return bool(redis.execute_command(*command))


def drop(redis: Any, tag: str) -> bool:
    """Delete a dead letter. Returns whether it was there."""
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
    queue = keys.without_priority(text.partition(b"\n")[0].decode(errors="replace")) if b"\n" in text else None
    if not is_read:
        return DeadLetter(tag, queue, at, kept_s, size_bytes)
    try:
        entry = read_entry(text)
    except DamagedMessage as damage:
        return DeadLetter(tag, queue, at, kept_s, size_bytes, damage=str(damage))
    tool = f"{entry.call.server}.{entry.call.tool}"
    caller = {name: str(entry.call.info[name]) for name in _CALLER if entry.call.info.get(name)}
    return DeadLetter(tag, queue, at, kept_s, size_bytes, entry.task, tool, caller)


def _text_of(redis: Any, tag: str) -> bytes | None:
    try:
        return redis.get(keys.dead_letter_key(tag))
    except ResponseError:
        raise DamagedMessage(_NO_STRING) from None


def _without_deadline(entry: InFlightEntry) -> str:
    entry.call.info.pop("deadline", None)
    parts = [entry.call.args, entry.call.kwargs, entry.embed]
    body = sign(parts) if entry.message.is_signed else json.dumps(parts)
    headers = {**entry.message.headers, "expires": None}
    headers.pop("garbage_at", None)
    if entry.message.is_encoded:
        body = base64.b64encode(body.encode()).decode()
    return json.dumps(entry.message.model_dump() | {"headers": headers, "body": body})
