"""`ToolExecutor`: what a synchronous agent holds.

Owns blocking. What a call is and how it travels stands in `calls`; `async_executor` is the same with `await`.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tarsy_tasks.agent.dispatcher import WITHDRAW_S, CallDispatcher, SubmittedCall
from tarsy_tasks.agent.tool_list import Catalogue
from tarsy_tasks.errors import ResultTimeout, TarsyTasksError
from tarsy_tasks.models import ToolCall, ToolDefinition, ToolListing, ToolResult

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["PendingCall", "ToolExecutor"]


class PendingCall:
    """A call that was submitted.

    Attributes:
        id: The task id, as Flower shows it; empty for a call that was rejected before it was sent.
        call: The call itself.
    """

    def __init__(self, calls: CallDispatcher, sent: SubmittedCall) -> None:
        self.id = sent.id
        self.call = sent.call
        self._calls = calls
        self._sent = sent

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._sent.future.done()

    def result(self, timeout: float | None = None) -> ToolResult:
        """Wait for the answer.

        Args:
            timeout: Seconds to wait; None for as long as the executor's `timeout_s` allows since the call was
                submitted.

        Raises:
            ResultTimeout: `timeout` ran out before the call's own deadline did; the call goes on.
        """
        left_s = self._sent.seconds_left()
        try:
            return self._sent.future.result(left_s if timeout is None else min(timeout, left_s))
        except TimeoutError:
            if timeout is not None and self._sent.seconds_left():
                raise ResultTimeout(f"no answer to `{self.call.name}` within {timeout:g} s; the call goes on") from None
        ending = self._calls.withdraw_later(self._sent)
        try:
            return ending.result(WITHDRAW_S)
        except TimeoutError:
            return self._calls.no_answer(self._sent)

    def cancel(self) -> None:
        """Cancel the call, wherever it is. `result` then tells how it ended.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        self._calls.cancel(self._sent)


class ToolExecutor:
    """Runs the tool calls of one agent through the workers.

    Args:
        servers: Ids of the MCP servers that this agent may call; None for all that are configured.
        tool_filter: For some servers, the tools to offer and to accept; an empty list means all. A selection for the
            model, not security.
        timeout_s: Seconds from submitting a call until it is answered, whatever happens.
        agent_id: Who asks, for the trail.
        run_id: In which run, for the trail.
        app: A Celery application on the workers' Redis. None: the package's own, with Redis from `TARSY_REDIS_URL`.

    Raises:
        ValueError: A server that is not configured, a filter for a server that is not selected, or a bad `timeout_s`.
        ConfigError: The configuration is missing or wrong.
    """

    def __init__(
        self,
        servers: Collection[str] | None = None,
        *,
        tool_filter: Mapping[str, Collection[str]] | None = None,
        timeout_s: float = 60.0,
        agent_id: str | None = None,
        run_id: str | None = None,
        app: "Celery | None" = None,
    ) -> None:
        self._calls = CallDispatcher(
            servers=servers, tool_filter=tool_filter, timeout_s=timeout_s, agent_id=agent_id, run_id=run_id, app=app
        )
        self._catalogue = Catalogue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the tools. Calls that were submitted go on; connections belong to the process, not to one executor."""
        self._catalogue = Catalogue()

    def list_tools(self) -> list[ToolDefinition]:
        """The selected tools of all servers, as their sessions know them now. Servers that do not answer are in
        `failed_servers`.

        Raises:
            BrokerUnavailable: Redis could not be reached within the deadline.
        """
        deadline = self._calls.deadline()
        listings = [self._calls.send_listing(server, deadline) for server in self._calls.servers]
        answers: list[tuple[str, ToolListing | Exception]] = []
        for listing in listings:
            try:
                answers.append((listing.server, listing.future.result(max(0.0, deadline - time.monotonic()))))
            except (TarsyTasksError, TimeoutError) as error:
                answers.append((listing.server, error))
                if isinstance(error, TimeoutError):
                    self._calls.drop_listing(listing)
        self._catalogue.update(self._calls, answers)
        return self._catalogue.tools

    def failed_servers(self) -> dict[str, str]:
        """Why the tools of a server are missing, by server; lists the tools if that was not done yet."""
        return dict(self._listed().failed)

    def prompt_section(self) -> str:
        """Text for a system prompt about the tools and the failed servers; lists the tools if that was not done yet."""
        return self._listed().prompt_section()

    def submit(self, call: ToolCall) -> PendingCall:
        """Enqueue a call and return at once.

        Raises:
            BrokerUnavailable: Redis could not be reached within `timeout_s`.
            ValueError: The arguments hold something that is not JSON.
        """
        return PendingCall(self._calls, self._calls.send(call, self._calls.deadline()))

    def execute(self, call: ToolCall) -> ToolResult:
        """Run a call and wait for its answer; raises as `submit` does, and for nothing else."""
        return self.submit(call).result()

    def execute_many(self, calls: Iterable[ToolCall]) -> list[ToolResult]:
        """Run calls in parallel; the answers come in the order of the calls. Raises as `submit` does."""
        pending = [self.submit(call) for call in calls]
        return [call.result() for call in pending]

    def _listed(self) -> Catalogue:
        if not self._catalogue.listed:
            self.list_tools()
        return self._catalogue
