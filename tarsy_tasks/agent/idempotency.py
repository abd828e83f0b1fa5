"""Idempotency keys: the same call with the same key is made only once, whichever process makes it.

Owns the claim in Redis: which task a key belongs to. A key is scoped to its agent, and bound to one server, tool and
arguments.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass

from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.script import Key, script
from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["Claim", "claim", "release_if_possible"]


@script(
    """
    local claimed = redis.call('GET', claim)
    if claimed and string.sub(claimed, 1, #task_id + 1) == task_id .. ' ' then redis.call('DEL', claim) end
    """
)
def _release(*, claim: Key, task_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """An idempotency key, in Redis, that belongs to the task `task_id`. `is_new`: nobody used it before."""

    redis: AsyncRedisExchange
    key: str
    task_id: str
    is_new: bool

    async def release(self) -> None:
        """Free the key, because the call never ran and never will: the next call with it is made."""
        await _release.run_async(self.redis, claim=self.key, task_id=self.task_id)


async def claim(
    redis: AsyncRedisExchange, call: tuple[str, str, str | None], *, agent_id: str | None, key: str, task_id: str
) -> Claim:
    """Claim a key for a task and its call (server, tool and arguments), unless it belongs to another task already.

    Raises:
        CallError: The key was used for another call.
        RedisError: As `AsyncRedisExchange.execute`; it may be claimed then, and may be claimed once more.
    """
    name = keys.idempotency_key(agent_id, hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest())
    digest = hashlib.sha256(json.dumps(call).encode()).hexdigest()
    ours = f"{task_id} {digest}".encode()
    [found] = await redis.execute(("SET", name, ours, "NX", "GET", "EX", keys.IDEMPOTENCY_TTL_S))
    first_id, _, first_digest = (found or ours).decode().partition(" ")
    if first_digest != digest:
        raise CallError(
            ErrorCode.IDEMPOTENCY_CONFLICT,
            f"The idempotency key `{key}` was already used for a call with another tool or other arguments. Nothing "
            "was sent. Use a new key for a new call.",
        )
    # It is found to be ours when the reply to an earlier attempt was lost with the connection.
    return Claim(redis, name, first_id, is_new=first_id == task_id)


async def release_if_possible(claim: Claim) -> None:
    """Release a claim; one that Redis keeps, because it is away, expires."""
    with suppress(*connection_errors()):
        await claim.release()
