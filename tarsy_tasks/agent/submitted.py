"""A call from the moment an agent asks for it until it is answered."""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tarsy_tasks.agent.idempotency import Claim
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.models import ToolCall, ToolResult

__all__ = ["Arguments", "SubmittedCall", "build_call", "build_calls", "encode_arguments"]

Arguments = Mapping[str, Any] | str | None
"""A mapping, or the text that a model wrote."""


@dataclass(slots=True, eq=False)
class SubmittedCall:
    """A call on its way. What is not known before it is sent has a default.

    Attributes:
        arguments: As JSON text, or as the model wrote them.
        deadline: Monotonic time after which nobody waits.
        server: Id of the server; empty if it is not known.
        tool: Name of the tool, as far as it is known here.
        id: The task id; empty for a call that was not sent.
        claim: Of the call's idempotency key, if it has one.
        sent_at: In seconds since the epoch by the clock of Redis.
        is_recorded: The audit has its entry.
    """

    call: ToolCall
    arguments: str | None
    deadline: float
    server: str = ""
    tool: str = ""
    future: "Future[ToolResult]" = field(default_factory=Future["ToolResult"])
    id: str = ""
    claim: Claim | None = None
    sent_at: float | None = None
    is_recorded: bool = False

    @property
    def is_shared(self) -> bool:
        """Another agent's call has the same idempotency key and was first: this one only waits for its answer."""
        return self.claim is not None and not self.claim.is_new

    def seconds_left(self) -> float:
        return seconds_until(self.deadline)


def build_call(call: ToolCall | str, arguments: Arguments = None) -> ToolCall:
    """The call that an executor's method was asked for: a `ToolCall`, or a name and arguments."""
    if not isinstance(call, ToolCall):
        return ToolCall(name=call, arguments=arguments)  # pyright: ignore[reportArgumentType] - pydantic copies mappings
    if arguments is not None:
        raise ValueError("arguments were given twice: a ToolCall has its own")
    return call


def build_calls(calls: Iterable[ToolCall | tuple[str, Arguments]]) -> list[ToolCall]:
    """The calls that `execute_many` was asked for."""
    built: list[ToolCall] = []
    for each in calls:
        if isinstance(each, ToolCall):
            built.append(each)
        elif isinstance(each, (tuple, list)) and len(each) == 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            built.append(build_call(*each))
        else:
            raise ValueError(f"each call is a ToolCall or a pair (name, arguments), not {type(each).__name__}")
    return built


def encode_arguments(call: ToolCall) -> str | None:
    """The arguments as text, because kombu's own JSON changes objects that have a key `__type__`."""
    if call.arguments is None or isinstance(call.arguments, str):
        return call.arguments
    try:
        return json.dumps(call.arguments, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments of {call.name} hold something that is not JSON: {error}") from error
