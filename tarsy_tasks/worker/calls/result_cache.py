"""The interceptor that answers calls of tools that only read with what another call was answered a moment ago.

Owns what is kept: answers that are `ok`, masked as they were given, of the tools that `cache` of a server names. It is
asked after all rules, and what it answers counts for no limit, because nothing is sent. Of the same calls at the same
time, in all workers, one asks the server. Where Redis fails, calls go on as without a cache. The rest is in
`broker.answer_cache`.
"""

import asyncio
import hashlib
import logging
from contextlib import suppress
from math import inf

from pydantic import ValidationError
from redis.exceptions import RedisError

from tarsy_tasks.broker import answer_cache, keys
from tarsy_tasks.interceptors import Answer, Ending, Proceed, Stage
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.audit import build_canonical
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.calls.content import TEXT_LIMIT
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import ASKED_S, is_large

__all__ = ["ResultCache"]

logger = logging.getLogger(__name__)

_LEASE_S = 5
_RENEW_S = 1.5
_LOOK_S, _LONGEST_LOOK_S = 0.05, 0.5
"""How often a worker looks for what another one is to keep: rarely, if that takes long."""
_LARGEST_BYTES = 1024 * 1024
_LONG_BYTES = 64 * 1024
"""Reading less takes the event loop less than a thread would: nothing is masked."""
_KEPT = {"call_id", "name", "content", "structured", "attachments", "content_types"}


class _Flight:
    """A question that a call of this worker has asked, for all others with the same one.

    Attributes:
        over: Set when it has ended.
        answer: What all are answered; None if there is nothing to keep, or it was cancelled.
        was_cancelled: The call was cancelled, so that another one has to ask.
    """

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.answer: ToolResult | None = None
        self.was_cancelled = False


class ResultCache:
    """For the calls of one worker."""

    name = "result_cache"
    stage: Stage = "call"

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._exchange = context.in_flight.exchange
        self._flights: dict[str, _Flight] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._not_read_only: set[str] = set()
        self._outage = OutageLog(logger, "the cache of answers cannot be used")

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        ttl_s = self._find_ttl_s(call)
        # What another worker has begun is its to answer.
        if ttl_s is None or call.may_have_run:
            return await proceed()
        entry = _name_entry(call)
        if call.info.no_cache:
            ending = await proceed()
            await self._keep(call, ending, entry, ttl_s)
            return ending
        while (flight := self._flights.get(entry)) is not None:
            await flight.over.wait()
            if flight.answer is not None:
                return self._answer(call, flight.answer)
            if not flight.was_cancelled:
                return await proceed()  # those that waited ask for themselves, as without a cache
        return await self._fly(call, proceed, entry, ttl_s)

    def _find_ttl_s(self, call: RunningCall) -> float | None:
        cache, definition = call.connection.server.cache, call.definition
        if cache is None or definition is None or (ttl_s := cache.ttl_s(call.tool)) is None:
            return None
        if definition.annotations.get("readOnlyHint") is not False:
            return ttl_s
        if definition.name not in self._not_read_only:
            self._not_read_only.add(definition.name)
            logger.warning("answers of %s are not cached: its server says that it is not read-only", definition.name)
        return None

    async def _fly(self, call: RunningCall, proceed: Proceed, entry: str, ttl_s: float) -> Ending:
        """Find out what is kept, or ask the server, for all calls of this worker that have the same question."""
        flight = self._flights[entry] = _Flight()
        try:
            if (found := await self._find(call, entry)) is not None:
                flight.answer = found
                return self._answer(call, found)
            renewing = asyncio.get_running_loop().create_task(self._renew(entry, call.id))
            try:
                ending = await proceed()
                flight.answer = await self._keep(call, ending, entry, ttl_s)
                return ending
            finally:
                renewing.cancel()
                if flight.answer is None:
                    self._release_soon(entry, call.id)
        except asyncio.CancelledError:
            flight.was_cancelled = True
            raise
        finally:
            del self._flights[entry]
            flight.over.set()

    async def _find(self, call: RunningCall, entry: str) -> ToolResult | None:
        """What is kept. None: this call is to ask the server."""
        audit = self._context.audit
        if not audit.may_begin():
            return None
        look_s = _LOOK_S
        while True:
            try:
                found = await answer_cache.find_or_lead.run_async(
                    self._exchange,
                    answer=keys.cache_key(entry),
                    flight=keys.flight_key(entry),
                    owner=call.id,
                    lease_s=_LEASE_S,
                    is_audited=audit.is_stream_required,
                )
            except (RedisError, OSError) as error:
                self._outage.failed(error)
                return None
            self._outage.succeeded()
            if found is not None:
                return await _read(call, found) if found else None
            await asyncio.sleep(look_s)
            look_s = min(1.5 * look_s, _LONGEST_LOOK_S)

    async def _renew(self, entry: str, owner: str) -> None:
        """Keep the lease of a leader."""
        flight = keys.flight_key(entry)
        while True:
            await asyncio.sleep(_RENEW_S)
            with suppress(RedisError, OSError):
                await answer_cache.renew.run_async(self._exchange, flight=flight, owner=owner, lease_s=_LEASE_S)

    def _release_soon(self, entry: str, owner: str) -> None:
        """There is nothing to keep: let another worker ask. The call may be cancelled, so it does not wait for this."""
        task = asyncio.get_running_loop().create_task(self._release(entry, owner))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release(self, entry: str, owner: str) -> None:
        with suppress(RedisError, OSError):  # then it lapses
            await answer_cache.release.run_async(self._exchange, flight=keys.flight_key(entry), owner=owner)

    async def _keep(self, call: RunningCall, ending: Ending, entry: str, ttl_s: float) -> ToolResult | None:
        """Keep the answer; returns it, unless it is none that may be kept."""
        # What an interceptor of a user has made of it is not masked.
        if not isinstance(ending, Answer) or ending.result is not call.built:
            return None
        result = ending.result
        if result.outcome is not Outcome.OK or result.notes:
            return None
        text = await _write(call, result)
        if len(text) > _LARGEST_BYTES:
            self._release_soon(entry, call.id)
            return result
        try:
            await answer_cache.keep.run_async(
                self._exchange,
                answer=keys.cache_key(entry),
                flight=keys.flight_key(entry),
                owner=call.id,
                text=text,
                ttl_ms=max(1, round(ttl_s * 1000)),
            )
        except (RedisError, OSError) as error:
            self._outage.failed(error)
            self._release_soon(entry, call.id)
        return result

    def _answer(self, call: RunningCall, kept: ToolResult) -> Answer:
        facts = facts_of(self._context, call.info, call.record, call.repairs)
        call.built = kept.model_copy(update={**facts, "cached": True})
        # It is cut for each call by itself: a handle belongs to one agent.
        is_cut = call.is_cut_if_large or len(kept.content) > TEXT_LIMIT
        call.is_large = is_cut and is_large([kept.content, kept.structured])
        return Answer(call.built)


def _name_entry(call: RunningCall) -> str:
    """Of what is kept: calls with the same one get the same answer."""
    connection, definition = call.connection, call.definition
    assert definition is not None
    masking = connection.server.masking.model_dump_json()
    parts = connection.identity, masking, definition.fingerprint, build_canonical(call.arguments)
    digest = hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{call.server}:{digest}"


async def _write(call: RunningCall, result: ToolResult) -> bytes:
    blank = result.model_copy(update={"call_id": "", "name": ""})

    def write() -> bytes:
        return blank.model_dump_json(include=_KEPT, exclude_defaults=True).encode()

    if result.attachments or is_large([result.content, result.structured]):
        return await call.connection.long_work.run(write, allowed_s=ASKED_S)
    return write()


async def _read(call: RunningCall, text: bytes) -> ToolResult | None:
    """What is kept; None if it cannot be read, and is to be replaced."""
    try:
        if len(text) > _LONG_BYTES:
            return await call.connection.long_work.run(ToolResult.model_validate_json, text, allowed_s=inf)
        return ToolResult.model_validate_json(text)
    except ValidationError:
        return None
