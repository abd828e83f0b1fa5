"""Interceptors: code that every call passes on its way through a worker.

Owns the interface, for the package's own interceptors and for yours. An interceptor sees the call, and by `proceed()`
lets it go on to the next one and in the end to the MCP server; it may refuse the call, answer it, delay it, or change
what was answered:

    class WorkingHours:
        stage = "call"

        async def __call__(self, call: Call, proceed: Proceed) -> Ending:
            if call.tool.startswith("delete_") and is_night():
                raise CallRefused("Deletions are not allowed at night. Call again after 7 am.")
            return await proceed()

It is installed by an entry point in the group `tarsy_tasks.interceptors` and listed by its name in the configuration
(docs/interceptors.md). This module imports nothing of the worker.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, Protocol, TypeVar

from tarsy_tasks.errors import CallRefused
from tarsy_tasks.models import CallInfo, ToolDefinition, ToolResult
from tarsy_tasks.priorities import NORMAL, Priority
from tarsy_tasks.questions import InputQuestion

__all__ = [
    "ANONYMOUS",
    "Answer",
    "Call",
    "CallRefused",
    "Dropped",
    "Ending",
    "Interceptor",
    "Parked",
    "Proceed",
    "Requeued",
    "Stage",
]

T = TypeVar("T")

ANONYMOUS = "anonymous"
"""The principal of all whose name is not verified."""

Stage = Literal["message", "call", "attempt"]
"""When an interceptor is asked: once per message, before its tool and arguments are read; once per call, with them; or
once per attempt to send it.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The call has a result: a success or an error, for the agent."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Requeued:
    """The call goes back to its queue after `after_s` seconds, for any worker; it was not sent, or may be sent again.
    Until then it takes no slot."""

    reason: str
    after_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.after_s < inf:
            raise ValueError(f"after_s is {self.after_s!r}; it must be a number of seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nobody needs an answer: the call was answered or withdrawn elsewhere."""

    reason: str


@dataclass(frozen=True, slots=True)
class Parked:
    """The call waits for a person or a machine, without a slot. An interceptor of yours may get this from `proceed()`,
    and passes it on; only the package's own park calls. When the call goes on, it passes all interceptors again.

    Attributes:
        reason: Why it waits: `approval`, and it was not sent; `input_required`: the MCP server has asked something; or
            `task`: it has answered with a task.
        lasts_s: How long it waits at most.
        digest: Of what is asked.
        needs: How many people have to approve it.
        about: What people see of it, masked; JSON.
        questions: What its server has asked, masked.
        input_round: What its server gave for itself with them; a hash in Redis that only workers and operators read.
        keeps: What is known when it goes on; not shown to anybody.
        poll_s: Of a task: in how many seconds the server is asked about it.
    """

    reason: str
    lasts_s: float
    digest: str
    needs: int
    about: dict[str, Any]
    keeps: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    poll_s: float = 0.0
    questions: tuple[InputQuestion, ...] = ()
    input_round: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


Ending = Answer | Parked | Requeued | Dropped
"""How a call ends in this worker."""
Proceed = Callable[[], Awaitable[Ending]]
"""Goes on with the call. It raises `tarsy_tasks.errors.CallError` for a call that has no result."""


@dataclass(slots=True, eq=False)
class Call:
    """One call, as interceptors see it.

    Attributes:
        id: The task id.
        operation: What the call asks of the MCP server: `tool_call`, or the method of another request, such as
            `resources/read` (docs/resources.md).
        server: Id of the MCP server.
        tool: Name of the tool; from the stage `call` on as the server lists it. Of another request its method.
        info: Who asks, as the message claims it: `call_id`, `agent_id`, `run_id`, `timeout_s`, `deadline`.
        principal: Who asks, verified: the bound agent whose queue the message came from, else the subject of the
            certificate that signed it, else `anonymous` (docs/limits.md).
        queue: The queue that the message came from; empty for a task that no message brought.
        priority: By which the call waited: `interactive`, `normal` or `batch`.
        delivery_count: How often a worker has taken the message.
        raw_arguments: As the message has them: an object, or the text that a model wrote.
        arguments: From the stage `call` on, what is sent. An interceptor may replace or change it; what is sent is what
            the audit shows.
        definition: From the stage `call` on, the tool's definition; None for other requests.
        deadline: When the call has to have ended, in seconds of `time.monotonic()`.
        attempts: How often it was sent so far.
        may_have_run: An earlier attempt or delivery was sent, and nobody can say whether the tool ran.
        state: For interceptors, to keep something from one stage to the next; use your name as the key.
    """

    id: str
    operation: str
    server: str
    tool: str
    info: CallInfo
    queue: str
    delivery_count: int
    raw_arguments: Any
    run_blocking: "RunBlocking"
    """Runs a function that blocks in a thread, away from the event loop of all calls."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    definition: ToolDefinition | None = None
    deadline: float = float("inf")
    attempts: int = 0
    may_have_run: bool = False
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    principal: str = ANONYMOUS
    priority: Priority = NORMAL


class RunBlocking(Protocol):
    """Runs a function that blocks in a thread."""

    def __call__(self, function: Callable[..., T], /, *args: Any) -> Awaitable[T]: ...


class Interceptor(Protocol):
    """One interceptor.

    It runs on the event loop that all calls of the worker share, so it must not block for more than a few milliseconds:
    await, or use `call.run_blocking`. A worker logs the name of one that blocks.

    It is called concurrently for many calls. It may raise `CallRefused` or another
    `tarsy_tasks.errors.CallError`; anything else that it raises ends the call with `INTERCEPTOR_FAILED`, and the text
    names it. A second `proceed()` sends the call again; where the call was sent and is not harmless to repeat, that
    raises instead.

    Attributes:
        name: For the configuration, logs and error texts: that of its entry point, `[a-z0-9_-]+`. A worker sets it.
        stage: When it is asked.
    """

    name: str
    stage: Stage

    async def __call__(self, call: Call, proceed: Proceed, /) -> Ending: ...
