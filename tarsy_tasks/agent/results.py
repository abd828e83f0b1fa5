"""How a call ended, for the agent: the stored answer, or what is known when there is none.

Owns reading what Celery stored, and the texts for calls that no worker answered. The texts for tasks that failed are in
`broker.task_failures`.
"""

import time
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from tarsy_tasks.agent.reply_listener import Meta
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.broker.task_failures import build_task_failure
from tarsy_tasks.errors import CallError, OutcomeError
from tarsy_tasks.methods import say_nothing_of_tools
from tarsy_tasks.models import FrozenModel, ToolCall, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode

__all__ = [
    "NOT_ENQUEUED",
    "answer_with",
    "cancelled",
    "no_answer",
    "not_enqueued",
    "not_started",
    "read_listed",
    "read_listing",
    "read_result",
    "read_structured",
]

NOT_ENQUEUED = "The call was not enqueued and the tool did not run."

T = TypeVar("T", bound=FrozenModel)


def no_answer(call: ToolCall, timeout_s: float) -> CallError:
    """No answer came, and nothing is known about the call."""
    return CallError(
        ErrorCode.NO_ANSWER,
        f"`{call.name}` was not answered within {timeout_s:g} s. The tool may still be running, or may have had its "
        "effect. Check its effects before you call it again.",
    )


def not_enqueued(call: ToolCall, timeout_s: float) -> CallError:
    """Redis could not be reached, so the call was never in a queue."""
    return CallError(
        ErrorCode.NOT_STARTED,
        f"`{call.name}` could not be sent within {timeout_s:g} s, because the message broker was not available. The "
        "tool did not run. Call it again later, or continue without it.",
    )


def not_started(call: ToolCall, server: str, timeout_s: float, *, is_served: bool) -> CallError:
    """The call was withdrawn before it began."""
    if is_served:
        code = ErrorCode.NOT_STARTED
        why = "all workers were busy, or had lost their connection to Redis. Call it again later, or allow more time"
    else:
        code = ErrorCode.NO_WORKER
        why = f"no worker serves MCP server `{server}`. Continue without this server; an operator has to start a worker"
    return CallError(
        code,
        f"`{call.name}` was not started within {timeout_s:g} s and was withdrawn, so the tool did not run: {why}.",
    )


def cancelled(call: ToolCall, *, goes_on: bool) -> CallError:
    """The agent cancelled the call before it began, or no longer waits for a call that others wait for."""
    if goes_on:
        text = (
            f"This call of `{call.name}` was cancelled. An earlier call with the same idempotency key continues: the "
            "tool may run."
        )
    else:
        text = f"`{call.name}` was cancelled before it began. The tool did not run."
    return CallError(ErrorCode.CANCELLED, text)


def answer_with(error: CallError, submitted: SubmittedCall, duration_s: float = 0.0) -> ToolResult:
    """The answer that this process gives to a call."""
    return _build_failure(error, submitted, duration_s=duration_s, answered_at=time.time())


def read_result(meta: Meta, submitted: SubmittedCall) -> ToolResult:
    """The answer that a worker stored, or one that says why there is none."""
    call, answered_at = submitted.call, _answered_at(meta)
    stored: Any = meta.get("result")
    if meta["status"] == "SUCCESS":
        # With an idempotency key it may be the answer to a call that a model gave another id.
        own = {"call_id": call.id, "task_id": submitted.id, "answered_at": answered_at}
        known: Any = {"server": submitted.server, "tool": submitted.tool}
        try:
            return ToolResult.model_validate({**known, **stored, **own})
        except (ValidationError, TypeError):
            error = CallError(
                ErrorCode.INTERNAL_ERROR,
                f"The stored answer to `{call.name}` cannot be read; the worker may have another version. "
                "The tool may have run. Check its effects before you call it again.",
            )
    else:
        error = build_task_failure(meta.get("task_id"), meta["status"], stored, f"`{call.name}`")
    return _build_failure(error, submitted, answered_at=answered_at)


def _build_failure(error: CallError, submitted: SubmittedCall, **facts: Any) -> ToolResult:
    call = submitted.call
    error.text = say_nothing_of_tools(submitted.operation, error.text)
    own = {
        "call_id": call.id,
        "name": call.name,
        "server": submitted.server,
        "tool": submitted.tool,
        "task_id": submitted.id,
        "priority": submitted.priority,
    }
    return ToolResult.from_error(error, **own, **facts)


def read_listed(answer: ToolResult, key: str, kind: type[T]) -> tuple[T, ...]:
    """What the answer to a list holds.

    Raises:
        OutcomeError: The server could not be asked, or the answer cannot be read.
    """
    answer.raise_for_outcome()
    try:
        return tuple(map(kind.model_validate, cast("dict[str, list[Any]]", answer.structured)[key]))
    except (ValidationError, TypeError, KeyError):
        raise _unreadable(answer) from None


def read_structured(answer: ToolResult, kind: type[T]) -> T:
    """The structured value of an answer. Raises as `read_listed`."""
    answer.raise_for_outcome()
    try:
        return kind.model_validate(answer.structured)
    except ValidationError:
        raise _unreadable(answer) from None


def _unreadable(answer: ToolResult) -> OutcomeError:
    text = f"The stored answer to `{answer.name}` cannot be read; the worker may have another version."
    code = ErrorCode.INTERNAL_ERROR
    failed = answer.model_copy(update={"outcome": code.outcome, "error_code": code, "content": text})
    return OutcomeError(text, failed)


def _answered_at(meta: Meta) -> float | None:
    """When Celery stored the answer; None if it does not say so."""
    try:
        found = datetime.fromisoformat(meta["date_done"])
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_listing(meta: Meta) -> ToolListing:
    """The tools of a server. Raises `CallError` if the worker could not list them."""
    if meta["status"] != "SUCCESS":
        raise build_task_failure(meta.get("task_id"), meta["status"], meta.get("result"), "the list of tools", then="")
    try:
        error = meta["result"]["error"]
        if error is not None:
            # A later version may have other codes; the text is what agents see.
            raise CallError(ErrorCode.__members__.get(error["code"], ErrorCode.INTERNAL_ERROR), error["text"])
        return ToolListing.model_validate(meta["result"])
    except (ValueError, TypeError, KeyError) as error:
        raise CallError(ErrorCode.INTERNAL_ERROR, f"The stored list of tools cannot be read: {error!r:.200}") from None
