"""Large results that are kept whole in Redis, for those who got only their beginning and end.

Owns their form, the step that stores one together with the answer that names it, and the quota of their owner. An
answer that is cut is stored only with the whole beside it: a Redis that is full refuses both, and then the answer says
that the rest was not kept. What is read from Redis is bounded, and may be anything.
"""

import json
import logging
import re
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.limit_counters import COUNT_RESULT
from tarsy_tasks.broker.redis_errors import ErrorKind, classify_error
from tarsy_tasks.broker.script import NOW, Key, script
from tarsy_tasks.broker.steps import ANSWER_CHECK, ANSWER_RECORD, ANSWER_STORE, step
from tarsy_tasks.models import ToolResult

__all__ = [
    "KEPT_CHARS",
    "MOST_CHARS",
    "READ_RESULT",
    "DamagedResult",
    "LargeWrite",
    "NotKeptError",
    "answer_large",
    "is_handle",
    "pack",
    "refusals",
    "unpack",
]

logger = logging.getLogger(__name__)

READ_RESULT = "tarsy.read_result"
"""The tool by which a model reads on."""
KEPT_CHARS = 4 * 1024 * 1024
"""Characters of a text that are kept; to mask that many takes about as long as the answer to a call may cost."""
MOST_CHARS = 4 * KEPT_CHARS
"""No text is longer: masks make it longer than it was."""
_LEVEL = 1
"""Of zlib. 3 takes half as long again and saves a tenth; 6 takes three times as long and saves a fifth."""
_HEADER_BYTES = 200
_HANDLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BYTES_A_CHAR = 4


class DamagedResult(ValueError):
    """What lies under a handle is not a large result."""


class NotKeptError(Exception):
    """Redis is full, or refuses a large result for good: its answer is stored alone."""


@dataclass(frozen=True, slots=True)
class LargeWrite:
    """A large result that is to be kept together with its answer.

    Attributes:
        owner: To whom it belongs (`keys.result_owner`).
        whole: What `pack` made of it.
        quota_bytes: So much is kept for the owner; the oldest ones go.
        result: The answer that names it.
        refused: The answer if Redis does not keep it.
        whole_bytes: Of the whole, as it is before `pack` compresses it.
    """

    owner: str
    handle: str
    whole: bytes
    quota_bytes: int
    result: ToolResult
    refused: ToolResult
    whole_bytes: int

    def give_up(self, error: Exception) -> ToolResult:
        """The answer if Redis does not keep it, for the reason given."""
        logger.warning("Redis does not keep the large result of %s: %s", self.handle, error)
        return self.refused

    def keep(self, exchange: RedisExchange, lifetime_s: int | None) -> None:
        """Store it without its answer, which is stored in another database. Raises as `refusals`."""
        with refusals():
            _keep.run(exchange, **self.slots(), ttl_s=lifetime_s or 0)

    def slots(self) -> dict[str, Any]:
        """What the scripts take of it."""
        return {
            "place": keys.large_result_key(self.owner, self.handle),
            "index": keys.large_index_key(self.owner),
            "prefix": keys.large_result_key(self.owner, ""),
            "handle": self.handle,
            "whole": self.whole,
            "quota_bytes": self.quota_bytes,
        }


_KEEP = r"""
    local last = redis.pcall('ZREVRANGE', index, 0, 0, 'WITHSCORES')
    if last.err then
        redis.call('DEL', index)  -- a key of another type
        last = {}
    end
    local newest = tonumber(last[2] or 0) + #whole
    while true do
        local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
        if not oldest[1] then break end
        local bytes, ends, name = string.match(oldest[1], '^(%d+) (%d+) (.*)$')
        local begins = bytes and oldest[2] - bytes
        if begins and newest - begins <= quota_bytes and (ends == '0' or tonumber(ends) > now) then break end
        redis.call('ZREM', index, oldest[1])
        if name then redis.call('DEL', prefix .. name) end
    end
    local ends = ttl_s > 0 and math.ceil(now + ttl_s) or 0
    redis.call('ZADD', index, string.format('%.0f', newest), string.format('%d %.0f %s', #whole, ends, handle))
    if ttl_s > 0 then
        redis.call('EXPIRE', index, ttl_s)
        redis.call('SET', place, whole, 'EX', ttl_s)
    else
        redis.call('PERSIST', index)
        redis.call('SET', place, whole)
    end
    """
"""The score of each is how many bytes there were in all until then: so what lies between two is known without a sum."""


@script(NOW, _KEEP, grows=True)
def _keep(
    *, place: Key, index: Key, prefix: str, handle: str, whole: str | bytes, quota_bytes: int, ttl_s: int
) -> None: ...


# As `limit_counters.answer_counted`, unless `charges` is empty; then as `steps.answer`.
@step(
    NOW,
    COUNT_RESULT,
    ANSWER_CHECK,
    _KEEP,
    ANSWER_STORE,
    # Of the whole its bytes count, although the answer has a part of it, and it is kept compressed.
    "if charges ~= '' then count_result(math.max(#result, whole_bytes)) end",
    ANSWER_RECORD,
    grows=True,
)
def answer_large(
    *,
    tag: str,
    home: str,
    owner: str,
    begins_as: str,
    key: Key,
    result: str | bytes,
    ttl_s: int,
    channel: str,
    entry: str,
    limit: int,
    charges: str,
    place: Key,
    index: Key,
    prefix: str,
    handle: str,
    whole: str | bytes,
    whole_bytes: int,
    quota_bytes: int,
) -> tuple[int, bytes]: ...


@contextmanager
def refusals() -> Generator[None]:
    """For a script above: what Redis refuses for good, or because it is full, raises `NotKeptError`. Other errors stay:
    it may succeed later."""
    try:
        yield
    except ResponseError as error:
        if isinstance(error, OutOfMemoryError) or classify_error(error) is not ErrorKind.PASSING:
            raise NotKeptError(str(error)) from error
        raise


def is_handle(text: str) -> bool:
    """Whether a text can be a handle: the id of a task, as this package and Celery make them."""
    return _HANDLE.fullmatch(text) is not None


def pack(content: str, structured: str) -> bytes:
    """The texts of a result as they are kept: a line that says how long they are, and both, compressed."""
    header = json.dumps({"v": 1, "content": len(content), "structured": len(structured)})
    return header.encode() + b"\n" + zlib.compress(f"{content}{structured}".encode("utf-8", "replace"), _LEVEL)


def unpack(whole: bytes) -> tuple[str, str]:
    """The texts that `pack` was given.

    Raises:
        DamagedResult: It was not `pack` that wrote this.
    """
    header, line_break, data = whole[:_HEADER_BYTES].partition(b"\n")
    try:
        found: Any = json.loads(header) if line_break else None
        lengths = [found[name] for name in ("content", "structured")] if found["v"] == 1 else [-1]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedResult("it does not begin as a large result does") from None
    if not all(type(each) is int and 0 <= each <= MOST_CHARS for each in lengths):
        raise DamagedResult("its lengths are not possible")
    data = whole[len(header) + 1 :]
    total = sum(lengths)
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, total * _BYTES_A_CHAR + 1).decode()
    except (zlib.error, ValueError):
        raise DamagedResult("it cannot be decompressed") from None
    if not unpacking.eof or unpacking.unused_data or len(text) != total:
        raise DamagedResult("it is longer or shorter than it says")
    return text[: lengths[0]], text[lengths[0] :]
