"""What both executors are made of: the parts that one executor owns, and what needs no answer of a worker.

Owns which arguments an executor takes. The methods that wait are in `executor` and `async_executor`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import WeakSet

from tarsy_tasks.agent.advice import Adviser
from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.input_calls import OnInput
from tarsy_tasks.agent.isolated_run import SessionKind, build_isolated_run
from tarsy_tasks.agent.large_results import READ_RESULT_TOOL
from tarsy_tasks.agent.listing import ToolLister
from tarsy_tasks.agent.resource_watch import Watched
from tarsy_tasks.agent.resources import Readable, build_read
from tarsy_tasks.agent.search_calls import SearchCalls
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.server_event_feed import ServerEventFeed
from tarsy_tasks.agent.server_statuses import ServerStatuses
from tarsy_tasks.agent.submitted import SubmittedCall, check_priority
from tarsy_tasks.agent.summaries import Summaries
from tarsy_tasks.agent.summarizer import Summarizer, SummaryFunction, SummarySettings, look_at_servers
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.methods import READ_RESOURCE, Method
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.native.tool import NativeTool, build_native_tool
from tarsy_tasks.priorities import NORMAL, Priority
from tarsy_tasks.resources import Values

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["BaseExecutor"]

F = TypeVar("F", bound=Callable[..., Any])


class BaseExecutor:
    """What both executors are made of."""

    _is_async = False

    def __init__(
        self,
        servers: Collection[str] | None = None,
        *,
        tool_filter: Mapping[str, Collection[str]] | None = None,
        timeout_s: float = 60.0,
        agent_id: str | None = None,
        run_id: str | None = None,
        priority: Priority = NORMAL,
        session: SessionKind = "shared",
        offer_read_result: bool | None = None,
        park: bool = False,
        on_input: OnInput | None = None,
        label_servers: bool = False,
        summarizer: SummaryFunction | Summarizer | None = None,
        app: "Celery | None" = None,
    ) -> None:
        check_priority(priority)
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
        selection = self._selection = Selection(servers, tool_filter, app)

        @cache
        def find_app() -> "Celery":
            if app is not None:
                return app
            from tarsy_tasks.celery_app import agent_app

            return agent_app()

        self._lister = ToolLister(find_app, selection, timeout_s, self._local_tools, label_servers)
        self._offers_reading = offer_read_result
        self._adviser = Adviser(find_app, selection)
        searches = SearchCalls(self._lister, self._adviser)
        isolated = build_isolated_run(session, run_id)
        about = agent_id, run_id, searches, priority, park or on_input is not None, isolated, on_input
        calls = CallDispatcher(find_app, selection, timeout_s, *about)
        if summarizer is not None:
            made = Summarizer.of(summarizer)
            settings = SummarySettings(made, look_at_servers(app))
            calls.summaries = Summaries(made, settings, calls.reader.fetch)
        calls.is_async = self._is_async
        self._dispatcher = calls
        self._watches = WeakSet[Watched]()
        self._events = ServerEventFeed(find_app, selection, timeout_s)
        self._statuses = ServerStatuses(find_app, selection, self._adviser, timeout_s, self.native_tools)

    def own_tools(self, *, later: bool = False) -> list[ToolDefinition]:
        """The tools of this package itself that `list_tools` lists now: `tarsy.read_result`, if it is offered.

        Args:
            later: Also those that it lists later, once a result was cut.
        """
        offers = later or self._dispatcher.reader.has_cut if self._offers_reading is None else self._offers_reading
        return [READ_RESULT_TOOL] if offers and self._selection.is_own(READ_RESULT_TOOL.server) else []

    def _local_tools(self) -> list[ToolDefinition]:
        return [*self.native_tools(), *self.own_tools()]

    def native_tools(self) -> list[ToolDefinition]:
        """The tools that are functions of this process, in the order in which they were added."""
        return self._dispatcher.native.definitions()

    @overload
    def native(self, function: F, /) -> F: ...
    @overload
    def native(
        self, /, *, name: str | None = None, server: str = "native", description: str | None = None
    ) -> Callable[[F], F]: ...
    def native(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        server: str = "native",
        description: str | None = None,
    ) -> Any:
        """Make a function a tool, which this process runs (docs/native-tools.md): `@tools.native`.

        Args:
            function: A function or coroutine function, with annotations of its parameters. It is returned as it is.
            name: Of the tool; None: that of the function, or what `native_tool` says.
            server: What stands before it, as the id of a server does.
            description: For models; None: its docstring.

        Raises:
            ValueError: A parameter has no JSON Schema or no name, or there is such a tool or server already.
        """

        def add(each: F) -> F:
            self._add_native(build_native_tool(each, server, name, description))
            return each

        return add if function is None else add(function)

    def _add_native(self, tool: NativeTool) -> None:
        self._selection.add_native(tool.definition.server, tool.definition.tool)
        self._dispatcher.native.add(tool)

    def remove_native(self, server: str) -> None:
        """Remove the native tools whose names begin with `server`; calls that run go on.

        Raises:
            ValueError: There are none.
        """
        self._selection.remove_native(server)
        self._dispatcher.native.remove(server)

    def _ask(self, server: str, method: Method, arguments: dict[str, Any] | None = None) -> SubmittedCall:
        return self._dispatcher.request(server, method, arguments or {})

    def _read(self, resource: Readable, server: str | None, values: Values | None) -> SubmittedCall:
        found, arguments = build_read(resource, server, values, self._dispatcher.selection.servers)
        return self._ask(found, READ_RESOURCE, arguments)

    async def _watch(self, resource: Readable, server: str | None) -> Watched:
        if self._dispatcher.isolated is not None:
            raise ValueError("an isolated session ends with its run: watch with an executor without `session`")
        found, arguments = build_read(resource, server, None, self._dispatcher.selection.servers)
        watched = Watched(self._dispatcher, found, arguments["uri"])
        await watched.begin()
        self._watches.add(watched)
        return watched

    def _end_watches(self) -> None:
        for each in [*self._watches]:
            each.end()

    def _last_list(self) -> ToolList:
        if self._lister.last is None:
            raise RuntimeError("no tools were listed yet: call list_tools() first")
        return self._lister.last
