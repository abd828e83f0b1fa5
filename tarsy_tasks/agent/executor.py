"""`ToolExecutor`: what a synchronous agent holds.

Owns blocking. `dispatcher` sends calls and knows how they end; `async_executor` is the same with `await`.
"""

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.pending import Pending
from tarsy_tasks.agent.submitted import Arguments, build_call, build_calls
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.waiting import block
from tarsy_tasks.models import ToolCall, ToolResult

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["PendingCall", "ToolExecutor"]


class PendingCall(Pending):
    """A call that was submitted. See `Pending` for its attributes."""

    def result(self, timeout_s: float | None = None) -> ToolResult:
        """Wait for the answer.

        Args:
            timeout_s: Seconds to wait; None for as long as the executor's `timeout_s` allows since the call was
                submitted.

        Raises:
            ResultTimeout: This `timeout_s` ended before that of the executor; the call goes on.
        """
        return block(self._dispatcher.wait_for_one(self._submitted, timeout_s))

    def cancel(self) -> None:
        """Cancel the call, whether it waits in its queue or runs. `result` then says how it ended.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        self._dispatcher.cancel(self._submitted)


class ToolExecutor:
    """Runs the tool calls of one agent through the workers.

    Args:
        servers: Ids of the MCP servers that this agent may call; None for all that are configured.
        tool_filter: For some servers, the tools to offer and to accept; an empty list means all. A selection for the
            model, not security.
        timeout_s: Seconds from submitting a call until it is answered, whatever happens.
        agent_id: Who calls, for the audit.
        run_id: In which run, for the audit.
        app: A Celery application on the workers' Redis. None: the package's own, with Redis from `TARSY_REDIS_URL`.

    Raises:
        ValueError: A server that is not configured, a filter for a server that is not selected, a plain string where a
            list of names belongs, or a bad `timeout_s`.
        ConfigError: The configuration is missing or wrong.

    Example:
        >>> with ToolExecutor(["k8s"], timeout_s=60, agent_id="sre") as tools:
        ...     result = tools.execute("k8s.pods_list", {"namespace": "default"})
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
        self._dispatcher = CallDispatcher(
            servers=servers, tool_filter=tool_filter, timeout_s=timeout_s, agent_id=agent_id, run_id=run_id, app=app
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the tools. Calls that were submitted go on; connections belong to the process, not to one executor."""
        self._dispatcher.lister.clear()

    def list_tools(self) -> ToolList:
        """The selected tools of all servers, as their sessions know them now; a sequence of `ToolDefinition`.

        A server that does not answer within `timeout_s` is one of the list's `failed_servers`.

        Raises:
            BrokerUnavailable: Redis could not be reached within `timeout_s`, or refuses this user all servers.
        """
        deadline = self._dispatcher.deadline()
        lister = self._dispatcher.lister
        return block(lister.wait(lister.send(deadline), deadline))

    def failed_servers(self) -> dict[str, str]:
        """`failed_servers` of the last `list_tools`: why tools of a server are missing, by server.

        Raises:
            RuntimeError: `list_tools` was not called yet.
        """
        return dict(self._dispatcher.lister.last.failed_servers)

    def prompt_section(self, *, tools: bool = True) -> str:
        """`prompt_section` of the last `list_tools`: text for a system prompt about the tools and the failed servers.

        Args:
            tools: Whether to describe the tools; False for native function calling.

        Raises:
            RuntimeError: `list_tools` was not called yet.
        """
        return self._dispatcher.lister.last.prompt_section(tools=tools)

    def submit(self, call: ToolCall | str, arguments: Arguments = None) -> PendingCall:
        """Enqueue a call and return at once. Arguments are those of `execute`.

        Raises:
            BrokerUnavailable: Redis could not be reached within `timeout_s`.
            ValueError: The arguments hold something that is not JSON.
        """
        [submitted] = self._dispatcher.prepare([build_call(call, arguments)])
        self._dispatcher.send(submitted)
        return PendingCall(self._dispatcher, submitted)

    def execute(self, call: ToolCall | str, arguments: Arguments = None) -> ToolResult:
        """Run a call and wait for its answer. Raises as `submit` does, and nothing else.

        Args:
            call: A `ToolCall`, or the name of a tool.
            arguments: With a name: a mapping, or the text that a model wrote.
        """
        return self.submit(call, arguments).result()

    def execute_many(self, calls: Iterable[ToolCall | tuple[str, Arguments]]) -> list[ToolResult]:
        """Run calls in parallel, with one deadline; the answers come in the order of the calls.

        Each call has its own answer. If Redis cannot be reached any more, those that could not be enqueued are
        `unavailable` (`NOT_STARTED`).

        Args:
            calls: Each a `ToolCall`, or a name and arguments.

        Raises:
            BrokerUnavailable: No call at all could be enqueued within `timeout_s`.
            ValueError: One of the calls cannot be sent as JSON. Nothing was sent.
        """
        submitted = self._dispatcher.prepare(build_calls(calls))
        return block(self._dispatcher.wait_for_all(submitted, self._dispatcher.send_all(submitted)))
