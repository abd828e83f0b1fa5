"""How a call ended, for the agent: a stored answer, or what is known when there is none.

Owns the reading of what Celery stored, and the words for calls that no worker answered. Those for tasks that failed
are in `task_failures`.
"""

from pydantic import ValidationError

from tarsy_tasks.agent.reply_listener import Meta
from tarsy_tasks.broker.task_failures import build_task_failure
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolCall, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["cancelled", "no_answer", "not_started", "read_listing", "read_result"]


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
    else:
        error = build_task_failure(meta.get("task_id"), meta["status"], meta.get("result"), f"`{call.name}`")
    return ToolResult.from_error(error, call_id=call.id, name=call.name)


def read_listing(meta: Meta) -> ToolListing:
    if meta["status"] != "SUCCESS":
        raise build_task_failure(meta.get("task_id"), meta["status"], meta.get("result"), "the list of tools", then="")
    try:
        error = meta["result"]["error"]
        if error is not None:
            raise CallError(ErrorCode(error["code"]), error["text"])
        return ToolListing.model_validate(meta["result"])
    except (ValueError, TypeError, KeyError) as error:
        raise CallError(ErrorCode.INTERNAL_ERROR, f"The stored list of tools cannot be read: {error!r:.200}") from None
