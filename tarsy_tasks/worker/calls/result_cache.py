"""The interceptor that answers calls that only read with what another call was answered a moment ago.

Owns what is kept: answers that are `ok`, masked as they were given, of the tools and resources that `cache` of a server
names. It is asked after all rules, and what it answers counts for no limit, because nothing is sent. Of the same calls
at the same time, in all workers, one asks the server. Where Redis fails, calls go on as without a cache. The rest is in
`broker.answer_cache`; what a server reports as changed is dropped by `process.resource_changes`.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from pydantic import ValidationError
from redis.exceptions import RedisError

from tarsy_tasks.broker import answer_cache, keys
from tarsy_tasks.config.cache import Cache
from tarsy_tasks.interceptors import Answer, Ending, Proceed, Stage
from tarsy_tasks.methods import LIST_RESOURCE_TEMPLATES, LIST_RESOURCES, READ_RESOURCE
from tarsy_tasks.models import ToolDefinition, ToolResult
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.audit import build_canonical
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.calls.cache_places import RESOURCES, TOOLS, Kind, field_of, place_of
from tarsy_tasks.worker.calls.content import TEXT_LIMIT
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import ASKED_S, is_large
from tarsy_tasks.worker.sessions.cache_hints import least

__all__ = ["ResultCache"]

logger = logging.getLogger(__name__)

_LEASE_S = 5
_RENEW_S = 1.5
_LOOK_S, _LONGEST_LOOK_S = 0.05, 0.5
"""How often a worker looks for what another one is to keep: rarely, if that takes long."""
_LONG_BYTES = 64 * 1024
"""Reading less takes the event loop less than a thread would: nothing is masked."""
_MOST_STALE = 1000
_KEPT = {"call_id", "name", "content", "structured", "attachments", "content_types"}
_OF_RESOURCES = {LIST_RESOURCES, LIST_RESOURCE_TEMPLATES, READ_RESOURCE}


@dataclass(frozen=True)
class _Question:
    """What a call asks, and for how long the answer is kept at most.

    Attributes:
        place, field: Where the answer is kept, as of `cache_places`.
    """

    kind: Kind
    place: str
    field: str
    ttl_s: float

    @property
    def flight(self) -> str:
        """The key of who asks it."""
        return keys.flight_key(self.place, self.field)


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


@dataclass(frozen=True)
class _Found:
    """What the cache has for a question.

    Attributes:
        generation: For `keep`.
    """

    generation: str
    answer: ToolResult | None


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
        self._stale: set[str] = set()
        """Flights whose last answer was not to be kept, so that it makes no sense to wait for another one."""
        self._outage = OutageLog(logger, "the cache of answers cannot be used")

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        # What another worker has begun is its to answer.
        if call.may_have_run or (question := self._read_question(call)) is None:
            return await proceed()
        if call.info.no_cache or question.flight in self._stale:
            found = await self._find(call, question, is_asking=True)
            ending = await proceed()
            if found is not None:
                await self._keep(call, ending, question, found.generation)
            return ending
        while (flight := self._flights.get(question.flight)) is not None:
            await flight.over.wait()
            if flight.answer is not None:
                return self._answer(call, flight.answer)
            if not flight.was_cancelled:
                return await proceed()  # those that waited ask for themselves, as without a cache
        return await self._fly(call, proceed, question)

    def _read_question(self, call: RunningCall) -> _Question | None:
        """What a call asks; None if its answer is not to be kept."""
        connection, cache, definition = call.connection, call.connection.server.cache, call.definition
        if cache is None:
            return None
        if call.operation in _OF_RESOURCES and cache.resources and not connection.is_disconnected_by_operator:
            kind, ttl_s = RESOURCES, cache.resources
            field = field_of(call.operation, call.arguments.get("uri", ""))
        elif definition is not None and (found_s := self._find_ttl_s(cache, definition, call.tool)) is not None:
            kind, ttl_s = TOOLS, found_s
            field = field_of(definition.fingerprint, build_canonical(call.arguments))
        else:
            return None
        place = place_of(connection, kind)
        return _Question(kind, place, field, ttl_s) if place else None

    def _find_ttl_s(self, cache: Cache, definition: ToolDefinition, tool: str) -> float | None:
        ttl_s = cache.ttl_s(tool)
        if ttl_s is None or definition.annotations.get("readOnlyHint") is not False:
            return ttl_s
        if definition.name not in self._not_read_only:
            self._not_read_only.add(definition.name)
            logger.warning("answers of %s are not cached: its server says that it is not read-only", definition.name)
        return None

    async def _fly(self, call: RunningCall, proceed: Proceed, question: _Question) -> Ending:
        """Find out what is kept, or ask the server, for all calls of this worker that have the same question."""
        name = question.flight
        flight = self._flights[name] = _Flight()
        try:
            found = await self._find(call, question)
            if found is not None and found.answer is not None:
                flight.answer = found.answer
                return self._answer(call, found.answer)
            renewing = asyncio.get_running_loop().create_task(self._renew(name, call.id))
            try:
                ending = await proceed()
                flight.answer = await self._keep(call, ending, question, "" if found is None else found.generation)
                return ending
            finally:
                renewing.cancel()
                if flight.answer is None:
                    self._release_soon(name, call.id)
        except asyncio.CancelledError:
            flight.was_cancelled = True
            raise
        finally:
            del self._flights[name]
            flight.over.set()

    async def _find(self, call: RunningCall, question: _Question, *, is_asking: bool = False) -> _Found | None:
        """What is kept; without an answer, this call is to ask the server. None: the cache cannot be used.

        Args:
            is_asking: The call asks the server in any case.
        """
        audit = self._context.audit
        if not audit.may_begin():
            return None
        look_s = _LOOK_S
        while True:
            try:
                found = await answer_cache.find_or_lead.run_async(
                    self._exchange,
                    place=keys.cache_key(question.place),
                    field=question.field,
                    flight=question.flight,
                    owner=call.id,
                    ttl_s=question.ttl_s,
                    lease_s=_LEASE_S,
                    is_audited=audit.is_stream_required,
                    is_asking=is_asking,
                )
            except (RedisError, OSError) as error:
                self._outage.failed(error)
                return None
            self._outage.succeeded()
            if found is not None:
                generation, *kept = found
                answer = await _read(call, kept[0]) if kept else None
                return _Found(generation.decode("ascii", "replace"), answer)
            await asyncio.sleep(look_s)
            look_s = min(1.5 * look_s, _LONGEST_LOOK_S)

    async def _renew(self, flight: str, owner: str) -> None:
        """Keep the lease of a leader."""
        while True:
            await asyncio.sleep(_RENEW_S)
            with suppress(RedisError, OSError):
                await answer_cache.renew.run_async(self._exchange, flight=flight, owner=owner, lease_s=_LEASE_S)

    def _release_soon(self, flight: str, owner: str) -> None:
        """There is nothing to keep: let another worker ask. The call may be cancelled, so it does not wait for this."""
        task = asyncio.get_running_loop().create_task(self._release(flight, owner))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release(self, flight: str, owner: str) -> None:
        with suppress(RedisError, OSError):  # then it lapses
            await answer_cache.release.run_async(self._exchange, flight=flight, owner=owner)

    async def _keep(self, call: RunningCall, ending: Ending, question: _Question, generation: str) -> ToolResult | None:
        """Keep the answer; returns it, unless it is none that may be given to others."""
        # What an interceptor of a user has made of it is not masked.
        if not isinstance(ending, Answer) or ending.result is not call.built:
            return None
        result = ending.result
        if result.outcome is not Outcome.OK or result.notes:
            return None
        ttl_s = least(question.ttl_s, call.fresh_s) or 0.0
        self._note_stale(question.flight, is_stale=ttl_s <= 0)
        # After a new connection with another credential it is nobody's.
        if ttl_s <= 0 or place_of(call.connection, question.kind) != question.place:
            return None
        text = await _write(call, result)
        if len(text) > answer_cache.LARGEST_BYTES:
            self._release_soon(question.flight, call.id)
            return result
        try:
            is_kept = await answer_cache.keep.run_async(
                self._exchange,
                place=keys.cache_key(question.place),
                field=question.field,
                flight=question.flight,
                owner=call.id,
                text=text,
                ttl_s=ttl_s,
                generation=generation,
            )
        except (RedisError, OSError) as error:
            self._outage.failed(error)
            self._release_soon(question.flight, call.id)
            return result
        return result if is_kept else None  # something has changed since it was asked

    def _note_stale(self, flight: str, *, is_stale: bool) -> None:
        if not is_stale:
            self._stale.discard(flight)
            return
        if len(self._stale) >= _MOST_STALE:
            self._stale.clear()
        self._stale.add(flight)

    def _answer(self, call: RunningCall, kept: ToolResult) -> Answer:
        facts = facts_of(self._context, call.info, call.record, call.repairs)
        call.built = kept.model_copy(update={**facts, "cached": True})
        # It is cut for each call by itself: a handle belongs to one agent.
        is_cut = call.is_cut_if_large or len(kept.content) > TEXT_LIMIT
        call.is_large = is_cut and is_large([kept.content, kept.structured])
        return Answer(call.built)


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
