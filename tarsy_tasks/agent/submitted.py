"""A call from the moment an agent asks for it until it is answered."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tarsy_tasks.agent.event_stream import CallEvents
from tarsy_tasks.agent.idempotency import Claim
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.broker.task_names import CALL_TOOL
from tarsy_tasks.methods import TOOL_CALL
from tarsy_tasks.models import ParkedCall, ToolCall, ToolResult
from tarsy_tasks.priorities import NORMAL, PRIORITIES, Priority
from tarsy_tasks.questions import InputQuestion

__all__ = [
    "Arguments",
    "FunctionOrder",
    "SubmittedCall",
    "build_call",
    "build_calls",
    "check_priority",
    "encode_arguments",
]

_encode = json.JSONEncoder(allow_nan=False).encode

Arguments = Mapping[str, Any] | str | None
"""A mapping, or the text that a model wrote."""


class FunctionOrder(NamedTuple):
    """What functions of the agent get besides the call.

    Attributes:
        context: As the agent gave it with the call.
        loop: Where coroutine functions run; None for synchronous agents.
    """

    context: object
    loop: asyncio.AbstractEventLoop | None


@dataclass(slots=True, eq=False)
class SubmittedCall:
    """A call from when the agent asks for it to its answer. What becomes known later has a default.

    Attributes:
        arguments: As JSON text, or as the model wrote them.
        deadline: Monotonic time after which nobody waits. Progress may move it.
        priority: Its own, or that of its executor.
        server: Id of the server; empty if it is not known.
        tool: Name of the tool, as far as it is known here; of another request its method.
        task: Celery's name of the task.
        id: The task id; empty for a call that was not sent.
        message: The arguments of the task; empty for a call that was not sent.
        session: Name of its isolated session; empty if it has none.
        claim: Of the call's idempotency key, if it has one.
        sent_at: In seconds since the epoch by the clock of Redis.
        is_enqueued: Redis has confirmed it.
        has_ended: It has its answer, or an error; what comes later is ignored.
        is_recorded: An entry of the audit was written for it.
        sent: Done when it is enqueued, or with the error why it could not be; None if nobody waits for that.
        answered: Done with its answer, or with the error why it could not be enqueued.
        context: The context variables of the agent's code that asked for it.
        hear: Called with the stored answer; None before one is expected.
        sending: The task that sends it, if it could not be sent at once; later the one that summarizes its result.
        timer: Ends it at its deadline.
        events: Hears what happens to it while it runs; None if nobody listens.
        order: For functions of the agent; None if the executor has none.
        is_local: Only such a function ends it now: it runs in this process, or its answer is being summarized.
        parks: Its agent also waits while it is parked.
        parked: Why it waited when it was parked last; None if it was not.
        watching: Done when it is parked next, or again; each waiter adds one.
        asked: Digest of the questions that the agent's `on_input` was called with last.
        replied: Digest of those that were answered last.
        returned: When `take_questions` has returned some last, why the call waited then.
        is_attached: Another executor sent it, and this one only waits for it.
    """

    call: ToolCall
    arguments: str | None
    deadline: float
    priority: Priority = NORMAL
    server: str = ""
    tool: str = ""
    task: str = CALL_TOOL
    id: str = ""
    message: tuple[Any, ...] = ()
    session: str = ""
    claim: Claim | None = None
    sent_at: float | None = None
    is_enqueued: bool = False
    has_ended: bool = False
    is_recorded: bool = False
    sent: "Future[None] | None" = None
    answered: "Future[ToolResult]" = field(default_factory=Future["ToolResult"])
    context: Context = field(default_factory=copy_context)
    hear: Callable[[Mapping[str, Any]], None] | None = None
    sending: "asyncio.Task[Any] | None" = None
    timer: asyncio.TimerHandle | None = None
    events: CallEvents | None = None
    order: FunctionOrder | None = None
    is_local: bool = False
    parks: bool = False
    parked: ParkedCall | None = None
    is_attached: bool = False
    watching: "list[Future[None]]" = field(default_factory=list["Future[None]"])
    asked: str = ""
    replied: str = ""
    returned: ParkedCall | None = None

    def confirm(self) -> None:
        """Redis has it in its queue."""
        self.is_enqueued = True
        if self.sent is not None and not self.sent.done():
            self.sent.set_result(None)

    def end(self, answer: ToolResult) -> None:
        """End it with its answer, unless it has ended before."""
        if self._finish():
            self.confirm()
            self.answered.set_result(answer)
        if self.events is not None:
            self.events.end()  # last: after the last event the answer is there

    def fail(self, error: BaseException) -> None:
        """End it with an error, because it could not be enqueued, unless it has ended before."""
        if self._finish():
            self.answered.set_exception(error)
            if self.sent is not None and not self.sent.done():
                self.sent.set_exception(error)
        if self.events is not None:
            self.events.end()

    def _finish(self) -> bool:
        self.stop_timer()
        self.hear = None  # which refers to the call: it would be left to the garbage collector
        has_ended, self.has_ended = self.has_ended, True
        return not has_ended

    def stop_timer(self) -> None:
        """Stop the timer, so that its deadline no longer ends it."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def operation(self) -> str:
        """What it asks of the MCP server; as in the audit."""
        return TOOL_CALL if self.task == CALL_TOOL else self.tool

    @property
    def is_shared(self) -> bool:
        """An earlier call of the same agent has this idempotency key: this one only waits for its answer."""
        return self.claim is not None and not self.claim.is_new

    @property
    def questions(self) -> tuple[InputQuestion, ...]:
        """What its server asks and nobody has answered here."""
        parked = self.parked
        return () if parked is None or parked.digest == self.replied else parked.questions

    def take_questions(self) -> tuple[InputQuestion, ...]:
        """`questions`, for the agent: it answers these next, also if its server asks something else by then."""
        parked = self.parked
        if parked is None or parked.digest == self.replied or not parked.questions:
            return ()
        self.returned = parked
        return parked.questions

    @property
    def shown(self) -> ParkedCall | None:
        """What the agent answers: the questions that it has taken last, unless they were answered here."""
        returned = self.returned
        return self.parked if returned is None or returned.digest == self.replied else returned

    def seconds_left(self) -> float:
        return seconds_until(self.deadline)


def build_call(call: ToolCall | str, arguments: Arguments = None, priority: Priority | None = None) -> ToolCall:
    """The call that an executor's method was asked for: a `ToolCall`, or a name and arguments, and its priority."""
    if priority is not None:
        check_priority(priority)
    if not isinstance(call, ToolCall):
        return ToolCall(name=call, arguments=arguments, priority=priority)  # pyright: ignore[reportArgumentType] - pydantic copies mappings
    if arguments is not None:
        raise ValueError("arguments were given twice: put them into the ToolCall, or pass a name and arguments")
    return call if priority is None else call.model_copy(update={"priority": priority})


def check_priority(priority: str) -> None:
    """Raises `ValueError`, with the priorities that there are, for any other."""
    if priority not in PRIORITIES:
        raise ValueError(f"priority is {priority!r}; it must be one of {', '.join(PRIORITIES)}")


def build_calls(calls: Iterable[ToolCall | tuple[str, Arguments]]) -> list[ToolCall]:
    """The calls that `execute_many` was asked for."""
    built: list[ToolCall] = []
    for each in calls:
        if isinstance(each, ToolCall):
            built.append(each)
        elif isinstance(each, (tuple, list)) and len(each) == 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            built.append(build_call(*each))
        else:
            raise ValueError(f"each call must be a ToolCall or a pair (name, arguments), not {type(each).__name__}")
    return built


def encode_arguments(call: ToolCall) -> str | None:
    """The arguments as text, because kombu's own JSON changes objects that have a key `__type__`."""
    if call.arguments is None or isinstance(call.arguments, str):
        return call.arguments
    try:
        return _encode(call.arguments)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments of {call.name} contain a value that JSON does not have: {error}") from error
