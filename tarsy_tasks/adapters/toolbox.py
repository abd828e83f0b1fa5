"""The tools for one provider together with the executor that runs them.

For clients that return a model's calls to the program: it sends the toolbox as `tools`, passes what the model asked for
to `run`, and appends the messages that `run` returns.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, overload

from tarsy_tasks import AsyncToolExecutor, ToolExecutor, ToolList, ToolResult
from tarsy_tasks.adapters.offer import Offer, OfferedTool, build_offer
from tarsy_tasks.adapters.providers import Provider

__all__ = ["AskedCall", "AsyncToolbox", "Dialect", "Toolbox", "build_toolbox", "read_key"]

Tool = TypeVar("Tool")
Message = TypeVar("Message")


@dataclass(frozen=True)
class AskedCall:
    """What a model asked for, as it wrote it."""

    id: Any
    name: Any
    arguments: Any


class Dialect(ABC, Generic[Tool, Message]):
    """How one API writes tools, calls and results. `Tool` and `Message` are its types for them."""

    provider: Provider

    @abstractmethod
    def write_tools(self, tools: Sequence[OfferedTool]) -> list[Tool]:
        """The tools of a request."""

    def add_tools(self, request: list[Tool], tools: Sequence[OfferedTool]) -> None:
        """Add to the tools of a request."""
        request += self.write_tools(tools)

    @abstractmethod
    def read_calls(self, asked: Any) -> list[AskedCall]:
        """The calls in what a model answered; what is not a call of a function is skipped."""

    @abstractmethod
    def write_results(self, answers: Sequence[tuple[AskedCall, ToolResult]]) -> list[Message]:
        """What to append to the conversation."""


class _BaseToolbox(list[Tool], Generic[Tool, Message]):
    """What both toolboxes are: a list of tools for the request."""

    def __init__(
        self,
        executor: ToolExecutor | AsyncToolExecutor,
        listed: ToolList,
        dialect: Dialect[Tool, Message],
        *,
        search: bool,
    ) -> None:
        self._own_tools = executor.own_tools
        self._offer: Offer = build_offer(listed.behind_search() if search else listed, dialect.provider)
        self._dialect = dialect
        self.left_out = self._offer.left_out
        self.failed_servers = listed.failed_servers
        super().__init__(dialect.write_tools(list(self._offer.tools.values())))

    def prompt_section(self) -> str:
        """For the system prompt: instructions of servers, and which servers failed; empty if there is neither."""
        return self._offer.prompt_section()

    def _read(self, asked: Any) -> tuple[list[AskedCall], list[Any]]:
        calls = self._dialect.read_calls(asked)
        return calls, [self._offer.build_call(call.name, call.arguments, call.id) for call in calls]

    def _write(self, calls: list[AskedCall], results: list[ToolResult]) -> list[Message]:
        if any(result.large is not None for result in results):
            # From the next request on the model can read on.
            self._dialect.add_tools(self, self._offer.add_later(self._own_tools()))
        answers = [
            (call, self._offer.read_result(result, call.name)) for call, result in zip(calls, results, strict=True)
        ]
        return self._dialect.write_results(answers) if answers else []


class Toolbox(_BaseToolbox[Tool, Message]):
    """A list of tools for the request of one provider, and `run` for the calls.

    Attributes:
        left_out: By `server.tool`, why a tool cannot be offered to this provider.
        failed_servers: Why tools of a server are missing, by server.
    """

    def __init__(self, executor: ToolExecutor, dialect: Dialect[Tool, Message], *, search: bool = False) -> None:
        super().__init__(executor, executor.list_tools(), dialect, search=search)
        self._executor = executor

    def run(self, asked: Any, *, context: object = None) -> list[Message]:
        """Run the calls that a model asked for, in parallel.

        A call that fails has an answer too: a text that says what happened.

        Args:
            asked: As the client returned it, or None.
            context: For a summarizer of the executor, as it is: what the agent wants to know, or its conversation.

        Returns:
            What to append to the conversation; empty if there was no call.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        calls, built = self._read(asked)
        return self._write(calls, self._executor.execute_many(built, context=context))


class AsyncToolbox(_BaseToolbox[Tool, Message]):
    """`Toolbox` with `await`."""

    def __init__(
        self, executor: AsyncToolExecutor, listed: ToolList, dialect: Dialect[Tool, Message], *, search: bool = False
    ) -> None:
        super().__init__(executor, listed, dialect, search=search)
        self._executor = executor

    async def run(self, asked: Any, *, context: object = None) -> list[Message]:
        """As `Toolbox.run`."""
        calls, built = self._read(asked)
        return self._write(calls, await self._executor.execute_many(built, context=context))


@overload
def build_toolbox(
    executor: ToolExecutor, dialect: Dialect[Tool, Message], *, search: bool
) -> Toolbox[Tool, Message]: ...
@overload
def build_toolbox(
    executor: AsyncToolExecutor, dialect: Dialect[Tool, Message], *, search: bool
) -> Awaitable[AsyncToolbox[Tool, Message]]: ...
def build_toolbox(
    executor: ToolExecutor | AsyncToolExecutor, dialect: Dialect[Tool, Message], *, search: bool
) -> Toolbox[Tool, Message] | Awaitable[AsyncToolbox[Tool, Message]]:
    """List the tools of an executor for one API; to be awaited for an `AsyncToolExecutor`.

    Args:
        search: Whether the model gets `search_tools` and `call_tool` instead of all.

    Raises:
        BrokerUnavailable: Redis could not be reached.
        ValueError: There are more tools than the provider takes.
    """
    if isinstance(executor, ToolExecutor):
        return Toolbox(executor, dialect, search=search)

    async def build() -> AsyncToolbox[Tool, Message]:
        return AsyncToolbox(executor, await executor.list_tools(), dialect, search=search)

    return build()


def read_key(item: Any, key: str) -> Any:
    """An attribute of what a client returned, or a key of the same as a dict; None if it has none."""
    return cast("Mapping[str, Any]", item).get(key) if isinstance(item, Mapping) else getattr(item, key, None)
