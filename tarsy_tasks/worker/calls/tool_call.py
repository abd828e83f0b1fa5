"""The operation "call a tool": what it needs before it can be sent, sending it, and the result.

Owns the three steps of an operation, `prepare`, `send` and `build_result`; what happens between them is the same for
every operation (`execution`, `invocation`).
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

from mcp_types import CallToolResult, TextContent

from tarsy_tasks.arguments import ParsedArguments, read_arguments
from tarsy_tasks.arguments.schema import is_compiled
from tarsy_tasks.broker.large_results import KEPT_CHARS
from tarsy_tasks.errors import ArgumentsError, CallError, ToolNameError
from tarsy_tasks.models import ToolDefinition, ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import is_shortened, resolve_tool_name
from tarsy_tasks.worker.calls.content import build_result
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.invocation import may_replay, unsent_error
from tarsy_tasks.worker.calls.permission import permitted_tools
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import ASKED_S, LARGE_CHARS, LARGE_VALUES, is_large
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.session import Session
from tarsy_tasks.worker.sessions.tasks_extension import CreatedTask, TaskCreated

__all__ = ["ToolCallOperation", "output_notes"]


class ToolCallOperation:
    """`tools/call`."""

    name = "tool_call"

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    async def prepare(self, call: RunningCall) -> None:
        """Find the tool, connecting the server if there is no session, and read the arguments. Of a call that was sent
        before, only its answer matters any more.

        Raises:
            CallError: There is no such tool, the arguments do not fit it, or the server cannot be asked.
        """
        if call.task:
            with suppress(CallError, ToolNameError):
                await self._prepare(call)
            call.may_replay = True  # asking for the answer
        else:
            await self._prepare(call)

    async def _prepare(self, call: RunningCall) -> None:
        connection = call.connection
        definition = await self._listed_tool(call)
        _require_plain_execution(definition)
        call.definition, call.tool = definition, definition.tool
        call.may_replay = may_replay(definition, connection.server)
        call.record.tool, call.record.is_listed = definition.tool, True
        try:
            if is_large(call.raw_arguments) or not is_compiled(_schema_of(connection, definition)):
                parsed = await connection.long_work.run(
                    _read_arguments, call.raw_arguments, connection, definition, allowed_s=inf
                )
            else:
                parsed = _read_arguments(call.raw_arguments, connection, definition)
        except ArgumentsError as error:
            call.repairs = error.repairs
            raise
        call.repairs = parsed.reported
        call.arguments = call.record.arguments = parsed.arguments

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> CallToolResult | CreatedTask:
        """One attempt; raises what the SDK raises."""
        try:
            found = await session.call_tool(call.tool, call.arguments, timeout_s, call.feed, call.answers)
        except TaskCreated as created:
            return created.task
        problem = await session.find_output_problem(call.tool, found)
        call.notes = output_notes(problem)
        return found

    async def build_result(self, call: RunningCall, found: CallToolResult) -> ToolResult:
        """The answer, masked."""
        facts = facts_of(self._context, call.info, call.record, call.repairs)
        build = partial(build_result, found, call.connection.masker, notes=call.notes, **facts)
        if not _is_large_result(found):
            return build()
        if call.is_cut_if_large:
            call.is_large, build = True, partial(build, limit=KEPT_CHARS)
        built = await call.connection.long_work.run(build, allowed_s=ASKED_S)
        # It took its time, which was not over when the facts were collected.
        duration_s = facts_of(self._context, call.info, call.record, call.repairs)["duration_s"]
        return built.model_copy(update={"duration_s": duration_s})

    async def _listed_tool(self, call: RunningCall) -> ToolDefinition:
        connection = call.connection
        tools = connection.tools
        if tools is None:
            left_s = call.deadline - time.monotonic()
            if left_s <= 0:
                raise unsent_error(call)
            try:
                async with asyncio.timeout(left_s):
                    tools = (await connection.connected_for_call()).tools
            except TimeoutError:
                raise connection.errors.not_connected_within(left_s) from None
        policy = self._context.policy
        if policy is not None and (call.tool not in tools or is_shortened(call.tool)):
            tools = permitted_tools(policy, call.principal, call.server, tools)
        if call.tool in tools:
            return tools[call.tool]
        # Perhaps a shortened function name; otherwise this raises the rejection that lists the tools.
        return tools[resolve_tool_name(f"{call.server}.{call.tool}", {call.server: tools})[1]]


def output_notes(problem: str) -> tuple[str, ...]:
    """What a result says of it that does not fit the output schema of its tool; `problem` says why, if so."""
    return (f"{ErrorCode.INVALID_RESULT}: {problem}",) if problem else ()


def _require_plain_execution(definition: ToolDefinition) -> None:
    """Raises `CallError` for a tool that its server runs only as a task (MCP 2025-11-25)."""
    if definition.execution.get("taskSupport") == "required":
        raise CallError(
            ErrorCode.TASK_REQUIRED,
            f"`{definition.name}` runs only as a task of its MCP server (`taskSupport: required`), and such tasks are "
            "not supported here. Nothing was sent. Use another tool.",
        )


def _read_arguments(arguments: Any, connection: ServerConnection, definition: ToolDefinition) -> ParsedArguments:
    """The arguments, checked by the server's own schema; a rejection says only what of it may be shown."""
    own = _schema_of(connection, definition)
    try:
        return read_arguments(arguments, own)
    except ArgumentsError as error:
        if own is definition.input_schema:
            raise
        repairs = error.repairs
    read_arguments(arguments, definition.input_schema)
    raise ArgumentsError(
        ErrorCode.INVALID_ARGUMENTS,
        "The arguments do not fit this tool. Nothing was sent. The reason is not shown, because that part of the "
        "tool's schema contains a secret. Look for masked values in the schema, and ask the user for them.",
        repairs,
    )


def _schema_of(connection: ServerConnection, definition: ToolDefinition) -> Mapping[str, Any]:
    """The schema of a tool's arguments, as the server itself has it: without masks."""
    session = connection.session
    own = session.unmasked_schema(definition.tool) if session is not None else None
    return definition.input_schema if own is None else own


def _is_large_result(found: CallToolResult) -> bool:
    if len(found.content) > LARGE_VALUES:
        return True
    chars = sum(len(block.text) if isinstance(block, TextContent) else LARGE_CHARS + 1 for block in found.content)
    return chars > LARGE_CHARS or is_large(found.structured_content)
