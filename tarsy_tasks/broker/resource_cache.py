"""The cached answers about a server's resources, as Redis holds them.

A hash for each server and credential. A field is what was asked, without a URI in clear: URIs may contain secrets. Its
value is two times, when the server answered and until when that counts, and in the next line the answer, masked. The
field `generation` changes whenever something is dropped: what was asked before that is not stored any more. The field
`bytes` is the size of all answers; when they would be too large, all are dropped.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.script import NOW, Key, Table, script

__all__ = [
    "LARGEST_BYTES",
    "MOST_BYTES",
    "Found",
    "drop_answers",
    "field_of",
    "fields_of_change",
    "find",
    "store_answer",
]

LARGEST_BYTES = 2 * 1024 * 1024
"""Of one answer; a larger one is not kept."""
MOST_BYTES = 32 * 1024 * 1024
"""Of all answers of one server."""
_LONGEST_S = 24 * 3600
_PARENTS = 32


class Found(NamedTuple):
    """What the cache has for a call.

    Attributes:
        generation: For `store_answer`.
        answered_at: When the server gave the answer, in seconds since the epoch.
        text: The answer; None if there is none that counts.
    """

    generation: str
    answered_at: float = 0.0
    text: bytes | None = None


def field_of(method: str, uri: str = "") -> str:
    """The field of what is asked."""
    return f"{method} {hashlib.sha256(uri.encode('utf-8', 'surrogatepass')).hexdigest()}" if uri else method


def fields_of_change(method: str, uri: str) -> list[str]:
    """The fields of a resource that changed, and of those that it may be a part of."""
    found = [uri]
    path = urlsplit(uri).path if "/" in uri else ""
    for _ in range(min(path.count("/"), _PARENTS)):
        uri = uri.rstrip("/").rpartition("/")[0]
        found += [uri, f"{uri}/"]
    return [field_of(method, each) for each in found if each]


async def find(exchange: AsyncRedisExchange, place: str, field: str) -> Found:
    """Look for an answer. Raises `RedisError` or `OSError` if Redis cannot be asked."""
    (seconds, microseconds), (value, generation) = await exchange.execute(
        ("TIME",), ("HMGET", place, field, "generation")
    )
    now = int(seconds) + int(microseconds) / 1e6
    head, _, text = (value or b"").partition(b"\n")
    found = Found((generation or b"").decode("ascii", "replace"))
    try:
        answered_at, until = map(float, head.split())
    except ValueError:
        return found
    return found._replace(answered_at=answered_at, text=text) if answered_at <= now < until else found


# Keeps an answer, unless something was dropped since `generation` was found. Returns 1 if it is kept.
@script(
    NOW,
    """
    if (redis.call('HGET', place, 'generation') or '') ~= generation then return 0 end
    local value = string.format('%.6f %.6f\\n', now, now + fresh_s) .. answer
    local before = redis.call('HGET', place, field)
    local more = #value - (before and #before or 0)
    if redis.call('HINCRBY', place, 'bytes', more) > most_bytes then
        redis.call('DEL', place)
        redis.call('HSET', place, 'generation', next_generation, 'bytes', #value)
    end
    redis.call('HSET', place, field, value)
    if redis.call('TTL', place) < fresh_s then redis.call('EXPIRE', place, math.ceil(fresh_s)) end
    return 1
    """,
    grows=True,
)
def store_answer(
    *,
    place: Key,
    field: str,
    answer: str,
    fresh_s: float,
    most_bytes: int,
    generation: str,
    next_generation: str,
) -> int: ...


@script(
    """
    if everything then redis.call('DEL', place) end
    for _, field in ipairs(fields) do
        local before = redis.call('HGET', place, field)
        if before then
            redis.call('HDEL', place, field)
            redis.call('HINCRBY', place, 'bytes', -#before)
        end
    end
    redis.call('HSET', place, 'generation', generation)
    if redis.call('TTL', place) < keep_s then redis.call('EXPIRE', place, keep_s) end
    return 1
    """
)
def _drop(*, place: Key, fields: Table, everything: bool, generation: str, keep_s: int) -> int: ...


async def drop_answers(
    exchange: AsyncRedisExchange, server: str, credential: str, fields: Sequence[str] | None, generation: str
) -> None:
    """Forget the answers in these fields; None: all of them. A key of another type is removed.

    Args:
        generation: One that never was.

    Raises:
        RedisError: Redis could not be asked, or `OSError`.
    """
    drop = partial(
        _drop.run_async,
        exchange,
        place=keys.resources_key(server, credential),
        fields=[*(fields or ())],
        generation=generation,
        # Nothing that was asked before this may be stored later: so it is remembered for as long as a call may take.
        keep_s=_LONGEST_S,
    )
    try:
        await drop(everything=fields is None)
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        await drop(everything=True)
