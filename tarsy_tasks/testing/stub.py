"""Executors for tests of agents: the same interface and types, answers from the test, no Redis and no worker.

Owns what takes the place of sending and listing. All else is the executors' own code: names in every form, arguments as
models write them, deadlines, `execute_many`.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from inspect import isawaitable
from typing import Any
from weakref import WeakSet

from tarsy_tasks.agent import results
from tarsy_tasks.agent.advice import Adviser, Permission
from tarsy_tasks.agent.async_executor import AsyncToolExecutor
from tarsy_tasks.agent.background import call_in_background, find_function_loop, run_in_background
from tarsy_tasks.agent.base_executor import BaseExecutor
from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.event_stream import CallEvents
from tarsy_tasks.agent.executor import ToolExecutor
from tarsy_tasks.agent.listing import ToolLister
from tarsy_tasks.agent.native_results import call_native_tool
from tarsy_tasks.agent.resource_watch import Watched
from tarsy_tasks.agent.search_calls import SearchCalls
from tarsy_tasks.agent.search_tools import is_search_call
from tarsy_tasks.agent.submitted import FunctionOrder, SubmittedCall, encode_arguments
from tarsy_tasks.agent.summaries import Summaries
from tarsy_tasks.agent.summarizer import Summarizer, SummaryFunction, SummarySettings
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.arguments import read_arguments
from tarsy_tasks.errors import ArgumentsError, BrokerUnavailable, CallError, ResultNotFound, ToolNameError
from tarsy_tasks.models import ToolCall, ToolDefinition, ToolResult
from tarsy_tasks.native.tool import NativeTool
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.testing.canned import CODES, UNANSWERED, Answer, RecordedCall, as_text, pick
from tarsy_tasks.testing.stub_servers import StubEventFeed, StubStatuses
from tarsy_tasks.tool_names import resolve_tool_name

__all__ = ["AsyncStubToolExecutor", "StubToolExecutor"]

_NEVER_RAN = (Outcome.REJECTED, Outcome.UNAVAILABLE)


class _Stub(BaseExecutor):
    """What both stubs are made of.

    Attributes:
        calls: The calls that reached a tool, in order.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        *,
        tools: Iterable[ToolDefinition] = (),
        failed_servers: Mapping[str, str] | None = None,
        instructions: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        summarizer: SummaryFunction | Summarizer | None = None,
    ) -> None:
        defined = {tool.name: tool for tool in tools}
        for name in answers:
            if name not in defined:
                defined[name] = _define(name)
        self.calls: list[RecordedCall] = []
        # Not those of the base class: they read a configuration and reach Redis.
        listed = ToolList(defined.values(), failed_servers or {}, instructions or {})
        self._lister: _StubLister = _StubLister(listed)
        self._adviser: _StubAdviser = _StubAdviser(listed)
        self._statuses: StubStatuses = StubStatuses(listed, self._adviser)
        self._events = StubEventFeed()
        self._watches = WeakSet[Watched]()
        self._offers_reading = False
        searches = SearchCalls(self._lister, self._adviser)
        self._dispatcher: _StubDispatcher = _StubDispatcher(answers, defined, timeout_s, self.calls, searches)
        if summarizer is not None:
            made = Summarizer.of(summarizer)
            settings = SummarySettings(made, dict)
            self._dispatcher.is_async = self._is_async
            self._dispatcher.summaries = Summaries(made, settings, _fetch_nothing)

    def _add_native(self, tool: NativeTool) -> None:
        self._dispatcher.add_native(tool)
        self._statuses.add_native(tool.definition, self._lister.add(tool.definition))
        self._adviser.add(tool.definition)

    def remove_native(self, server: str) -> None:
        self._dispatcher.remove_native(server)
        self._statuses.remove_native(server, self._lister.remove(server))
        self._adviser.remove(server)


async def _fetch_nothing(handle: str) -> bytes:
    raise ResultNotFound(f"a stub keeps no large results, so there is none with the handle {handle:.64}")


class StubToolExecutor(_Stub, ToolExecutor):
    """A `ToolExecutor` with canned answers.

    Args:
        answers: By `server.tool`. A text; or any other JSON value, as structured content; an `Outcome` or `ErrorCode`;
            a whole `ToolResult`; an error to raise, such as `BrokerUnavailable`; `UNANSWERED`; a function of the
            arguments that returns one of these; several of them `InTurn`.
        tools: Definitions, for `list_tools` and to check arguments. A tool without one takes any arguments; one without
            an answer answers with an empty text.
        failed_servers: For `list_tools`: why tools of a server are missing, by server.
        instructions: For `prompt_section`: how to use a server's tools, by server.
        timeout_s: As of `ToolExecutor`.
        summarizer: As of `ToolExecutor`; without its own settings, those of a server are the defaults.

    Example:
        >>> with StubToolExecutor({"weather.forecast": "sunny"}) as tools:
        ...     tools.execute("weather.forecast", {"city": "Oslo"}).content
        'sunny'
    """


class AsyncStubToolExecutor(_Stub, AsyncToolExecutor):
    """An `AsyncToolExecutor` with canned answers; arguments as of `StubToolExecutor`."""


def _define(name: str) -> ToolDefinition:
    server, dot, tool = name.partition(".")
    if not (server and dot and tool):
        raise ValueError(f"an answer is for `server.tool`, not for {name!r}")
    return ToolDefinition(name=name, server=server, tool=tool, input_schema={"type": "object"})


class _StubLister(ToolLister):
    """Lists what the test says."""

    def __init__(self, listed: ToolList) -> None:
        self._listed = listed
        self.last = None

    def add(self, tool: ToolDefinition) -> ToolList:
        found = self._listed
        self._listed = ToolList([*found, tool], found.failed_servers, found.instructions)
        return self._listed

    def remove(self, server: str) -> ToolList:
        found = self._listed
        self._listed = ToolList(
            (tool for tool in found if tool.server != server), found.failed_servers, found.instructions
        )
        return self._listed

    async def list_tools(self) -> ToolList:
        self.last = self._listed
        return self._listed


class _StubAdviser(Adviser):
    """Permits the tools that there are."""

    def __init__(self, listed: ToolList) -> None:
        self._catalogue: dict[str, set[str]] = {}
        for tool in listed:
            self.add(tool)

    def add(self, tool: ToolDefinition) -> None:
        self._catalogue.setdefault(tool.server, set()).add(tool.tool)

    def remove(self, server: str) -> None:
        del self._catalogue[server]

    def advise(self, name: str, listed: ToolList | None) -> Permission:  # noqa: ARG002
        try:
            server, _ = resolve_tool_name(name, self._catalogue)
        except ToolNameError as error:
            return Permission(False, str(error), "tools")
        return Permission(True, f"`{server}` lists it to this agent.", "tools")

    def permits(self, tool: ToolDefinition) -> bool:  # noqa: ARG002
        return True


class _StubDispatcher(CallDispatcher):
    """Answers calls at once, in the thread that asks."""

    def __init__(
        self,
        answers: Mapping[str, Answer],
        tools: Mapping[str, ToolDefinition],
        timeout_s: float,
        calls: list[RecordedCall],
        search_calls: SearchCalls,
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
        self.timeout_s, self.search_calls = timeout_s, search_calls
        self._answers, self._tools, self._calls = dict(answers), dict(tools), calls
        self._submitted: dict[str, SubmittedCall] = {}
        self._native: dict[str, NativeTool] = {}
        self._catalogue: dict[str, set[str]] = {}
        for tool in tools.values():
            self._catalogue.setdefault(tool.server, set()).add(tool.tool)

    def add_native(self, tool: NativeTool) -> None:
        """Have calls of a tool run its function."""
        found = tool.definition
        is_server = found.server in self._catalogue and not any(each.server == found.server for each in self._natives)
        if is_server or found.name in self._tools:
            raise ValueError(f"there is a server `{found.server}`, or a tool `{found.name}`, already")
        self._tools[found.name], self._native[found.name] = found, tool
        self._catalogue.setdefault(found.server, set()).add(found.tool)

    def remove_native(self, server: str) -> None:
        """Have no tool of a server that is none."""
        if not any(each.server == server for each in self._natives):
            raise ValueError(f"there are no native tools under {server!r}")
        self._native = {name: tool for name, tool in self._native.items() if tool.definition.server != server}
        self._tools = {name: tool for name, tool in self._tools.items() if tool.server != server}
        del self._catalogue[server]

    @property
    def _natives(self) -> list[ToolDefinition]:
        return [tool.definition for tool in self._native.values()]

    def start(
        self,
        calls: Iterable[ToolCall],
        *,
        is_submitted: bool = False,
        events: CallEvents | None = None,
        context: object = None,
    ) -> list[SubmittedCall]:
        deadline = time.monotonic() + self.timeout_s
        submitted = [SubmittedCall(call, encode_arguments(call), deadline) for call in calls]
        for call in submitted:
            if is_submitted:
                call.sent = Future()
            call.events = events
            if self.summaries is not None:
                call.order = FunctionOrder(context, asyncio.get_running_loop() if self.is_async else None)
            try:
                answer = self._search(call) or self._answer(call)
            except ArgumentsError as error:
                self._end(call, _result(call.call, error).model_copy(update={"repairs": error.repairs}))
            except CallError as error:
                self._end(call, _result(call.call, error))
            except BrokerUnavailable as error:
                call.fail(error)
            else:
                call.confirm()
                if answer is not None:
                    self._end(call, answer)
                elif not is_submitted:
                    self._end(call, self.no_answer(call))
        return submitted

    def attach(self, task_id: str, name: str) -> SubmittedCall:
        if task_id not in self._submitted:
            raise ValueError(f"no call of {name!r} was submitted with the id {task_id!r}")
        return self._submitted[task_id]

    async def cancel(self, call: SubmittedCall) -> None:
        self.abandon([call])

    def abandon(self, calls: Iterable[SubmittedCall]) -> None:
        for call in calls:
            self._end(call, _result(call.call, results.cancelled(call.call, goes_on=False)))

    def no_answer(self, call: SubmittedCall) -> ToolResult:
        return _result(call.call, results.no_answer(call.call, self.timeout_s))

    def _end(self, call: SubmittedCall, answer: ToolResult) -> None:
        facts = {"server": call.server, "tool": call.tool, "task_id": call.id, "answered_at": time.time()}
        own = answer.model_copy(update={"call_id": call.call.id, "name": call.call.name, **facts})
        if self.summaries is None:
            call.end(own)
        else:
            call_in_background(partial(self.conclude, call, own))

    def _search(self, submitted: SubmittedCall) -> ToolResult | None:
        """The answer to a search. A call of `call_tool` becomes the call that it asks for."""
        if not is_search_call(submitted.call.name):
            return None
        read = run_in_background(self.search_calls.read(submitted.call)).result()
        if isinstance(read, ToolResult):
            submitted.tool = read.tool
            return read
        submitted.call = read
        return None

    def _answer(self, submitted: SubmittedCall) -> ToolResult | None:
        """The answer; None if there is none. Raises `CallError`, or what the test has raised."""
        call = submitted.call
        submitted.server, submitted.tool = resolve_tool_name(call.name, self._catalogue)
        name = f"{submitted.server}.{submitted.tool}"
        parsed = read_arguments(call.arguments, self._tools[name].input_schema)
        self._calls.append(RecordedCall(name, parsed.arguments, call))
        submitted.id = f"stub-{len(self._calls)}"
        self._submitted[submitted.id] = submitted
        if (native := self._native.get(name)) is not None:
            facts = {"call_id": call.id, "name": call.name, "repairs": parsed.reported, "attempts": 1}
            return call_native_tool(native, parsed.arguments, facts, _finish)
        answer = pick(self._answers.get(name, ""), parsed.arguments)
        if answer is UNANSWERED:
            return None
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Outcome) and answer is not Outcome.OK:
            answer = CODES[answer]
        if isinstance(answer, ErrorCode):
            raise CallError(answer, _describe(name, answer))
        if isinstance(answer, ToolResult):
            return answer
        answer = "" if answer is Outcome.OK else answer
        return ToolResult(
            call_id=call.id,
            name=call.name,
            content=as_text(answer),
            structured=None if isinstance(answer, str) else answer,
            repairs=parsed.reported,
            attempts=1,
            content_types=("text",),
        )


def _finish(value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return asyncio.run_coroutine_threadsafe(wait(), find_function_loop()).result() if isawaitable(value) else value


def _describe(name: str, code: ErrorCode) -> str:
    if code.outcome in _NEVER_RAN:
        return f"`{name}` ended with {code}. The tool did not run."
    if code.outcome is Outcome.TOOL_ERROR:
        return f"`{name}` ended with {code}. The tool ran and reported an error."
    return f"`{name}` ended with {code}. The tool may have run. Check its effects before you call it again."


def _result(call: ToolCall, error: CallError) -> ToolResult:
    attempts = 0 if error.outcome in _NEVER_RAN else 1
    return ToolResult.from_error(error, call_id=call.id, name=call.name, attempts=attempts)
