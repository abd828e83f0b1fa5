"""Answers about resources from the cache, where a server has `resource_cache_s`.

Owns which answers are kept and for how long, and that a call is not worse off for it: what goes wrong with the cache is
logged, and the server is asked. What Redis holds is `broker.resource_cache`; what a server reports as changed is
dropped by `process.resource_changes`.
"""

import asyncio
import logging
import time
import uuid
from functools import partial

from pydantic import ValidationError
from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.resource_cache import LARGEST_BYTES, MOST_BYTES, Found, field_of, find, store_answer
from tarsy_tasks.interceptors import Answer, Ending, Proceed, Stage
from tarsy_tasks.methods import LIST_RESOURCE_TEMPLATES, LIST_RESOURCES, READ_RESOURCE
from tarsy_tasks.models import ToolResult
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import ASKED_S, LARGE_CHARS

__all__ = ["ResourceCache"]

logger = logging.getLogger(__name__)

_STORE_S = 1.0
"""How long an answer waits until it is kept."""
_KEPT = {"content", "structured", "attachments", "content_types", "notes"}
_NO_CALL = {"call_id": "", "name": ""}


class ResourceCache:
    """Answers reads and lists of resources that another call has asked for lately. An answer that is not `ok` is not
    kept. Where every call needs an audit entry (`TARSY_AUDIT_REQUIRED`), nothing is cached: that there can be one is
    checked when a call is sent.
    """

    name = "resource_cache"
    stage: Stage = "call"
    operations = frozenset({LIST_RESOURCES, LIST_RESOURCE_TEMPLATES, READ_RESOURCE})

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._outage = OutageLog(logger, "answers about resources cannot be cached in Redis")

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        connection, longest_s = call.connection, call.connection.server.resource_cache_s
        if longest_s is None or connection.is_disconnected_by_operator or self._context.audit.is_required:
            return await proceed()
        credential = connection.credential
        if not credential:  # it was not connected yet
            return await proceed()
        place = keys.resources_key(call.server, credential)
        field = field_of(call.operation, call.arguments.get("uri", ""))
        try:
            found = await find(self._context.results, place, field)
        except (RedisError, OSError) as error:
            self._outage.failed(error)
            return await proceed()
        if found.text is not None and (kept := await self._read(call, found)) is not None:
            call.built = kept
            return Answer(kept)
        ending = await proceed()
        fresh_s = longest_s if call.fresh_s is None else min(longest_s, call.fresh_s)
        if not isinstance(ending, Answer) or ending.result is not call.built or ending.result.is_error:
            return ending
        # After a new connection with another credential it is nobody's.
        if fresh_s > 0 and connection.credential == credential:
            await self._store(call, ending.result, place, field, fresh_s, found.generation)
        return ending

    async def _read(self, call: RunningCall, found: Found) -> ToolResult | None:
        assert found.text is not None
        read = partial(ToolResult.model_validate_json, found.text)
        try:
            is_large = len(found.text) > LARGE_CHARS
            kept = await call.connection.long_work.run(read, allowed_s=ASKED_S) if is_large else read()
        except ValidationError:  # of another version
            return None
        facts = facts_of(self._context, call.info, call.record, ())
        return kept.model_copy(update={**facts, "cached_at": found.answered_at})

    async def _store(
        self, call: RunningCall, result: ToolResult, place: str, field: str, fresh_s: float, generation: str
    ) -> None:
        write = partial(_encode, result)
        is_large = result.structured is not None or result.attachments or len(result.content) > LARGE_CHARS
        try:
            # The answer is there: neither a slow Redis nor the deadline of the call may take it away.
            async with asyncio.timeout(max(0.0, min(_STORE_S, call.deadline - time.monotonic()))):
                text = await call.connection.long_work.run(write, allowed_s=ASKED_S) if is_large else write()
                if text is None:
                    return
                await store_answer.run_async(
                    self._context.results,
                    place=place,
                    field=field,
                    answer=text,
                    fresh_s=fresh_s,
                    most_bytes=MOST_BYTES,
                    generation=generation,
                    next_generation=uuid.uuid4().hex,
                )
        except (RedisError, OSError) as error:  # such as a Redis that is full, or TimeoutError
            self._outage.failed(error)
        else:
            self._outage.succeeded()


def _encode(result: ToolResult) -> str | None:
    """What is kept of an answer; None if it is too large."""
    text = result.model_copy(update=_NO_CALL).model_dump_json(include=_KEPT | _NO_CALL.keys())
    return text if len(text.encode()) <= LARGEST_BYTES else None
