"""Idempotency keys: the same call with the same key is made only once, whichever process makes it.

Owns the claim in Redis: which task a key belongs to. A key is scoped to its agent, and bound to one server, tool and
arguments.
"""

import hashlib
import json
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.script import Key, script
from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["Claim", "claim"]


@script(
    """
    local claimed = redis.call('GET', claim)
    if claimed and string.sub(claimed, 1, #task_id + 1) == task_id .. ' ' then redis.call('DEL', claim) end
    """
)
def _release(*, claim: Key, task_id: str) -> None: ...


class Claim:
    """An idempotency key that belongs to one task.

    Attributes:
        task_id: The task that the key belongs to.
        is_new: Nobody used the key before.
    """

    def __init__(self, redis: Any, name: str, task_id: str, *, is_new: bool) -> None:
        self.task_id = task_id
        self.is_new = is_new
        self._redis = redis
        self._name = name

    def release(self) -> None:
        """Free the key, because the call never ran and never will: the next call with it is made."""
        self._redis.execute_command(*_release.command(claim=self._name, task_id=self.task_id))


def claim(redis: Any, call: tuple[str, str, str | None], *, agent_id: str | None, key: str, task_id: str) -> Claim:
    """Claim a key for a task, unless it belongs to another task already.

    Args:
        redis: A redis-py client of the result backend.
        call: Server, tool and arguments.
        task_id: The task to be sent if the key is new.

    Raises:
        CallError: The key was used for another call.
    """
    name = keys.idempotency_key(agent_id, hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest())
    digest = hashlib.sha256(json.dumps(call).encode()).hexdigest()
    found = redis.set(name, f"{task_id} {digest}", nx=True, get=True, ex=keys.IDEMPOTENCY_TTL_S)
    if found is None:
        return Claim(redis, name, task_id, is_new=True)
    first_id, _, first_digest = found.decode().partition(" ")
    if first_id == task_id:
        # This is a retry: the reply to the first attempt was lost with the connection.
        return Claim(redis, name, task_id, is_new=True)
    if first_digest != digest:
        raise CallError(
            ErrorCode.IDEMPOTENCY_CONFLICT,
            f"The idempotency key `{key}` was used for another call: another tool, or other arguments. Nothing was "
            "sent. Use a new key for a new call.",
        )
    return Claim(redis, name, first_id, is_new=False)
