"""Calls whose server asks for input, in the 2026 era: they wait for the answers, and are sent again with them.

Owns the rounds of one call: how often a server may ask, and what is sent when the call goes on. It waits parked
(`parking`), without a slot and without a session. What its server needs to go on travels with it
(`broker.input_rounds`) and is never shown. A call whose caller does not wait is rejected.
"""

import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mcp import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, ElicitResult

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.input_rounds import InputRound
from tarsy_tasks.broker.parked_calls import ParkedRecord
from tarsy_tasks.errors import CallError
from tarsy_tasks.input_answers import dump_asked
from tarsy_tasks.interceptors import Parked
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.audit import build_digest
from tarsy_tasks.worker.calls.call_digest import digest_of
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.held_input import HeldInput
from tarsy_tasks.worker.calls.parking import describe_call
from tarsy_tasks.worker.calls.questions import MOST_ROUNDS, read_questions
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.calls.sent_round import SentRound
from tarsy_tasks.worker.sessions.input_requests import InputNeeded
from tarsy_tasks.worker.sessions.recovery import data_of
from tarsy_tasks.worker.transport.elicitation_handlers import ELICITATION_HANDLER

T = TypeVar("T")

__all__ = [
    "MOST_ROUNDS",
    "ask_for_input",
    "find_round",
    "input_error",
    "require_same",
    "send_with_elicitation",
]

_LONGEST_STATE = 256 * 1024
_NOT_COMPLETED = "It has not completed the call."
_UNANSWERED = (
    "Its caller does not answer such questions: an executor does with `park=True` or `on_input`, another program with "
    "`park` in its message."
)


async def find_round(context: WorkerContext, call: RunningCall, record: ParkedRecord) -> SentRound | None:
    """What a call that was woken sends to its server; None if its server has asked nothing before.

    Raises:
        CallError: Nobody has answered in time.
        RedisError: Redis cannot be asked.
    """
    [found] = await context.in_flight.exchange.execute(("HMGET", keys.input_key(call.id), *InputRound.FIELDS))
    kept = InputRound.read(found)
    _note_answer(call, record, kept.number if kept is not None else 1)
    if kept is None or kept.answers is None:
        return None
    try:
        answers = {key: ElicitResult.model_validate(each) for key, each in json.loads(kept.answers).items()}
    except (ValueError, AttributeError):
        return None  # damaged: the server is asked from the beginning
    return SentRound(kept.number, kept.state, answers, kept.sent)


def _note_answer(call: RunningCall, record: ParkedRecord, number: int) -> None:
    """Note for the audit who has answered. Raises `CallError` if nobody has in time."""
    call.record.rounds = number
    if record.decision == "expired":
        call.record.answered = "expired"
        raise _rejected(call, ErrorCode.INPUT_EXPIRED, "and got no answer in time", "Call it again if it is needed.")
    call.record.answered = f"answered by {record.by}" if record.by else ""


async def ask_for_input(call: RunningCall, needed: InputNeeded) -> Parked | SentRound:
    """What becomes of a call whose server has asked: it waits, or is sent again with what the server gave for itself.

    Raises:
        CallError: Its caller answers nothing, or the server asks too much.
    """
    number, state = (call.sent_round.number if call.sent_round is not None else 0) + 1, needed.result.request_state
    call.record.rounds = number
    if number > MOST_ROUNDS:
        text = f"has asked for input {MOST_ROUNDS} times in this call, and asks again. {_NOT_COMPLETED}"
        raise _error(call, ErrorCode.TOO_MANY_QUESTIONS, text, "Continue without it, and tell the user.")
    if state is not None and len(state) > _LONGEST_STATE:
        text = f"asks for input with a state of its own of {len(state)} characters. {_NOT_COMPLETED}"
        raise _error(call, ErrorCode.TOO_MANY_QUESTIONS, text, "Continue without it, and tell the user.")
    if not needed.result.input_requests:
        return SentRound(number, state, None)
    if not call.info.park or call.delivery is None:
        raise _rejected(call, ErrorCode.INPUT_REQUIRED, "", _UNANSWERED)
    asked = await read_questions(needed.questions, call)
    sent = await digest_of(call)
    kept = InputRound(number, dump_asked(asked.asked), sent, state)
    digest = build_digest(json.dumps([sent, number, state, kept.asked]))
    expires_s = call.connection.server.elicitation.expires_s
    about = {**await describe_call(call), "questions": asked.shown()}
    return Parked(INPUT_REQUIRED, expires_s, digest, 1, about, questions=asked.questions, input_round=kept.fields())


async def send_with_elicitation(
    context: WorkerContext, sending: Awaitable[T], call: RunningCall, deadline: Callable[[], float]
) -> T:
    """Send a call whose server may ask its caller something, and knows it; `deadline` as for `HeldInput`."""
    handler = HeldInput(context, call, deadline)
    token = ELICITATION_HANDLER.set(handler)
    try:
        return await sending
    finally:
        ELICITATION_HANDLER.reset(token)
        handler.end()


async def require_same(call: RunningCall, sent: SentRound) -> None:
    """Raises `CallError` if the answers belong to another call than the one that would be sent."""
    if sent.sent and sent.sent != await digest_of(call):
        what = "and was answered for other arguments than those that would be sent"
        raise _rejected(call, ErrorCode.INPUT_REQUIRED, what, "Call it again: it asks once more.")


def input_error(call: RunningCall, error: Exception) -> CallError | None:
    """The answer to a call that failed because of what its server asks for; None if it failed for another reason."""
    if not isinstance(error, MCPError):
        return None
    if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY and "elicitation" in str(data_of(error)):
        return _rejected(call, ErrorCode.INPUT_REQUIRED, "", _UNANSWERED)
    sent = call.sent_round
    if sent is None or sent.state is None or data_of(error).get("reason") != "invalid_request_state":
        return None
    text = (
        "does not accept its own state of the call, which it gave with its questions: it was restarted since, or takes "
        f"such a state for a short time only. {_NOT_COMPLETED}"
    )
    remedy = "Call it again: it asks once more. An operator can give the server lasting keys for `requestState`."
    return _error(call, ErrorCode.INPUT_STATE_REFUSED, text, remedy)


def _rejected(call: RunningCall, code: ErrorCode, what: str, remedy: str) -> CallError:
    asks = f"asks for input to complete {call.record.title}{f', {what}' if what else ''}. {_NOT_COMPLETED}"
    return _error(call, code, asks, remedy)


def _error(call: RunningCall, code: ErrorCode, what: str, remedy: str) -> CallError:
    return CallError(code, f"MCP server `{call.server}` {what} {remedy}")
