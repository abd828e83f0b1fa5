"""Celery's Redis result backend without the read before every write.

Owns what the project changes in the result backend; every application of the package uses it for `redis://` URLs.
"""

from functools import cached_property
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend

from tarsy_tasks.redis_exchange import RedisExchange

__all__ = ["ResultBackend"]


class ResultBackend(RedisBackend):
    """Stores a success without first reading what is stored.

    Stock reads so that a failure never overwrites a success; a success needs no such care. It saves a round trip a
    call.
    """

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        if state != states.SUCCESS:
            return super()._store_result(task_id, result, state, traceback, request, **kwargs)
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = task_id
        self._set_with_state(self.get_key_for_task(task_id), self.encode(meta), state)
        return result

    def _set(self, key: Any, value: Any, expires: int | None = None) -> None:
        """Store and announce. Stock wraps the two in MULTI, and uses SETEX, of which redis-py warns on every call."""
        lifetime_s = self.expires if expires is None else expires
        store = ("SET", key, value, "EX", lifetime_s) if lifetime_s else ("SET", key, value)
        self._exchange.execute(store, ("PUBLISH", key, value))

    @cached_property
    def _exchange(self) -> RedisExchange:
        return RedisExchange(self.client.connection_pool)
