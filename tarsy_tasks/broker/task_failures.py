"""Celery's failures as error codes: how a call ended whose task has no result.

Owns the texts that the agent and the audit get.
"""

from typing import Any, cast

from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["LOOK_FIRST", "build_task_failure"]

_REFUSED = frozenset({"ContentDisallowed", "DecodeError", "InvalidTaskError", "NotRegistered"})
"""How a worker refuses a message that it cannot execute."""
LOOK_FIRST = " The tool may have run. Check its effects before you call it again."


def build_task_failure(task_id: Any, status: str, result: Any, what: str, then: str = LOOK_FIRST) -> CallError:
    """The error for a task that Celery did not complete.

    Args:
        status: Celery's state.
        result: What was stored with it: an exception as Celery encodes it.
        what: What the task did, in words.
        then: The end of the text: what to do.
    """
    if status == "REVOKED":
        return CallError(
            ErrorCode.CANCELLED,
            f"{what} was cancelled. If it had begun, the MCP server was asked to cancel it. "
            "Check its effects before you call it again.",
        )
    kind = str(cast("dict[str, Any]", result).get("exc_type")) if isinstance(result, dict) else "no result"
    if kind in _REFUSED:
        return CallError(
            ErrorCode.INVALID_MESSAGE,
            f"The worker refused the message of {what} ({kind}). The tool did not run. Do not call it again until an "
            "operator has found the reason in the worker's log, such as different versions or an untrusted signature.",
        )
    if kind == "TimeLimitExceeded":
        return CallError(ErrorCode.TIME_LIMIT, f"Celery's hard time limit ended {what}.{then}")
    if kind == "PoisonMessage":
        return CallError(
            ErrorCode.SET_ASIDE,
            f"Every worker that took {what} was lost, so the call is now a dead letter. The tool may have run. Do not "
            f"repeat the same call. An operator can inspect it with `tarsy-tasks dead-letters show {task_id}`.",
        )
    if kind == "WorkerLostError":
        return CallError(ErrorCode.WORKER_LOST, f"The worker was lost while it ran {what}.{then}")
    return CallError(ErrorCode.INTERNAL_ERROR, f"The worker failed on {what} ({kind}); the reason is in its log.{then}")
