"""One call in this worker: what interceptors see of it, and what the worker's own code needs besides.

Owns also the checks of a message before it becomes a call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.parked_calls import ParkedRecord
from tarsy_tasks.errors import CallError, ToolNameError
from tarsy_tasks.interceptors import Call
from tarsy_tasks.methods import ANSWER_INPUT, CLOSE_SESSION, METHODS, TOOL_CALL
from tarsy_tasks.models import CallInfo, ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import LONGEST_NAME
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.event_feed import EventFeed
from tarsy_tasks.worker.calls.sent_round import SentRound
from tarsy_tasks.worker.reporting.call_record import CallRecord
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connection_errors import removed_error
from tarsy_tasks.worker.sessions.session import NO_ANSWERS

__all__ = ["RunningCall", "ignore_end", "parse_message", "require_connection", "require_method"]


def ignore_end(_: Exception) -> None:
    """The `end` of a call that does not run."""


@dataclass(slots=True, eq=False, kw_only=True)
class RunningCall(Call):
    """A call, with what only the worker's own code needs.

    Attributes:
        connection: The connection to its server.
        delivery: Its delivery; None for a task that is called directly, or came over a kombu transport that is not the
            package's: then there is no entry in the in-flight table.
        repairs: What was repaired in the arguments, in words for the result.
        may_replay: It may be sent again although it may have run.
        owner: Who begins it, in the begin marker; empty before.
        end: Ends it now, with the error that says why; see `CallExecution.end`.
        is_closed: Nothing may be sent any more: the call has ended.
        notes: What is not as it should be with its answer, unmasked; see `ToolResult.notes`.
        is_large: Its result may be large; only known where that is cut.
        built: The result that `content` built and masked.
        feed: Takes its events to its agent; None if nobody listens.
        parked: What was decided of it, if it was parked before; only of a call that may be parked.
        approved: Of a call that a person has approved, the digest of what; empty: none had to.
        is_asked: Its session waits for an answer to what its server asks.
        sent_round: What its server is answered when it is sent, if that has asked something.
        fresh_s: How long its server lets the answer be kept, in seconds; None if it does not say.
    """

    connection: ServerConnection
    delivery: Delivery | None
    record: CallRecord
    repairs: tuple[str, ...] = ()
    may_replay: bool = False
    owner: str = ""
    end: Callable[[Exception], None] = ignore_end
    is_closed: bool = False
    notes: tuple[str, ...] = ()
    is_large: bool = False
    built: ToolResult | None = None
    feed: EventFeed | None = None
    parked: ParkedRecord | None = None
    approved: str = ""
    is_asked: bool = False
    sent_round: SentRound | None = None
    fresh_s: float | None = None

    @property
    def answers(self) -> Mapping[str, Any]:
        """What its server is answered when it is sent, as arguments of the SDK."""
        return NO_ANSWERS if self.sent_round is None else self.sent_round.arguments()

    @property
    def task(self) -> str:
        """The server's task that it waits for, after it was sent; empty: none."""
        return "" if self.parked is None else self.parked.task

    @property
    def is_cut_if_large(self) -> bool:
        """Whether its sender can read the rest of a result that is cut; for others it is whole, as far as may be."""
        return self.info.reads_results and self.operation == TOOL_CALL and self.delivery is not None


def parse_message(arguments: tuple[Any, ...]) -> CallInfo:
    """What a message says besides the arguments of the tool; any producer may have written it.

    Args:
        arguments: Those of the task: server, tool, arguments, call, and anything else that the message has.

    Raises:
        CallError: It is not the message of a call; the text says what is wrong.
    """
    server, tool, _, info, *more = arguments
    if more:
        raise _invalid_message("it has arguments besides `server`, `tool`, `arguments` and `call`")
    for what, value in (("server", server), ("tool", tool)):
        if not isinstance(value, str) or not value:
            raise _invalid_message(f"its argument `{what}` must be a string, not {type(value).__name__}")
        # Whatever compares names, on the loop of all calls, may take its time for each character.
        if len(value) > LONGEST_NAME:
            raise _invalid_message(f"its argument `{what}` has more than {LONGEST_NAME} characters")
    try:
        return CallInfo.model_validate({} if info is None else info)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(["call", *map(str, first["loc"])])
        raise _invalid_message(f"its argument `{place}` is wrong: {first['msg']}") from None


def require_method(method: str, info: CallInfo) -> None:
    """Raises `CallError` for a method that is not one of `METHODS`, nor about the isolated session of the call."""
    if method not in METHODS and method != ANSWER_INPUT and not (method == CLOSE_SESSION and info.session is not None):
        raise _invalid_message(f"its argument `method` is none of {', '.join(sorted(METHODS))}")


def require_connection(context: WorkerContext, server: str) -> ServerConnection:
    """The connection to a server.

    Raises:
        ToolNameError: This worker does not serve it.
        CallError: It did, until the server was removed.
    """
    connection = context.connections.get(server)
    if connection is None:
        if server in context.connections.removed:
            raise removed_error(server)
        raise ToolNameError(
            ErrorCode.UNKNOWN_SERVER,
            f"This worker serves no MCP server `{server}`. The tool did not run. "
            f"Served: {', '.join(sorted(context.connections)) or 'none'}.",
        )
    return connection


def _invalid_message(what: str) -> CallError:
    return CallError(
        ErrorCode.INVALID_MESSAGE,
        f"The message of this call is not valid: {what}. The tool did not run. "
        "The program that sent it has to be fixed.",
    )
