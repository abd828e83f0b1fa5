"""What agents answer to the questions of servers: checked, bound to the call and to who made it, and passed on.

Owns the check of an answer that comes as a message, `input/answer`. By itself it sends nothing to a server: the
call that waits goes on with it (`input_rounds`, `held_input`). The audit has no values of it.
"""

import json
from collections.abc import Mapping
from math import inf
from typing import Any

from pydantic import Field

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.input_rounds import Answered, InputRound, give_answers
from tarsy_tasks.errors import CallError
from tarsy_tasks.input_answers import UnfitAnswerError, describe_answers, load_asked, read_answers
from tarsy_tasks.interceptors import ANONYMOUS, Answer, Ending, Proceed, Stage
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.parking import shown_agent_id
from tarsy_tasks.worker.calls.request_arguments import RequestArguments, read_request
from tarsy_tasks.worker.calls.running_call import RunningCall

__all__ = ["InputAnswers"]

_RECORD = ("reason", "digest", "about", "principal")
_REFUSALS: Mapping[Answered, str] = {
    Answered.CHANGED: "the server has asked something else since; look at what it asks now",
    Answered.LATE: "it was answered before",
    Answered.EXPIRED: "it has expired",
    Answered.WITHDRAWN: "the call was cancelled, or has ended",
    Answered.UNKNOWN: "no call of this id waits for input: it was answered before, has ended, or never asked",
}


class _AnswerArguments(RequestArguments):
    """Attributes:
    call: Task id of the call that waits.
    digest: Of the questions that are answered; None: whatever it asks now.
    answers: As `questions.Answers`.
    """

    call: str = Field(min_length=1, max_length=200)
    digest: str | None = None
    answers: Any


class InputAnswers:
    """Answers the message: the call goes on, or why not."""

    name = "input_answers"
    stage: Stage = "message"

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:  # noqa: ARG002 - nothing is sent
        given = read_request(call, _AnswerArguments)
        call.record.arguments = {"call": given.call}
        exchange = self._context.in_flight.exchange
        found, kept = await exchange.execute(
            ("HMGET", keys.parked_key(given.call), *_RECORD),
            ("HMGET", keys.input_key(given.call), *InputRound.FIELDS),
        )
        reason, digest, about, principal = [as_text(each or b"") for each in found]
        asked = InputRound.read(kept)
        if reason != INPUT_REQUIRED or asked is None:
            raise _refused(Answered.UNKNOWN)
        _require_own(call, principal, about)
        try:
            sent = await call.connection.long_work.run(
                read_answers, load_asked(asked.asked), given.answers, allowed_s=inf
            )
        except UnfitAnswerError as error:
            text = f"The answer was not sent: {error}. The call still waits: answer again."
            raise CallError(ErrorCode.INVALID_ARGUMENTS, text) from None
        call.record.arguments = {"call": given.call, "answers": describe_answers(sent)}
        answers = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
        by = call.info.agent_id or "" if call.principal == ANONYMOUS else call.principal
        said = await give_answers.run_async(
            exchange, tag=given.call, digest=given.digest or digest, answers=answers, by=by or "its agent"
        )
        answered = Answered(as_text(said))
        # The worker that passed it on may have been lost before it could say so.
        if answered is not Answered.ANSWERED and not (answered is Answered.LATE and asked.answers == answers):
            raise _refused(answered)
        facts = facts_of(self._context, call.info, call.record, ())
        return Answer(ToolResult(content="The answer is passed on, and the call goes on.", **facts))


def _require_own(call: RunningCall, principal: str, about: str) -> None:
    """Raises `CallError` for an agent that answers for a call of another one, or of another server."""
    asked: dict[str, Any] = json.loads(about)
    owner = asked.get("agent_id")
    is_own = principal == ("" if call.principal == ANONYMOUS else call.principal)
    if is_own and not principal and owner:
        is_own = shown_agent_id(call) == owner
    if asked.get("server") != call.server or not is_own:
        raise CallError(
            ErrorCode.ANSWER_REFUSED,
            "The answer was not passed on: the call belongs to another agent. Only the agent that made a call, and "
            "people with `tarsy-tasks answer`, can answer for it.",
        )


def _refused(why: Answered) -> CallError:
    return CallError(ErrorCode.ANSWER_REFUSED, f"The answer was not passed on: {_REFUSALS[why]}.")
