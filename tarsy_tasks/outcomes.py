"""How a call can end, and a stable word for each cause.

Owns the two vocabularies that agents, operators and models see in each answer; it does not know how an outcome comes
about. A code belongs to exactly one outcome, so an error names only its code.
"""

from enum import StrEnum
from typing import Self

__all__ = ["ErrorCode", "Outcome"]


class Outcome(StrEnum):
    """How a call ended. All but `OK` are errors."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The tool, or the MCP server for it, answered with an error. The tool may have run."""
    REJECTED = "rejected"
    """Not executed, and most often not even sent: the name, the arguments or the message is wrong, the call is not
    allowed (not selected, refused by an interceptor, over a limit, a changed tool, the wrong queue, a conflict of
    idempotency keys), or the MCP server asks for input and gets none."""
    UNAVAILABLE = "unavailable"
    """Not executed: no worker or MCP server could run it in time, the audit could not be written, or an interceptor
    failed."""
    UNKNOWN = "unknown"
    """The session or the worker was lost after the call was sent, or the worker failed: the tool may have run."""
    TIMEOUT = "timeout"
    """No answer in time: the tool may have run."""
    CANCELLED = "cancelled"
    """Ended by the caller, an operator or a shutdown: the tool may have run."""


class ErrorCode(StrEnum):
    """One stable word for the cause of a failed call. Its `outcome` is the `Outcome` that it belongs to."""

    outcome: Outcome

    def __new__(cls, word: str, outcome: Outcome) -> Self:
        code = str.__new__(cls, word)
        code._value_ = word
        code.outcome = outcome
        return code

    INVALID_NAME = "INVALID_NAME", Outcome.REJECTED
    UNKNOWN_SERVER = "UNKNOWN_SERVER", Outcome.REJECTED
    UNKNOWN_TOOL = "UNKNOWN_TOOL", Outcome.REJECTED
    TOOL_NOT_SELECTED = "TOOL_NOT_SELECTED", Outcome.REJECTED
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS", Outcome.REJECTED
    RESULT_NOT_FOUND = "RESULT_NOT_FOUND", Outcome.REJECTED
    INVALID_MESSAGE = "INVALID_MESSAGE", Outcome.REJECTED
    WRONG_QUEUE = "WRONG_QUEUE", Outcome.REJECTED
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT", Outcome.REJECTED
    TOOL_CHANGED = "TOOL_CHANGED", Outcome.REJECTED
    REFUSED = "REFUSED", Outcome.REJECTED
    NOT_PERMITTED = "NOT_PERMITTED", Outcome.REJECTED
    ARGUMENTS_NOT_PERMITTED = "ARGUMENTS_NOT_PERMITTED", Outcome.REJECTED
    RATE_LIMITED = "RATE_LIMITED", Outcome.REJECTED
    TASK_REQUIRED = "TASK_REQUIRED", Outcome.REJECTED
    NO_CREDENTIAL = "NO_CREDENTIAL", Outcome.REJECTED
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED", Outcome.REJECTED
    APPROVAL_DENIED = "APPROVAL_DENIED", Outcome.REJECTED
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED", Outcome.REJECTED
    TOO_MANY_PARKED = "TOO_MANY_PARKED", Outcome.REJECTED
    INPUT_REQUIRED = "INPUT_REQUIRED", Outcome.REJECTED
    INPUT_EXPIRED = "INPUT_EXPIRED", Outcome.REJECTED
    ANSWER_REFUSED = "ANSWER_REFUSED", Outcome.REJECTED

    TOOL_ERROR = "TOOL_ERROR", Outcome.TOOL_ERROR
    SERVER_ERROR = "SERVER_ERROR", Outcome.TOOL_ERROR
    INVALID_RESULT = "INVALID_RESULT", Outcome.TOOL_ERROR
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE", Outcome.TOOL_ERROR
    TOO_MANY_QUESTIONS = "TOO_MANY_QUESTIONS", Outcome.TOOL_ERROR
    TASK_INPUT_REQUIRED = "TASK_INPUT_REQUIRED", Outcome.TOOL_ERROR

    DEADLINE_PASSED = "DEADLINE_PASSED", Outcome.UNAVAILABLE
    NOT_STARTED = "NOT_STARTED", Outcome.UNAVAILABLE
    NO_WORKER = "NO_WORKER", Outcome.UNAVAILABLE
    SERVER_UNAVAILABLE = "SERVER_UNAVAILABLE", Outcome.UNAVAILABLE
    SERVER_MISCONFIGURED = "SERVER_MISCONFIGURED", Outcome.UNAVAILABLE
    TOO_MANY_SESSIONS = "TOO_MANY_SESSIONS", Outcome.UNAVAILABLE
    SERVER_REMOVED = "SERVER_REMOVED", Outcome.UNAVAILABLE
    SERVER_REFUSED = "SERVER_REFUSED", Outcome.UNAVAILABLE
    INPUT_STATE_REFUSED = "INPUT_STATE_REFUSED", Outcome.UNAVAILABLE
    AUDIT_UNAVAILABLE = "AUDIT_UNAVAILABLE", Outcome.UNAVAILABLE
    INTERCEPTOR_FAILED = "INTERCEPTOR_FAILED", Outcome.UNAVAILABLE

    SESSION_LOST = "SESSION_LOST", Outcome.UNKNOWN
    WORKER_LOST = "WORKER_LOST", Outcome.UNKNOWN
    WORKER_STOPPED = "WORKER_STOPPED", Outcome.UNKNOWN
    TASK_LOST = "TASK_LOST", Outcome.UNKNOWN
    SET_ASIDE = "SET_ASIDE", Outcome.UNKNOWN
    INTERNAL_ERROR = "INTERNAL_ERROR", Outcome.UNKNOWN

    CALL_TIMEOUT = "CALL_TIMEOUT", Outcome.TIMEOUT
    TIME_LIMIT = "TIME_LIMIT", Outcome.TIMEOUT
    NO_ANSWER = "NO_ANSWER", Outcome.TIMEOUT

    CANCELLED = "CANCELLED", Outcome.CANCELLED
