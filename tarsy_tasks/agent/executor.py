"""`ToolExecutor`: what a synchronous agent holds.

Its methods block until there is an answer; `async_executor` has the same ones with `await`. Calls are sent, and their
end is found out, by `dispatcher` on the background loop; `pending_call` has the handle of one that was submitted.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from typing import Self

from tarsy_tasks.agent.advice import Permission
from tarsy_tasks.agent.background import run_in_background
from tarsy_tasks.agent.base_executor import BaseExecutor
from tarsy_tasks.agent.event_stream import CallEvents, EventBuffer
from tarsy_tasks.agent.large_results import PAGE_CHARS, Part, check_request, read_part
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.agent.progress_calls import OnProgress, ProgressCalls
from tarsy_tasks.agent.resource_watch import ResourceWatch
from tarsy_tasks.agent.resources import Readable, build_completion
from tarsy_tasks.agent.results import read_listed, read_structured
from tarsy_tasks.agent.server_event_feed import OnEvent, deliver_in_thread
from tarsy_tasks.agent.server_statuses import ToolInfo
from tarsy_tasks.agent.submitted import Arguments, build_call, build_calls
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.methods import COMPLETE, GET_PROMPT, LIST_PROMPTS, LIST_RESOURCE_TEMPLATES, LIST_RESOURCES
from tarsy_tasks.models import ResultPart, ToolCall, ToolDefinition, ToolResult
from tarsy_tasks.priorities import Priority
from tarsy_tasks.prompts import Completion, PromptDefinition, PromptResult
from tarsy_tasks.questions import Answers
from tarsy_tasks.resources import ResourceDefinition, ResourceResult, ResourceTemplate, Values
from tarsy_tasks.server_status import ServerStatus

__all__ = ["ToolExecutor"]


class ToolExecutor(BaseExecutor):
    """Runs the tool calls of one agent through the workers.

    Args:
        servers: Ids of the MCP servers that this agent may call; None for all that are configured.
        tool_filter: For some servers, the tools to offer and to accept; an empty list means all. A selection for the
            model, not security.
        timeout_s: Seconds from submitting a call until it is answered. If Redis accepts connections but does not
            answer, it is answered up to 1 s later.
        agent_id: Who calls: for the audit, and because idempotency keys count only among calls of the same agent.
        run_id: In which run, for the audit, and with `session="run"`.
        session: `run`: its calls go to sessions that only executors with the same `run_id` share (docs/isolation.md).
        priority: Of calls that have none of their own: `interactive`, `normal` or `batch`. It counts among the calls of
            this agent to the same server (docs/limits.md).
        offer_read_result: Whether `list_tools` lists `tarsy.read_result`, by which a model reads on in a large result;
            None: once a result of this executor was cut.
        label_servers: Whether descriptions of listed tools begin with `[MCP:server]`, for models that get them among
            tools of other kinds.
        summarizer: Makes long results short (docs/summaries.md): a function, or a `Summarizer` with settings. A call is
            then answered up to 30 s later.
        park: This agent waits when a call has to wait for a person, longer than `timeout_s` (docs/approval.md), also
            for answers to what its server asks (docs/input.md). Without it, such calls are rejected.
        on_input: Answers what servers ask in calls of this executor, which implies `park`: it gets a `ParkedCall`, and
            returns answers as for `resume`, or None if somebody else answers.
        app: A Celery application on the workers' Redis. None: the package's own, with Redis from `TARSY_REDIS_URL`.

    Raises:
        ValueError: A server that is not configured, a filter for a server that is not selected, a plain string where a
            list of names belongs, a bad `timeout_s`, an unknown `priority` or `session`, or bad settings of
            a summarizer.
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
        """Forget the tools, report no more events, end its watches, and the sessions of its run. Calls that were
        submitted go on."""
        self._lister.last = None
        self._events.close()
        self._end_watches()
        if self._dispatcher.isolated is not None:
            run_in_background(self._dispatcher.close_sessions()).result()

    def list_tools(self) -> ToolList:
        """The selected tools of all servers, as their sessions know them now; a sequence of `ToolDefinition`.

        One round trip to Redis, and a worker is asked for each server whose list is not current there (docs/agents.md).
        A server that does not answer within `timeout_s` is one of the list's `failed_servers`. Lists of one process
        share their definitions: copy a schema before you change it.

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

    def watch_resource(self, resource: Readable, *, server: str | None = None) -> ResourceWatch:
        """Watch a resource: an iterator of its changes from now on. It ends when it is closed (`with` does that), and
        with this executor.

        Raises:
            OutcomeError: The server does not report changes of it, or could not be asked.
            BrokerUnavailable: Redis could not be reached in time, or does not allow it.
            ValueError: As `read_resource`, or this executor has isolated sessions.
        """
        return ResourceWatch(run_in_background(self._watch(resource, server)).result())

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

    def server(self, name: str) -> ServerStatus:
        """The status of a server: state, connected since, health, capabilities, tools, last error, counters.

        It is what its workers last reported, at most 15 s ago, read in one round trip to Redis; no worker is asked.

        Raises:
            ToolNameError: It is not one of this executor's servers.
            BrokerUnavailable: Redis could not be reached within `timeout_s`, or refuses that to this user.
            ConfigError: The policy that this process finds is wrong.
        """
        return run_in_background(self._statuses.read_one(name)).result()

    def servers(self) -> dict[str, ServerStatus]:
        """The status of each server, all in one round trip. Raises as `server`."""
        return run_in_background(self._statuses.read_all()).result()

    def tool_info(self, name: str) -> ToolInfo:
        """What is known of a tool, by any form of its name: definition, status of its server, and whether a call would
        be permitted. One round trip to Redis; no worker is asked. What Redis does not have yet is as last listed.

        Raises:
            ToolNameError: There is no such tool; the text lists what there is, closest first.
            BrokerUnavailable: As `server`.
            ConfigError: As `server`.
        """
        return run_in_background(self._statuses.find_tool(name, self._lister.last)).result()

    def is_mcp_tool(self, name: str) -> bool:
        """Whether a name means a tool of these servers, for agents that have other tools as well. A name of the last
        list is known at once; for another one Redis is read. Raises `BrokerUnavailable` and `ConfigError` as `server`.
        """
        return run_in_background(self._statuses.is_tool(name, self._lister.last)).result()

    def on_event(self, function: OnEvent) -> Callable[[], None]:
        """Have a function called with each `ServerEvent` of these servers: connected, disconnected, error, tools
        changed, in each worker. It runs in a thread that all such functions of this process share.

        Redis keeps no events: after an outage of the connection, `servers` has the state. If the function raises, that
        is logged.

        Returns:
            A function that ends it; `close` does so as well.

        Raises:
            BrokerUnavailable: Redis could not be reached within `timeout_s`, or refuses that to this user.
        """
        return run_in_background(self._events.add(deliver_in_thread(function))).result()

    def can_execute(self, name: str) -> Permission:
        """Whether a call of a tool would be permitted, and why; true or false.

        It is only advice: a worker decides each call by its own policy. It comes from `servers` and `tool_filter`, the
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
        context: object = None,
    ) -> PendingCall:
        """Enqueue a call and return at once. Arguments that are not here are those of `execute`.

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
        built = [build_call(call, arguments, priority)]
        [submitted] = self._dispatcher.start(built, is_submitted=True, events=heard, context=context)
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

    def resume(self, pending: PendingCall, answers: Answers) -> PendingCall:
        """Answer the questions that `pending.questions()` has returned last, and have the call go on.

        Args:
            pending: The call, of this executor or from `attach`.
            answers: By the name of each question, the values of its form, which accepts it, or `accept`, `decline` or
                `cancel`. A word alone answers them all.

        Returns:
            The same handle.

        Raises:
            OutcomeError: The answers do not fit, or come too late, or the call is another agent's; the error's
                `result` says why. The call still waits, unless it has ended.
            BrokerUnavailable: Redis could not be reached within `timeout_s`.
            ValueError: The call asks nothing, or the answers are not JSON.
        """
        self._dispatcher.inputs.answer(pending.submitted, answers).answered.result().raise_for_outcome()
        return pending

    def execute(
        self,
        call: ToolCall | str,
        arguments: Arguments = None,
        *,
        priority: Priority | None = None,
        context: object = None,
    ) -> ToolResult:
        """Run a call and wait for its answer. Raises as `submit` does, and nothing else.

        Args:
            call: A `ToolCall`, or the name of a tool.
            arguments: With a name: a mapping, or the text that a model wrote.
            priority: Of this call; None: that of the `ToolCall`, or else that of the executor.
            context: For the summarizer, as it is: what the agent wants to know, or its conversation.
        """
        [submitted] = self._dispatcher.start([build_call(call, arguments, priority)], context=context)
        return submitted.answered.result()

    def execute_many(
        self, calls: Iterable[ToolCall | tuple[str, Arguments]], *, context: object = None
    ) -> list[ToolResult]:
        """Run calls in parallel, with one deadline; the answers come in the order of the calls.

        Each call has its own answer. If Redis cannot be reached any more, those that could not be enqueued are
        `unavailable` (`NOT_STARTED`).

        Args:
            calls: Each a `ToolCall`, or a name and arguments.
            context: As of `execute`, for all of them.

        Raises:
            BrokerUnavailable: No call at all could be enqueued within `timeout_s`.
            ValueError: One of the calls cannot be sent as JSON. Nothing was sent.
        """
        submitted = self._dispatcher.start(build_calls(calls), context=context)
        wait([call.answered for call in submitted])
        return self._dispatcher.read_answers(submitted)

    def read_result(
        self,
        handle: str,
        offset: int = 0,
        limit: int = PAGE_CHARS,
        *,
        contains: str | None = None,
        part: Part = "content",
    ) -> ResultPart:
        """Read a part of a large result of this agent (docs/large-results.md).

        Args:
            handle: `ToolResult.large.handle`.
            offset: The first character.
            limit: How many characters at most.
            contains: Only the lines that contain this text, each after the offset at which it begins.
            part: `content`, or the `structured` value as JSON, if that was left out.

        Raises:
            ResultNotFound: The handle is not one of this agent, or the result is no longer kept.
            BrokerUnavailable: Redis could not be reached within `timeout_s`, or does not allow it.
            ValueError: One of the arguments is not possible.
        """
        check_request(handle, offset, limit, contains, part)
        whole = run_in_background(self._dispatcher.reader.fetch(handle)).result()
        return read_part(whole, handle, offset=offset, limit=limit, contains=contains, part=part)
