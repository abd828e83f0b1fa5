"""`AsyncToolExecutor`: what an asyncio agent holds.

Its methods can be awaited in any event loop; `executor` has the same ones without `await`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

from tarsy_tasks.agent.advice import Permission
from tarsy_tasks.agent.background import run_in_background, wait_for
from tarsy_tasks.agent.base_executor import BaseExecutor
from tarsy_tasks.agent.event_stream import CallEvents, EventBuffer
from tarsy_tasks.agent.large_results import PAGE_CHARS, Part, check_request, read_part
from tarsy_tasks.agent.pending_call import BasePendingCall
from tarsy_tasks.agent.progress_calls import AsyncProgressCalls, OnProgress
from tarsy_tasks.agent.resource_watch import AsyncResourceWatch
from tarsy_tasks.agent.resources import Readable, build_completion
from tarsy_tasks.agent.results import read_listed, read_structured
from tarsy_tasks.agent.server_event_feed import OnEvent, deliver_in_loop
from tarsy_tasks.agent.server_statuses import ToolInfo
from tarsy_tasks.agent.submitted import Arguments, SubmittedCall, build_call, build_calls
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.call_events import CallEvent
from tarsy_tasks.methods import COMPLETE, GET_PROMPT, LIST_PROMPTS, LIST_RESOURCE_TEMPLATES, LIST_RESOURCES
from tarsy_tasks.models import ResultPart, ToolCall, ToolDefinition, ToolResult
from tarsy_tasks.priorities import Priority
from tarsy_tasks.prompts import Completion, PromptDefinition, PromptResult
from tarsy_tasks.questions import Answers, InputQuestion
from tarsy_tasks.resources import ResourceDefinition, ResourceResult, ResourceTemplate, Values
from tarsy_tasks.server_status import ServerStatus

__all__ = ["AsyncPendingCall", "AsyncToolExecutor"]

T = TypeVar("T")


class AsyncPendingCall(BasePendingCall[AsyncProgressCalls]):
    """`PendingCall` with `await`.

    Attributes:
        id: The task id, as Flower shows it; empty for a call that was rejected before it was sent.
        call: The call itself.
    """

    def events(self) -> AsyncIterator[CallEvent]:
        """As `PendingCall.events`."""
        return self._require_events().iterate_async(self._patience_s)

    async def result(self, timeout_s: float | None = None) -> ToolResult:
        """As `PendingCall.result`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done() and (patience_s := self._patience_s(until)):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await wait_for(self._submitted.answered)
        if self._progress_calls is not None and self.done():
            await self._progress_calls.finish()
        return self._read_answer(timeout_s)

    async def questions(self, timeout_s: float | None = None) -> tuple[InputQuestion, ...]:
        """As `PendingCall.questions`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not (self._submitted.questions or self.done()):
            heard = self._watch()
            if self._submitted.questions or not (patience_s := self._patience_s(until)):
                break
            futures = [asyncio.wrap_future(each) for each in self._either(heard)]
            await asyncio.wait(futures, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        return self._submitted.take_questions()

    async def cancel(self) -> None:
        """As `PendingCall.cancel`."""
        await _run(self._dispatcher.cancel(self._submitted))


class AsyncToolExecutor(BaseExecutor):
    """`ToolExecutor` with `await`; arguments and errors are the same."""

    _is_async = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As `ToolExecutor.close`."""
        self._lister.last = None
        self._events.close()
        self._end_watches()
        if self._dispatcher.isolated is not None:
            await _run(self._dispatcher.close_sessions())

    async def list_tools(self) -> ToolList:
        """As `ToolExecutor.list_tools`."""
        return await _run(self._lister.list_tools())

    async def failed_servers(self) -> dict[str, str]:
        """As `ToolExecutor.failed_servers`."""
        return dict(self._last_list().failed_servers)

    async def prompt_section(
        self,
        *,
        tools: bool = True,
        budget_tokens: int | None = None,
        query: str | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> str:
        """As `ToolExecutor.prompt_section`."""
        return self._last_list().prompt_section(
            tools=tools, budget_tokens=budget_tokens, query=query, count_tokens=count_tokens
        )

    async def list_resources(self, server: str) -> tuple[ResourceDefinition, ...]:
        """As `ToolExecutor.list_resources`."""
        answer = await self._answer(self._ask(server, LIST_RESOURCES))
        return read_listed(answer, "resources", ResourceDefinition)

    async def list_resource_templates(self, server: str) -> tuple[ResourceTemplate, ...]:
        """As `ToolExecutor.list_resource_templates`."""
        answer = await self._answer(self._ask(server, LIST_RESOURCE_TEMPLATES))
        return read_listed(answer, "resource_templates", ResourceTemplate)

    async def read_resource(
        self, resource: Readable, *, server: str | None = None, values: Values | None = None
    ) -> ResourceResult:
        """As `ToolExecutor.read_resource`. When the awaiting task is cancelled, so is the read."""
        return ResourceResult.of(await self._answer(self._read(resource, server, values)))

    async def watch_resource(self, resource: Readable, *, server: str | None = None) -> AsyncResourceWatch:
        """As `ToolExecutor.watch_resource`, for `async for` and `async with`."""
        return AsyncResourceWatch(await _run(self._watch(resource, server)))

    async def list_prompts(self, server: str) -> tuple[PromptDefinition, ...]:
        """As `ToolExecutor.list_prompts`."""
        return read_listed(await self._answer(self._ask(server, LIST_PROMPTS)), "prompts", PromptDefinition)

    async def get_prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> PromptResult:
        """As `ToolExecutor.get_prompt`. When the awaiting task is cancelled, so is the request."""
        asked = {"name": name, "arguments": dict(arguments or {})}
        return PromptResult.of(await self._answer(self._ask(server, GET_PROMPT, asked)))

    async def complete(
        self,
        target: PromptDefinition | ResourceTemplate,
        argument: str,
        value: str = "",
        *,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """As `ToolExecutor.complete`."""
        asked = build_completion(target, argument, value, context)
        return read_structured(await self._answer(self._ask(target.server, COMPLETE, asked)), Completion)

    async def search(self, text: str, limit: int = 8) -> list[ToolDefinition]:
        """As `ToolExecutor.search`. It runs in a thread, because the first one builds the index."""
        listed = self._lister.last or await self.list_tools()
        return await asyncio.to_thread(listed.search, text, limit=limit, permits=self._adviser.permits)

    async def server(self, name: str) -> ServerStatus:
        """As `ToolExecutor.server`."""
        return await _run(self._statuses.read_one(name))

    async def servers(self) -> dict[str, ServerStatus]:
        """As `ToolExecutor.servers`."""
        return await _run(self._statuses.read_all())

    async def tool_info(self, name: str) -> ToolInfo:
        """As `ToolExecutor.tool_info`."""
        return await _run(self._statuses.find_tool(name, self._lister.last))

    async def is_mcp_tool(self, name: str) -> bool:
        """As `ToolExecutor.is_mcp_tool`."""
        return await _run(self._statuses.is_tool(name, self._lister.last))

    async def on_event(self, function: OnEvent) -> Callable[[], None]:
        """As `ToolExecutor.on_event`. The function runs on this event loop, one event after the other, and may be a
        coroutine function."""
        return await _run(self._events.add(deliver_in_loop(function, asyncio.get_running_loop())))

    async def can_execute(self, name: str) -> Permission:
        """As `ToolExecutor.can_execute`."""
        return self._adviser.advise(name, self._lister.last)

    async def submit(
        self,
        call: ToolCall | str,
        arguments: Arguments = None,
        *,
        on_progress: OnProgress | None = None,
        events: bool = False,
        priority: Priority | None = None,
        context: object = None,
    ) -> AsyncPendingCall:
        """As `ToolExecutor.submit`. `on_progress` runs on this event loop, and may be a coroutine function."""
        built = build_call(call, arguments, priority)
        progress_calls = AsyncProgressCalls(on_progress) if on_progress is not None else None
        buffer = EventBuffer() if events or progress_calls else None
        heard = CallEvents(buffer, *([progress_calls.buffer] if progress_calls else ())) if buffer else None
        [submitted] = self._dispatcher.start([built], is_submitted=True, events=heard, context=context)
        assert submitted.sent is not None
        await self._wait_for([submitted], submitted.sent)
        submitted.sent.result()
        return AsyncPendingCall(self._dispatcher, submitted, buffer, progress_calls)

    async def attach(self, task_id: str, name: str) -> AsyncPendingCall:
        """As `ToolExecutor.attach`."""
        submitted = self._dispatcher.attach(task_id, name)
        assert submitted.sent is not None
        await wait_for(submitted.sent)
        return AsyncPendingCall(self._dispatcher, submitted)

    async def resume(self, pending: AsyncPendingCall, answers: Answers) -> AsyncPendingCall:
        """As `ToolExecutor.resume`."""
        (await self._answer(self._dispatcher.inputs.answer(pending.submitted, answers))).raise_for_outcome()
        return pending

    async def execute(
        self,
        call: ToolCall | str,
        arguments: Arguments = None,
        *,
        priority: Priority | None = None,
        context: object = None,
    ) -> ToolResult:
        """As `ToolExecutor.execute`. When the awaiting task is cancelled, so is the call."""
        [submitted] = self._dispatcher.start([build_call(call, arguments, priority)], context=context)
        return await self._answer(submitted)

    async def execute_many(
        self, calls: Iterable[ToolCall | tuple[str, Arguments]], *, context: object = None
    ) -> list[ToolResult]:
        """As `ToolExecutor.execute_many`. When the awaiting task is cancelled, so are the calls."""
        submitted = self._dispatcher.start(build_calls(calls), context=context)
        await self._wait_for(submitted, *(call.answered for call in submitted))
        return self._dispatcher.read_answers(submitted)

    async def read_result(
        self,
        handle: str,
        offset: int = 0,
        limit: int = PAGE_CHARS,
        *,
        contains: str | None = None,
        part: Part = "content",
    ) -> ResultPart:
        """As `ToolExecutor.read_result`."""
        check_request(handle, offset, limit, contains, part)
        whole = await _run(self._dispatcher.reader.fetch(handle))
        asked: dict[str, Any] = {"offset": offset, "limit": limit, "contains": contains, "part": part}
        return await asyncio.to_thread(read_part, whole, handle, **asked)

    async def _answer(self, submitted: SubmittedCall) -> ToolResult:
        await self._wait_for([submitted], submitted.answered)
        return submitted.answered.result()

    async def _wait_for(self, calls: "list[SubmittedCall]", *futures: "Future[Any]") -> None:
        try:
            for future in futures:
                await wait_for(future)
        except asyncio.CancelledError:
            self._dispatcher.abandon(calls)
            raise


async def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    future = run_in_background(coroutine)
    try:
        await wait_for(future)
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()
