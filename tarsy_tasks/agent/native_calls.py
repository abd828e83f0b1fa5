"""Calls of tools that are functions of the agent: they run in this process, without a worker.

Owns their time, their errors and their audit entries. Arguments are read as a worker reads them. Its coroutine runs on
the background loop, the functions never do.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent import results
from tarsy_tasks.agent.audit import audit_of
from tarsy_tasks.agent.function_run import FunctionRuns, TooManyHanging
from tarsy_tasks.agent.native_results import call_native_tool
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.errors import ArgumentsError, CallError
from tarsy_tasks.models import ToolDefinition, ToolResult
from tarsy_tasks.native.tool import NativeTool
from tarsy_tasks.outcomes import ErrorCode

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["NativeCalls"]

logger = logging.getLogger(__name__)

Finish = Callable[[Any], Any]
_NOT_CALLED = (
    ErrorCode.INVALID_ARGUMENTS,
    ErrorCode.REFUSED,
    ErrorCode.SERVER_UNAVAILABLE,
    ErrorCode.UNKNOWN_TOOL,
)


@dataclass(eq=False)
class NativeCalls:
    """The native tools of one executor; true if there are any. Attributes are those of `CallDispatcher`."""

    find_app: "Callable[[], Celery]"
    agent_id: str | None
    run_id: str | None
    _tools: dict[tuple[str, str], NativeTool] = field(default_factory=dict[tuple[str, str], NativeTool], init=False)
    _runs: FunctionRuns = field(default_factory=FunctionRuns, init=False)

    def __bool__(self) -> bool:
        return bool(self._tools)

    def add(self, tool: NativeTool) -> None:
        """One tool more."""
        self._tools[tool.definition.server, tool.definition.tool] = tool

    def remove(self, server: str) -> None:
        """Remove the tools under `server`; calls that run go on."""
        self._tools = {key: tool for key, tool in self._tools.items() if key[0] != server}

    def definitions(self) -> list[ToolDefinition]:
        """Of all of them."""
        return [tool.definition for tool in self._tools.values()]

    async def run(self, call: SubmittedCall) -> ToolResult:
        """The answer to a call; also to one that is cancelled meanwhile."""
        began = time.monotonic()
        try:
            answer = await self._run(call, began)
        except CallError as error:
            answer = results.answer_with(error, call, round(time.monotonic() - began, 6))
            repairs = error.repairs if isinstance(error, ArgumentsError) else ()
            attempts = 0 if error.code in _NOT_CALLED else 1
            answer = answer.model_copy(update={"repairs": repairs, "attempts": attempts})
        try:
            audit = await asyncio.to_thread(lambda: audit_of(self.find_app()))
            audit.record_answer(call, answer, agent_id=self.agent_id, run_id=self.run_id)
        except Exception:
            logger.exception("the call of `%s.%s` is not in the audit", call.server, call.tool)
        return answer

    async def _run(self, call: SubmittedCall, began: float) -> ToolResult:
        """Raises `CallError`."""
        name = f"{call.server}.{call.tool}"
        if call.call.idempotency_key is not None:
            raise CallError(
                ErrorCode.REFUSED,
                f"`{name}` was not called: it runs in the process of its agent, where no idempotency keys are kept.",
            )
        if (tool := self._tools.get((call.server, call.tool))) is None:
            raise CallError(ErrorCode.UNKNOWN_TOOL, f"`{name}` was not called: it has just been removed.")
        order = call.order
        work = partial(_call, tool, call, began)
        try:
            async with asyncio.timeout(call.seconds_left()):
                done = await self._runs.run(work, order.loop if order else None, call.context.copy())
        except TimeoutError:
            raise CallError(
                ErrorCode.CALL_TIMEOUT,
                f"`{name}` did not return in time, and may still be running, or may have had its effect. Check "
                "its effects before you call it again.",
            ) from None
        except asyncio.CancelledError:
            text = f"`{name}` was cancelled while it ran. It may still be running, or may have had its effect."
            raise CallError(ErrorCode.CANCELLED, text) from None
        except (TooManyHanging, RuntimeError) as error:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE, f"`{name}` was not called: {error}. Call it again later."
            ) from error
        return _read(done)


def _read(done: "Future[ToolResult]") -> ToolResult:
    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, CallError):
        raise error
    raise CallError(ErrorCode.TOOL_ERROR, f"The tool ran and failed: {type(error).__name__}.") from error


def _call(tool: NativeTool, call: SubmittedCall, began: float, finish: Finish) -> ToolResult:
    """In a thread of its own."""
    from tarsy_tasks.arguments import read_arguments  # most agents have no such tools

    read = read_arguments(call.arguments, tool.definition.input_schema)
    facts = {
        "call_id": call.call.id,
        "name": call.call.name,
        "server": call.server,
        "tool": call.tool,
        "repairs": read.reported,
        "attempts": 1,
        "priority": call.priority,
    }
    answer = call_native_tool(tool, read.arguments, facts, finish)
    ended = {"duration_s": round(time.monotonic() - began, 6), "answered_at": time.time()}
    return answer.model_copy(update=ended)
