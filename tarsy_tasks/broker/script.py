"""A Lua script that Redis runs in one step.

Owns sending it by its digest, whole only to a Redis that does not know it.
"""

from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.exchange import RedisExchange

__all__ = ["Script"]


class Script:
    """One script.

    Args:
        text: In Lua.
        grows: It makes what lies in Redis grow; a Redis that is full refuses it. It takes nothing new, and everything
            that brings calls to their end.
    """

    def __init__(self, text: str, *, grows: bool = False) -> None:
        self._text = text if grows else f"#!lua flags=allow-oom\n{text}"
        self._digest = sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def run(self, exchange: RedisExchange, names: tuple[str, ...], *arguments: Any) -> Any:
        """What it returns, with these keys and arguments.

        Raises:
            RedisError: As `RedisExchange.execute`.
        """
        try:
            return exchange.execute(("EVALSHA", self._digest, len(names), *names, *arguments))[0]
        except NoScriptError:
            # The first time, and after each restart of Redis.
            return exchange.execute(("EVAL", self._text, len(names), *names, *arguments))[0]

    async def run_async(self, exchange: AsyncRedisExchange, names: tuple[str, ...], *arguments: Any) -> Any:
        """As `run`, from an event loop."""
        try:
            return (await exchange.execute(("EVALSHA", self._digest, len(names), *names, *arguments)))[0]
        except NoScriptError:
            return (await exchange.execute(("EVAL", self._text, len(names), *names, *arguments)))[0]
