"""A key that the caller gives to a call, so that the same call is made only once, by whichever process.

Owns the claim in Redis: which task stands for a key. A key is scoped to its agent, and bound to one server, tool and
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
    """An idempotency key that stands for one task.

    Attributes:
        task_id: The task that the key stands for.
        is_new: Nobody has sent it yet.
    """

    def __init__(self, redis: Any, name: str, task_id: str, *, is_new: bool) -> None:
        self.task_id = task_id
        self.is_new = is_new
        self._redis = redis
        self._name = name

    def release(self) -> None:
        """The call never ran and never will: whoever uses the key next makes it."""
        self._redis.execute_command(*_release.command(claim=self._name, task_id=self.task_id))


def claim(redis: Any, call: tuple[str, str, str | None], *, agent_id: str | None, key: str, task_id: str) -> Claim:
    """Let a key stand for a task, unless it stands for another already.

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
        # Asked again, because the reply was lost with the connection.
        return Claim(redis, name, task_id, is_new=True)
    if first_digest != digest:
        raise CallError(
            ErrorCode.IDEMPOTENCY_CONFLICT,
            f"The idempotency key `{key}` was used for another call: another tool, or other arguments. Nothing was "
            "sent. Use a new key for a new call.",
        )
    return Claim(redis, name, first_id, is_new=False)
