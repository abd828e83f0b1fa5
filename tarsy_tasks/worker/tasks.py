"""The three tasks. Here a call enters a worker, and here its way can be read from top to bottom.

Each task answers with data, also when the call fails: FAILURE in Celery means that the worker itself failed, not the tool.
Arguments and results are documented in docs/protocol.md; any Celery producer may send them.
"""

import time
from typing import Any

from celery import Task, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from pydantic import ValidationError

from tarsy_tasks import celery_app
from tarsy_tasks.arguments import parse_arguments
from tarsy_tasks.errors import CallError, ToolNameError
from tarsy_tasks.models import PROTOCOL_VERSION, CallInfo, ToolDefinition, ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import resolve_tool_name
from tarsy_tasks.worker import health
from tarsy_tasks.worker.content import build_result
from tarsy_tasks.worker.masking import build_masker
from tarsy_tasks.worker.pool import Job, current_job
from tarsy_tasks.worker.sessions import ServerConnection

__all__ = ["call_tool", "check_server", "list_tools"]

_masker = build_masker()


class ServerTask(Task):
    """A task of one MCP server: arguments stay out of events, a call is not run twice by Celery's own retries."""

    abstract = True
    Request = "tarsy_tasks.worker.request:CallRequest"
    max_retries = 0


@shared_task(name=celery_app.CALL_TOOL, base=ServerTask)
def call_tool(server: str, tool: str, arguments: Any = None, call: Any = None) -> ToolResult:
    """Call one tool of one MCP server.

    Args:
        server: Id of the server, as configured.
        tool: Name of the tool, as the server lists it.
        arguments: JSON object, or the text that a model wrote.
        call: A `CallInfo` as JSON: who asks, and how long they wait.
    """
    started = time.monotonic()
    info = CallInfo()
    attempts = 0
    try:
        info = _parse_info(call)
        job = current_job()
        connection = _connection(job, server)
        timeout_s = min(info.timeout_s or float("inf"), connection.server.timeouts.call_timeout(tool))
        definition = _listed_tool(job, connection, tool, timeout_s)
        checked = parse_arguments(arguments, definition.input_schema)
        left_s = max(0.001, timeout_s - (time.monotonic() - started))
        attempts = 1
        result = _call(job, connection, tool, checked, left_s)
        return build_result(
            result,
            _masker,
            call_id=info.call_id,
            name=info.name or definition.name,
            attempts=attempts,
            duration_s=time.monotonic() - started,
        )
    except SoftTimeLimitExceeded as error:
        failure = CallError(
            ErrorCode.TIME_LIMIT,
            f"`{server}.{tool}` was cancelled at Celery's soft time limit of {error.args[0]:g} s. It may have run.",
        )
    except CallError as error:
        failure = error
    return ToolResult(
        call_id=info.call_id,
        name=info.name or f"{server}.{tool}",
        content=_masker.mask(failure.text),
        outcome=failure.outcome,
        error_code=failure.code,
        attempts=attempts,
        duration_s=round(time.monotonic() - started, 6),
    )


@shared_task(name=celery_app.LIST_TOOLS, base=ServerTask)
def list_tools(server: str) -> dict[str, Any]:
    """All tools of one MCP server: `{"v", "server", "tools": [ToolDefinition], "error": null | {"code", "text"}}`."""
    tools: list[ToolDefinition] = []
    failure: CallError | None = None
    try:
        job = current_job()
        connection = _connection(job, server)
        tools = list((connection.tools or job.run(connection.connected()).tools).values())
    except CallError as error:
        failure = error
    return {
        "v": PROTOCOL_VERSION,
        "server": server,
        "tools": [tool.model_dump(mode="json") for tool in tools],
        "error": {"code": failure.code, "text": _masker.mask(failure.text)} if failure else None,
    }


@shared_task(name=celery_app.CHECK_SERVER, base=ServerTask, bind=True, ignore_result=True)
def check_server(self: Any, server: str) -> dict[str, Any]:
    """List the tools of one MCP server past every cache, and write down in Redis how that went."""
    job = current_job()
    record = health.check_server(job, _connection(job, server), worker=self.request.hostname, masker=_masker)
    health.record_health(self.app.backend.client, record)
    return record.model_dump(mode="json")


def _parse_info(call: Any) -> CallInfo:
    try:
        return CallInfo.model_validate({} if call is None else call)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise CallError(
            ErrorCode.INVALID_MESSAGE,
            f"The task's fourth argument is no call information: {'.'.join(map(str, first['loc']))}: {first['msg']}. "
            "The tool did not run; the producer of this message has to be mended (docs/protocol.md).",
        ) from None


def _connection(job: Job, server: str) -> ServerConnection:
    connection = job.connections.get(server)
    if connection is None:
        raise ToolNameError(
            ErrorCode.UNKNOWN_SERVER,
            f"There is no MCP server `{server}` here. There are: {', '.join(sorted(job.connections)) or 'none'}. "
            "The tool did not run.",
        )
    return connection


def _listed_tool(job: Job, connection: ServerConnection, tool: str, timeout_s: float) -> ToolDefinition:
    """The definition of a tool that the server lists; connects if there is no session."""
    tools = connection.tools
    if tools is None:
        try:
            tools = job.run(connection.connected(), timeout_s).tools
        except TimeoutError:
            raise connection.not_connected_within(timeout_s) from None
    if tool not in tools:
        resolve_tool_name(f"{connection.server.name}.{tool}", {connection.server.name: tools})
    return tools[tool]


def _call(job: Job, connection: ServerConnection, tool: str, arguments: dict[str, Any], timeout_s: float) -> Any:
    try:
        # The SDK's own timeout starts only after the request is written; a stopped server may never read it.
        return job.run(connection.call_tool(tool, arguments, timeout_s), timeout_s + 1.0)
    except TimeoutError:
        raise CallError(
            ErrorCode.CALL_TIMEOUT,
            f"`{connection.server.name}.{tool}` gave no answer within {timeout_s:.3g} s. It may have run. "
            "Look at its effects before you call it again.",
        ) from None
