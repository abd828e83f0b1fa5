"""What it means for a call that its task has no result: Celery's failures as error codes.

Owns the words, which an agent is told and the audit keeps. How a call ends that has a result, the result itself says.
"""

from typing import Any, cast

from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["LOOK_FIRST", "build_task_failure"]

_REFUSED = frozenset({"ContentDisallowed", "DecodeError", "InvalidTaskError", "NotRegistered"})
"""What a worker says of a message that is no task for it."""
LOOK_FIRST = " The tool may have run. Look at its effects before you call it again."


def build_task_failure(task_id: Any, status: str, result: Any, what: str, then: str = LOOK_FIRST) -> CallError:
    """The error that a task stands for which Celery says did not succeed.

    Args:
        status: Celery's state.
        result: What was stored with it: an exception as Celery encodes it.
        what: What the task did, in words.
        then: What to do, at the end of the text.
    """
    if status == "REVOKED":
        return CallError(
            ErrorCode.CANCELLED,
            f"{what} was cancelled. It may have begun; then the MCP server was told to stop. "
            "Look at its effects before you call it again.",
        )
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
            f"with `tarsy-tasks poison show {task_id}`. Do not call it again in the same way.",
        )
    if kind == "WorkerLostError":
        return CallError(ErrorCode.WORKER_LOST, f"The worker was lost while it ran {what}.{then}")
    return CallError(ErrorCode.INTERNAL_ERROR, f"The worker failed on {what} ({kind}); its log says why.{then}")
