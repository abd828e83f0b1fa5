"""`ToolExecutor`: what a synchronous agent holds.

Its methods block until there is an answer; `async_executor` has the same ones with `await`, on the base classes that
are here. Calls are sent, and their end is found out, by `dispatcher` on the background loop.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import wait
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from tarsy_tasks.agent.advice import Adviser, Permission
from tarsy_tasks.agent.background import run_in_background
from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.event_stream import CallEvents, EventBuffer
from tarsy_tasks.agent.listing import ToolLister
from tarsy_tasks.agent.progress_calls import OnProgress, ProgressCalls
from tarsy_tasks.agent.resources import Readable, build_completion, build_read
from tarsy_tasks.agent.results import read_listed, read_structured
from tarsy_tasks.agent.search_calls import SearchCalls
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import Arguments, SubmittedCall, build_call, build_calls, check_priority
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.call_events import CallEvent
from tarsy_tasks.errors import ResultTimeout
from tarsy_tasks.methods import (
    COMPLETE,
    GET_PROMPT,
    LIST_PROMPTS,
    LIST_RESOURCE_TEMPLATES,
    LIST_RESOURCES,
    READ_RESOURCE,
    Method,
)
from tarsy_tasks.models import ParkedCall, ToolCall, ToolDefinition, ToolResult
from tarsy_tasks.priorities import NORMAL, Priority
from tarsy_tasks.prompts import Completion, PromptDefinition, PromptResult
from tarsy_tasks.resources import ResourceDefinition, ResourceResult, ResourceTemplate, Values

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["BaseExecutor", "BasePendingCall", "PendingCall", "ToolExecutor"]

_LATE_S = 2.0
"""How long after its deadline a handle gives up waiting. The background loop answers a call within 1 s of its deadline,
even if Redis does not answer; but in a forked child nobody answers the calls of its parent."""


class BasePendingCall:
    """What both handles are made of."""

    def __init__(self, dispatcher: CallDispatcher, submitted: SubmittedCall, events: EventBuffer | None = None) -> None:
        self.id = submitted.id
        self.call = submitted.call
        self._dispatcher = dispatcher
        self._submitted = submitted
        self._events = events

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._submitted.answered.done()

    @property
    def parked(self) -> ParkedCall | None:
        """Why the call waits, if it was parked: as last heard, also when it has gone on since."""
        return self._submitted.parked

    def _patience_s(self, until: float | None = None) -> float:
        """How long to wait now: until a monotonic time, or as long as the call may take, whose deadline may move."""
        latest = self._submitted.deadline + _LATE_S
        return seconds_until(latest if until is None else min(until, latest))

    def _require_events(self) -> EventBuffer:
        if self._events is None:
            raise ValueError("this call was submitted without `events=True`, so its events were not asked for")
        return self._events

    def _read_answer(self, timeout_s: float | None) -> ToolResult:
        """What there is after that time."""
        if self.done():
            return self._submitted.answered.result()
        if timeout_s is not None and self._submitted.seconds_left():
            raise ResultTimeout(f"no answer to `{self.call.name}` within {timeout_s:g} s; the call continues")
        return self._dispatcher.no_answer(self._submitted)


class PendingCall(BasePendingCall):
    """A call that was submitted.

    Attributes:
        id: The task id, as Flower shows it; empty for a call that was rejected before it was sent.
        call: The call itself.
    """

    def __init__(
        self,
        dispatcher: CallDispatcher,
        submitted: SubmittedCall,
        events: EventBuffer | None = None,
        progress_calls: ProgressCalls | None = None,
    ) -> None:
        super().__init__(dispatcher, submitted, events)
        self._progress_calls = progress_calls

    def events(self) -> Iterator[CallEvent]:
        """What happens to the call while it runs (docs/progress.md), as it happens, until it has ended. After the last
        event the answer is there.

        Each event is given once, also when this is called again. For code that reads slowly the newest of each kind are
        kept, and the latest log lines.

        Raises:
            ValueError: The call was submitted without `events` and `on_progress`.
        """
        return self._require_events().iterate(self._patience_s)

    def result(self, timeout_s: float | None = None) -> ToolResult:
        """Wait for the answer.

        Args:
            timeout_s: Seconds to wait; None for as long as the executor's `timeout_s` allows since the call was
                submitted, or longer if progress has moved its deadline.

        Raises:
            ResultTimeout: This `timeout_s` ended before that of the executor; the call continues.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done() and (patience_s := self._patience_s(until)):
            wait([self._submitted.answered], patience_s)
        if self._progress_calls is not None and self.done():
            self._progress_calls.finish()
        return self._read_answer(timeout_s)

    def cancel(self) -> None:
        """Cancel the call, whether it waits in its queue or runs. `result` then says how it ended.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        run_in_background(self._dispatcher.cancel(self._submitted)).result()


class BaseExecutor:
    """What both executors are made of."""

    def __init__(
        self,
        servers: Collection[str] | None = None,
        *,
        tool_filter: Mapping[str, Collection[str]] | None = None,
        timeout_s: float = 60.0,
        agent_id: str | None = None,
        run_id: str | None = None,
        priority: Priority = NORMAL,
        park: bool = False,
        app: "Celery | None" = None,
    ) -> None:
        check_priority(priority)
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
        selection = Selection(servers, tool_filter, app)

        @cache
        def find_app() -> "Celery":
            if app is not None:
                return app
            from tarsy_tasks.celery_app import agent_app

            return agent_app()

        self._lister = ToolLister(find_app, selection, timeout_s)
        self._adviser = Adviser(find_app, selection)
        searches = SearchCalls(self._lister, self._adviser)
        self._dispatcher = CallDispatcher(find_app, selection, timeout_s, agent_id, run_id, searches, priority, park)

    def _ask(self, server: str, method: Method, arguments: dict[str, Any] | None = None) -> SubmittedCall:
        return self._dispatcher.request(server, method, arguments or {})

    def _read(self, resource: Readable, server: str | None, values: Values | None) -> SubmittedCall:
        found, arguments = build_read(resource, server, values, self._dispatcher.selection.servers)
        return self._ask(found, READ_RESOURCE, arguments)

    def _last_list(self) -> ToolList:
        if self._lister.last is None:
            raise RuntimeError("no tools were listed yet: call list_tools() first")
        return self._lister.last


class ToolExecutor(BaseExecutor):
    """Runs the tool calls of one agent through the workers.

    Args:
        servers: Ids of the MCP servers that this agent may call; None for all that are configured.
        tool_filter: For some servers, the tools to offer and to accept; an empty list means all. A selection for the
            model, not security.
        timeout_s: Seconds from submitting a call until it is answered. If Redis accepts connections but does not
            answer, it is answered up to 1 s later.
        agent_id: Who calls: for the audit, and because idempotency keys count only among calls of the same agent.
        run_id: In which run, for the audit.
        priority: Of calls that have none of their own: `interactive`, `normal` or `batch`. It counts among the calls of
            this agent to the same server (docs/limits.md).
        park: This agent waits when a call has to wait for a person, longer than `timeout_s` (docs/approval.md). Without
            it, such calls are rejected.
        app: A Celery application on the workers' Redis. None: the package's own, with Redis from `TARSY_REDIS_URL`.

    Raises:
        ValueError: A server that is not configured, a filter for a server that is not selected, a plain string where a
            list of names belongs, a bad `timeout_s`, or an unknown priority.
        ConfigError: The configuration is missing or wrong.

    Example:
        >>> with ToolExecutor(["k8s"], timeout_s=60, agent_id="sre") as tools:
        ...     result = tools.execute("k8s.pods_list", {"namespace": "default"})
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the tools. Calls that were submitted go on; connections belong to the process, not to one executor."""
        self._lister.last = None

    def list_tools(self) -> ToolList:
        """The selected tools of all servers, as their sessions know them now; a sequence of `ToolDefinition`.

        A server that does not answer within `timeout_s` is one of the list's `failed_servers`.

        Raises:
            BrokerUnavailable: Redis could not be reached within `timeout_s`, or refuses this user all servers.
        """
        return run_in_background(self._lister.list_tools()).result()

    def failed_servers(self) -> dict[str, str]:
        """`ToolList.failed_servers` of the last list. Raises `RuntimeError` before the first `list_tools`."""
        return dict(self._last_list().failed_servers)

    def prompt_section(
        self,
        *,
        tools: bool = True,
        budget_tokens: int | None = None,
        query: str | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> str:
        """`ToolList.prompt_section` of the last list. Raises `RuntimeError` before the first `list_tools`."""
        return self._last_list().prompt_section(
            tools=tools, budget_tokens=budget_tokens, query=query, count_tokens=count_tokens
        )

    def list_resources(self, server: str) -> tuple[ResourceDefinition, ...]:
        """The resources of a server, all pages; empty if it has none.

        Raises:
            OutcomeError: They could not be listed; the error's `result` says why.
            BrokerUnavailable: Redis could not be reached within `timeout_s`.
        """
        answer = self._ask(server, LIST_RESOURCES).answered.result()
        return read_listed(answer, "resources", ResourceDefinition)

    def list_resource_templates(self, server: str) -> tuple[ResourceTemplate, ...]:
        """The templates of a server's resources. Raises as `list_resources`."""
        answer = self._ask(server, LIST_RESOURCE_TEMPLATES).answered.result()
        return read_listed(answer, "resource_templates", ResourceTemplate)

    def read_resource(
        self, resource: Readable, *, server: str | None = None, values: Values | None = None
    ) -> ResourceResult:
        """Read a resource and wait for its contents. Raises as `submit` does, and nothing else.

        Args:
            resource: What a server has listed, an attachment that is a link, or a URI.
            server: Whose resource it is; needed with a link or a URI, unless this executor has one server only.
            values: With a template, or the text of one: what takes the places of its variables.

        Raises:
            ValueError: It is not known whose resource it is, or a template has no values.
        """
        return ResourceResult.of(self._read(resource, server, values).answered.result())

    def list_prompts(self, server: str) -> tuple[PromptDefinition, ...]:
        """The prompts of a server, all pages; empty if it has none. Raises as `list_resources`."""
        return read_listed(self._ask(server, LIST_PROMPTS).answered.result(), "prompts", PromptDefinition)

    def get_prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> PromptResult:
        """Get a prompt and wait for its messages. Raises as `submit` does, and nothing else."""
        asked = {"name": name, "arguments": dict(arguments or {})}
        return PromptResult.of(self._ask(server, GET_PROMPT, asked).answered.result())

    def complete(
        self,
        target: PromptDefinition | ResourceTemplate,
        argument: str,
        value: str = "",
        *,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Values that an argument of a prompt, or a variable of a template, can have.

        Args:
            target: As its server has listed it.
            argument: Name of the argument or variable.
            value: What is there of it.
            context: Values of the others, as far as they are known.

        Raises:
            OutcomeError: The server could not be asked, or completes nothing; the error's `result` says why.
            BrokerUnavailable: Redis could not be reached within `timeout_s`.
        """
        asked = build_completion(target, argument, value, context)
        return read_structured(self._ask(target.server, COMPLETE, asked).answered.result(), Completion)

    def search(self, text: str, limit: int = 8) -> list[ToolDefinition]:
        """The tools that fit a text best, best first: what to do, in words, such as `restart a deployment`.

        It searches the last list; if there is none yet, it lists the tools first. Tools that `can_execute` knows to be
        denied are left out. See docs/tool-search.md.

        Args:
            text: Only its words count, and at most 24 of them; it may be of any length.
            limit: How many tools at most.

        Raises:
            BrokerUnavailable: As `list_tools`.
            ConfigError: The policy that this process finds is wrong.
            ValueError: `text` is not a string, or `limit` not a positive integer.
            RuntimeError: The SQLite of this Python was built without FTS5.
        """
        listed = self._lister.last or self.list_tools()
        return listed.search(text, limit=limit, permits=self._adviser.permits)

    def can_execute(self, name: str) -> Permission:
        """Whether a call of a tool would be permitted, and why; true or false.

        It is advice: a worker decides each call by its own policy. It comes from `servers` and `tool_filter`, the
        policy that this process finds (`TARSY_POLICY`, or in the configuration file; read once), for the agent that the
        Redis URL names, and the last list of tools. Nothing is sent.

        Raises:
            ConfigError: The policy that this process finds is wrong.
        """
        return self._adviser.advise(name, self._lister.last)

    def submit(
        self,
        call: ToolCall | str,
        arguments: Arguments = None,
        *,
        on_progress: OnProgress | None = None,
        events: bool = False,
        priority: Priority | None = None,
    ) -> PendingCall:
        """Enqueue a call and return at once. The first arguments are those of `execute`.

        Args:
            on_progress: Called with the progress of the call, at most ten times a second, in a thread that all calls of
                this process share; not again after `PendingCall.result` has returned. If it raises, that is logged, and
                it is not called again.
            events: `PendingCall.events` will be read. Only with one of these two is the MCP server asked for progress.

        Raises:
            BrokerUnavailable: Redis could not be reached within `timeout_s`.
            ValueError: The arguments contain something that is not JSON, or the priority is unknown.
        """
        progress_calls = ProgressCalls(on_progress) if on_progress is not None else None
        buffer = EventBuffer() if events or progress_calls else None
        heard = CallEvents(buffer, *([progress_calls.buffer] if progress_calls else ())) if buffer else None
        [submitted] = self._dispatcher.start([build_call(call, arguments, priority)], is_submitted=True, events=heard)
        assert submitted.sent is not None
        submitted.sent.result()
        return PendingCall(self._dispatcher, submitted, buffer, progress_calls)

    def attach(self, task_id: str, name: str) -> PendingCall:
        """Wait for a call that another executor has sent, in this process or another one, such as one that is parked.

        Args:
            task_id: The `id` of its `PendingCall`.
            name: Of its tool.

        Raises:
            BrokerUnavailable: Redis could not be reached within `timeout_s`.
            CallError: This executor has no such tool.
        """
        submitted = self._dispatcher.attach(task_id, name)
        assert submitted.sent is not None
        submitted.sent.result()
        return PendingCall(self._dispatcher, submitted)

    def execute(
        self, call: ToolCall | str, arguments: Arguments = None, *, priority: Priority | None = None
    ) -> ToolResult:
        """Run a call and wait for its answer. Raises as `submit` does, and nothing else.

        Args:
            call: A `ToolCall`, or the name of a tool.
            arguments: With a name: a mapping, or the text that a model wrote.
            priority: Of this call; None: that of the `ToolCall`, or else that of the executor.
        """
        [submitted] = self._dispatcher.start([build_call(call, arguments, priority)])
        return submitted.answered.result()

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
        submitted = self._dispatcher.start(build_calls(calls))
        wait([call.answered for call in submitted])
        return self._dispatcher.read_answers(submitted)
