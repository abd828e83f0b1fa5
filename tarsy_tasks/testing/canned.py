"""What a call in a test is answered with, and what is recorded of it.

Owns the forms of answers. How they become a `ToolResult` is in `stub`, how an MCP server gives them in `server`.
"""

import inspect
import json
from collections.abc import Mapping
from enum import Enum
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias

from tarsy_tasks.models import ToolCall
from tarsy_tasks.outcomes import ErrorCode, Outcome

__all__ = ["CODES", "UNANSWERED", "Answer", "InTurn", "RecordedCall", "Unanswered", "as_text", "is_function", "pick"]


class Unanswered(Enum):
    """The type of `UNANSWERED`."""

    UNANSWERED = "unanswered"


UNANSWERED: Final = Unanswered.UNANSWERED
"""No answer comes: the call ends at its deadline, or when it is cancelled."""


class InTurn:
    """Answers one after the other; the last one is given again and again. Threads may share it."""

    def __init__(self, *answers: Any) -> None:
        if not answers:
            raise ValueError("InTurn needs at least one answer")
        self._answers = answers
        self._given = 0
        self._lock = Lock()

    def next(self) -> Any:
        """The next answer."""
        with self._lock:
            index = min(self._given, len(self._answers) - 1)
            self._given += 1
        return self._answers[index]


Answer: TypeAlias = Any
"""A text; or any other JSON value, as structured content; an `Outcome` or `ErrorCode`; a whole `ToolResult`; an error
to raise; `UNANSWERED`; a function of the arguments that returns one of these; several of them `InTurn`."""

CODES: Mapping[Outcome, ErrorCode] = {
    Outcome.TOOL_ERROR: ErrorCode.TOOL_ERROR,
    Outcome.REJECTED: ErrorCode.REFUSED,
    Outcome.UNAVAILABLE: ErrorCode.SERVER_UNAVAILABLE,
    Outcome.UNKNOWN: ErrorCode.SESSION_LOST,
    Outcome.TIMEOUT: ErrorCode.CALL_TIMEOUT,
    Outcome.CANCELLED: ErrorCode.CANCELLED,
}
"""The code of an outcome for which none is given."""


class RecordedCall(NamedTuple):
    """A call that reached the tool.

    Attributes:
        name: `server.tool`, whatever form the model used.
        arguments: As the tool gets them: read, converted and checked as a worker does.
        call: As it was asked for.
    """

    name: str
    arguments: dict[str, Any]
    call: ToolCall


def is_function(answer: Answer) -> bool:
    """Whether an answer is to be called; a class is none."""
    return callable(answer) and not isinstance(answer, type)


def pick(answer: Answer, arguments: dict[str, Any]) -> Any:
    """The answer itself, of a function or a series. Raises `TypeError` for a coroutine function."""
    while isinstance(answer, InTurn) or is_function(answer):
        if inspect.iscoroutinefunction(answer):
            raise TypeError("a stub answers at once: a function of the arguments cannot be a coroutine function")
        answer = answer.next() if isinstance(answer, InTurn) else answer(arguments)
    return answer


def as_text(value: Any) -> str:
    """What a model reads of an answer. Raises `TypeError` for what no answer can be."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise TypeError(f"an answer cannot be a {type(value).__name__} ({error}): give text or a JSON value") from None
