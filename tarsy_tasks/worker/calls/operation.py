"""What a call asks of an MCP server, as the rest of a call's path sees it."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tarsy_tasks.models import ToolResult
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["AnsweredByInterceptor", "Operation", "Received"]

T = TypeVar("T")


@dataclass(frozen=True)
class Received(Generic[T]):
    """What a server answered; it can be used."""

    result: T
    is_error: bool = False


class Operation(Protocol):
    """One kind of request. All of its methods run on the session loop.

    Attributes:
        name: That of `Call.operation`.
    """

    name: str

    async def prepare(self, call: RunningCall) -> None:
        """Check what the call asks for, and set `definition`, `arguments`, `may_replay` and `repairs`.

        Raises:
            CallError: It cannot be sent.
        """
        ...

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> Any:
        """One attempt; raises what the SDK raises. What it returns has an attribute `is_error`."""
        ...

    async def build_result(self, call: RunningCall, found: Any) -> ToolResult:
        """The answer, masked."""
        ...


@dataclass
class AnsweredByInterceptor:
    """An operation that is never sent: an interceptor of the stage `message` answers it."""

    name: str

    async def prepare(self, call: RunningCall) -> None:
        raise NotImplementedError(call.operation)

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> Any:
        raise NotImplementedError(call.operation)

    async def build_result(self, call: RunningCall, found: Any) -> ToolResult:
        raise NotImplementedError(call.operation)
