"""How a call ended, for the agent: a stored answer, or what is known when there is none.

Owns the reading of what Celery stored, and the words for calls that no worker answered.
"""

from typing import Any, cast

from pydantic import ValidationError

from tarsy_tasks.agent.replies import Meta
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolCall, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["cancelled", "no_answer", "not_started", "read_listing", "read_result"]


_REFUSED = frozenset({"ContentDisallowed", "DecodeError", "InvalidTaskError", "NotRegistered"})
"""What a worker says of a message that is no task for it."""


def no_answer(call: ToolCall, timeout_s: float) -> CallError:
    """Nothing came back, and nothing is known."""
    return CallError(
        ErrorCode.NO_ANSWER,
        f"`{call.name}` was not answered within {timeout_s:g} s. The tool may be still running, or may have had its "
        "effect. Look at its effects before you call it again.",
    )


def not_started(call: ToolCall, server: str, timeout_s: float, *, is_served: bool) -> CallError:
    """The call was taken back before it began."""
    if is_served:
        code = ErrorCode.NOT_STARTED
        why = "all workers were busy until then, or had lost Redis. Call again later, or allow more time"
    else:
        code = ErrorCode.NO_WORKER
        why = f"no worker serves MCP server `{server}`. Do without it; an operator has to start one"
    return CallError(
        code,
        f"`{call.name}` was not started within {timeout_s:g} s, and never will be: {why}. The tool did not run.",
    )


def cancelled(call: ToolCall, *, goes_on: bool) -> CallError:
    """The caller took the call back before it began, or waits no longer for one that others wait for."""
    if goes_on:
        text = f"`{call.name}` is no longer waited for here. It goes on for whoever made it with the same key."
    else:
        text = f"`{call.name}` was cancelled before it began. The tool did not run."
    return CallError(ErrorCode.CANCELLED, text)


def read_result(meta: Meta, call: ToolCall) -> ToolResult:
    """The answer that a worker stored, or the one that tells what became of the task."""
    if meta["status"] == "SUCCESS":
        try:
            result = ToolResult.model_validate(meta["result"])
        except ValidationError:
            error = CallError(
                ErrorCode.INTERNAL_ERROR,
                f"The stored answer to `{call.name}` cannot be read: is the worker of another version? "
                "The tool may have run. Look at its effects before you call it again.",
            )
        else:
            # With an idempotency key it may be the answer to a call that a model gave another id.
            return result if result.call_id == call.id else result.model_copy(update={"call_id": call.id})
    elif meta["status"] == "REVOKED":
        error = CallError(
            ErrorCode.CANCELLED,
            f"`{call.name}` was cancelled. It may have begun; then the MCP server was told to stop. "
            "Look at its effects before you call it again.",
        )
    else:
        error = _task_failure(
            meta, f"`{call.name}`", " The tool may have run. Look at its effects before you call it again."
        )
    return ToolResult.from_error(error, call_id=call.id, name=call.name)


def read_listing(meta: Meta) -> ToolListing:
    if meta["status"] != "SUCCESS":
        raise _task_failure(meta, "the list of tools", "")
    try:
        error = meta["result"]["error"]
        if error is not None:
            raise CallError(ErrorCode(error["code"]), error["text"])
        return ToolListing.model_validate(meta["result"])
    except (ValueError, TypeError, KeyError) as error:
        raise CallError(ErrorCode.INTERNAL_ERROR, f"The stored list of tools cannot be read: {error!r:.200}") from None


def _task_failure(meta: Meta, what: str, then: str) -> CallError:
    """What a task that failed in Celery's sense means to the agent; `then` ends the text."""
    result: Any = meta.get("result")
    kind = str(cast("dict[str, Any]", result).get("exc_type")) if isinstance(result, dict) else "no result"
    if kind in _REFUSED:
        return CallError(
            ErrorCode.INVALID_MESSAGE,
            f"The worker refused the message of {what} ({kind}); its log says why. The tool did not run. An operator "
            "has to see whether both are of one version and, if messages are signed, this one by somebody trusted.",
        )
    if kind == "TimeLimitExceeded":
        return CallError(ErrorCode.TIME_LIMIT, f"Celery's hard time limit ended {what}.{then}")
    if kind == "PoisonMessage":
        return CallError(
            ErrorCode.SET_ASIDE,
            f"Each worker that had {what} was lost with it, so it was set aside. It may have run. An operator finds it "
            f"with `tarsy-tasks poison show {meta.get('task_id')}`. Do not call it again in the same way.",
        )
    if kind == "WorkerLostError":
        return CallError(ErrorCode.WORKER_LOST, f"The worker was lost while it ran {what}.{then}")
    return CallError(ErrorCode.INTERNAL_ERROR, f"The worker failed on {what} ({kind}); its log says why.{then}")
