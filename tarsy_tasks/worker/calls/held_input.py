"""Calls whose server asks for input in the handshake era: the session waits for the answer, and the call with it.

Owns how long it waits: never longer than the call may take, and than `elicitation.wait_s`. Its slot is free meanwhile.
What is asked is in Redis as that of a parked call, so people and agents see and answer it in the same ways; but a
worker that is lost takes the question with it.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from mcp_types import INVALID_REQUEST, ElicitResult, ErrorData
from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.input_rounds import InputRound, hold, let_go
from tarsy_tasks.broker.results_elsewhere import announce, forget_state, store_state
from tarsy_tasks.errors import CallError
from tarsy_tasks.input_answers import dump_asked
from tarsy_tasks.interceptors import Parked
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.audit import build_digest
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.parking import build_parking, describe_call
from tarsy_tasks.worker.calls.questions import MOST_ROUNDS, read_questions
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.sessions.elicitation_connection import ElicitationConnection
from tarsy_tasks.worker.transport.elicitation_handlers import ElicitParams

__all__ = ["HeldInput"]

logger = logging.getLogger(__name__)

_MOST_WAITING = 100
"""So many calls of a worker wait at once; what is asked beside them is cancelled."""
_LOOK_S = 0.25
_SPARE_S = 1.0
"""The server needs some time to answer the call, after nobody has answered it."""
_KEY = "input"


class HeldInput:
    """Who makes one call, as its server sees them; an `ElicitationHandler`.

    Args:
        deadline: Until when the call may take, monotonic time; progress may move it.
    """

    def __init__(self, context: WorkerContext, call: RunningCall, deadline: Callable[[], float]) -> None:
        self._context = context
        self._call = call
        self._deadline = deadline
        self._over = asyncio.Event()

    def end(self) -> None:
        """The request has ended, and nothing that it asks counts."""
        self._over.set()

    def note_ambiguous(self) -> None:
        """As `ElicitationHandler.note_ambiguous`."""
        if isinstance(self._call.connection, ElicitationConnection):
            self._call.connection.note_question()

    async def ask(self, params: ElicitParams) -> ElicitResult | ErrorData:
        """Wait for an answer. In the end it is cancelled, so that the server can go on."""
        call, asked = self._call, self._context.elicitation
        self.note_ambiguous()
        left_s = min(call.connection.server.elicitation.wait_s, self._deadline() - time.monotonic() - _SPARE_S)
        if call.record.rounds >= MOST_ROUNDS:
            call.end(self._too_many())
            await self._over.wait()  # else it asks again at once
            return ElicitResult(action="cancel")
        call.record.rounds += 1
        if left_s <= 0 or asked is None or asked.waiting >= _MOST_WAITING:
            return ElicitResult(action="cancel")
        try:
            parked = await self._build(params, left_s)
        except CallError as error:
            return ErrorData(code=INVALID_REQUEST, message=error.text)
        asked.waiting += 1
        # Nothing of the worker is busy, and the answer may have to come through the same slots.
        asked.slots.leave(call.queue)
        call.is_asked = True
        try:
            async with asyncio.timeout(left_s):
                return await self._wait(parked)
        except TimeoutError:
            call.record.answered = "expired"
            return ElicitResult(action="cancel")
        finally:
            call.is_asked = False
            asked.waiting -= 1
            asked.spawn(self._let_go(parked.digest))
            asked.slots.enter(call.queue)

    def _too_many(self) -> CallError:
        return CallError(
            ErrorCode.TOO_MANY_QUESTIONS,
            f"MCP server `{self._call.server}` has asked for input {MOST_ROUNDS} times in this call, and asks again. "
            "It may have done part of its work. Continue without it, and tell the user.",
        )

    async def _build(self, params: ElicitParams, lasts_s: float) -> Parked:
        call = self._call
        asked = await read_questions({_KEY: params}, call)
        kept = InputRound(call.record.rounds, dump_asked(asked.asked), "")
        digest = build_digest(json.dumps([call.id, call.owner, call.attempts, kept.number, kept.asked]))
        about = {**await describe_call(call), "questions": asked.shown(), "holds_session": True}
        return Parked(INPUT_REQUIRED, lasts_s, digest, 1, about, questions=asked.questions, input_round=kept.fields())

    async def _wait(self, parked: Parked) -> ElicitResult:
        call, exchange = self._call, self._context.in_flight.exchange
        if self._over.is_set():
            return ElicitResult(action="cancel")
        parking = build_parking(self._context, call, parked, holds_session=True)
        try:
            if parking.state_elsewhere:
                state, until = parking.state_elsewhere, parking.until
                await store_state.run_async(self._context.results, tag=call.id, state=state, ends_at=until)
            is_held = await hold.run_async(
                exchange,
                tag=call.id,
                ends_at=parking.until,
                record={**parking.record, "held": 1},
                kept=dict(parking.input_round),
                state=parking.state,
                channel=keys.reply_channel(call.id, keys.agent_of_queue(call.queue)),
            )
            if not is_held:
                return ElicitResult(action="cancel")
            if parking.state_elsewhere:
                await self._context.results.execute(*announce(parking, call.id, call.queue))
            if self._context.reporting is not None:
                self._context.reporting.report_parked(call.id, parking)
            while not self._over.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._over.wait()
                with suppress(RedisError, OSError):
                    if (found := await self._look(parked.digest)) is not None:
                        return found
        except (RedisError, OSError) as error:
            logger.warning("what MCP server %s asks could not be passed on: %s", call.server, error)
        return ElicitResult(action="cancel")

    async def _look(self, asked: str) -> ElicitResult | None:
        exchange, task_id = self._context.in_flight.exchange, self._call.id
        answers, (by, digest) = await exchange.execute(
            ("HGET", keys.input_key(task_id), "answers"), ("HMGET", keys.parked_key(task_id), "by", "digest")
        )
        if not answers or as_text(digest or b"") != asked:  # another worker has sent the call again, and asks, too
            return None
        self._call.record.answered = f"answered by {as_text(by or b'')}"
        return ElicitResult.model_validate(json.loads(answers)[_KEY])

    async def _let_go(self, digest: str) -> None:
        """Nobody is to answer any more what no session waits for."""
        with suppress(RedisError, OSError):  # then it expires
            await let_go.run_async(self._context.in_flight.exchange, tag=self._call.id, digest=digest)
            if self._context.has_results_elsewhere:
                await forget_state.run_async(self._context.results, tag=self._call.id, digest=digest)
