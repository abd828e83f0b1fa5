"""The three tasks. Here a call enters a worker, and here its way can be read from top to bottom.

Each task answers with data, also when the call fails: FAILURE in Celery means that the worker itself failed, not the
tool. Arguments and results are documented in docs/protocol.md; any Celery producer may send them.
"""

import time
from typing import Any

from celery import Task, current_app, shared_task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from pydantic import ValidationError
from redis.exceptions import RedisError
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from tarsy_tasks.arguments import ParsedArguments, read_arguments
from tarsy_tasks.broker import keys, task_names
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.errors import ArgumentsError, CallError, ToolNameError
from tarsy_tasks.models import CallInfo, ToolDefinition, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import resolve_tool_name
from tarsy_tasks.worker.calls.content import build_result
from tarsy_tasks.worker.calls.execution import TaskExecution, WorkerStopping, current_execution
from tarsy_tasks.worker.calls.failure_masking import masked_failures
from tarsy_tasks.worker.calls.guard import Guard, require_queue
from tarsy_tasks.worker.calls.invocation import Invocation
from tarsy_tasks.worker.maskers import build_masker
from tarsy_tasks.worker.process.consumer import taking_for_s
from tarsy_tasks.worker.reporting.audit_writer import audit, audited
from tarsy_tasks.worker.reporting.call_metrics import counted
from tarsy_tasks.worker.reporting.health_checks import request_check
from tarsy_tasks.worker.reporting.tool_changes import Approvals
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["call_tool", "check_server", "list_tools"]

_masker = build_masker()
_clock = RedisClock()
_approvals = Approvals()
_GUARD_S = 0.5
_NAME_CHARS = 1000
_NO_LIMIT_S = 24 * 3600.0
"""For callers that name no timeout: the server's own limits are all that bounds the call."""


class ServerTask(Task):
    """A task of one MCP server: arguments stay out of events, a call is not run twice by Celery's own retries."""

    abstract = True
    Request = "tarsy_tasks.worker.process.request:CallRequest"
    max_retries = 0


@shared_task(name=task_names.CALL_TOOL, base=ServerTask, bind=True)
@masked_failures
@counted
@audited
def call_tool(
    self: Any, server: str = "", tool: str = "", arguments: Any = None, call: Any = None, *more: Any, **unknown: Any
) -> ToolResult:
    """Call one tool of one MCP server.

    Args:
        server: Id of the server, as configured.
        tool: Name of the tool, as the server lists it.
        arguments: JSON object, or the text that a model wrote.
        call: A `CallInfo` as JSON: who asks, and how long they wait.
        more: None. A message that brings more is refused.
        unknown: The same.
    """
    started = time.monotonic()
    info = CallInfo()
    repairs: tuple[str, ...] = ()
    invocation: Invocation | None = None
    job = current_execution()
    guard = Guard(job, self.request)
    trail = audit.trail_of(self.request)
    masker = _masker
    try:
        if more or unknown:
            raise _invalid_message("it has arguments beside `server`, `tool`, `arguments` and `call`")
        info = _parse_message(server, tool, call)
        deadline = started + _time_left(info)
        with guard.admitted(deadline):
            connection = _connection(job, server)
            masker = connection.masker
            require_queue(self.request, keys.queue(server))
            definition = _listed_tool(job, connection, tool, deadline)
            trail.tool = definition.tool
            if connection.server.pin == "block":
                _approvals.require(definition, current_app.backend.client)
            parsed = _read_arguments(arguments, connection, definition)
            repairs, trail.arguments = parsed.reported, parsed.arguments
            guard.begin(definition, connection.server, deadline)
            invocation = Invocation(
                connection, definition, parsed.arguments, deadline, lost_attempts=int(guard.may_have_run)
            )
            trail.invocation = invocation
            result = _invoke(job, invocation)
        return build_result(
            result,
            connection.masker,
            call_id=_shown_name(info.call_id, server),
            name=_shown_name(info.name, server) or definition.name,
            attempts=invocation.attempts,
            duration_s=time.monotonic() - started,
            repairs=repairs,
        )
    except SoftTimeLimitExceeded as error:
        limit = f"Celery's soft time limit of {error.args[0]:g} s"
        if invocation is not None and invocation.may_have_run:
            failure = CallError(
                ErrorCode.TIME_LIMIT,
                f"`{server}.{tool}` was cancelled at {limit}. It may have run. "
                "Look at its effects before you call it again.",
            )
        else:
            failure = CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"MCP server `{server}` was not connected within {limit}. The tool did not run. Try again later.",
            )
        failure = guard.truthful(failure, f"{server}.{tool}")
    except WorkerStopping:
        if invocation is not None:
            invocation.close()
        if invocation is None or not invocation.may_have_run:
            guard.unbegin()
            raise Reject("the worker stops", requeue=True) from None
        if invocation.may_replay:
            raise Reject("the worker stops", requeue=True) from None
        failure = CallError(
            ErrorCode.WORKER_STOPPED,
            f"The worker was stopped while `{server}.{tool}` ran, and the MCP server was told to cancel it. It may "
            "have run. Look at its effects before you call it again.",
        )
    except CallError as error:
        failure = guard.truthful(error, f"{server}.{tool}")
        repairs = error.repairs if isinstance(error, ArgumentsError) else repairs
    return ToolResult(
        call_id=_shown_name(info.call_id, server),
        name=_shown_name(info.name or f"{server}.{tool}", server),
        content=masker.mask(failure.text),
        outcome=failure.outcome,
        error_code=failure.code,
        repairs=repairs,
        attempts=invocation.attempts if invocation is not None else 0,
        duration_s=round(time.monotonic() - started, 6),
    )


@shared_task(name=task_names.LIST_TOOLS, base=ServerTask, bind=True)
@masked_failures
def list_tools(self: Any, server: str) -> dict[str, Any]:
    """All tools of one MCP server: a `ToolListing` with `"error": null | {"code", "text"}`."""
    listing = ToolListing(server=server)
    failure: CallError | None = None
    masker = _masker
    try:
        job = current_execution()
        connection = _connection(job, server)
        masker = connection.masker
        require_queue(self.request, keys.queue(server))
        session = connection.session or job.run(connection.connected_for_call())
        listing = session.listing()
    except WorkerStopping:
        raise Reject("the worker stops", requeue=True) from None
    except CallError as error:
        failure = error
    return {
        **listing.model_dump(mode="json"),
        "error": {"code": failure.code, "text": masker.mask(failure.text)} if failure else None,
    }


# A check that is lost is made again soon; and lists of tasks, such as Flower's, are not for thousands of them.
@shared_task(
    name=task_names.CHECK_SERVER, base=ServerTask, bind=True, ignore_result=True, acks_late=False, send_events=False
)
@masked_failures
def check_server(self: Any, server: str, sent_at: Any = None) -> None:
    """Have one MCP server checked, past every cache. It returns at once: the outcome is a record in Redis.

    Args:
        server: Id of the server, as configured.
        sent_at: When beat sent this, in seconds since the epoch by the clock of Redis.
    """
    _connection(current_execution(), server)
    require_queue(self.request, keys.check_queue(server))
    waited_s: float | None = None
    if isinstance(sent_at, int | float):
        _clock.sync(current_app.backend.client)
        # While no worker was there to take it, it was not this one that was too busy.
        waited_s = round(min(max(0.0, _clock.now() - sent_at), taking_for_s()), 6)
    request_check(server, waited_s)


def _shown_name(name: str, server: Any) -> str:
    """A name as it may be stored: perhaps a model made it up, of whatever was at hand."""
    return audit.mask_name(name, server=server if isinstance(server, str) else "")[:_NAME_CHARS]


def _parse_message(server: Any, tool: Any, call: Any) -> CallInfo:
    """What a message says beside the arguments of the tool; any producer may have written it."""
    for what, value in (("server", server), ("tool", tool)):
        if not isinstance(value, str) or not value:
            raise _invalid_message(f"its argument `{what}` is no text but {type(value).__name__}")
    try:
        return CallInfo.model_validate({} if call is None else call)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(["call", *map(str, first["loc"])])
        raise _invalid_message(f"its argument `{place}` is wrong: {first['msg']}") from None


def _invalid_message(what: str) -> CallError:
    return CallError(
        ErrorCode.INVALID_MESSAGE,
        f"The message of this call is not as it should be: {what}. The tool did not run. "
        "The program that sent it has to be mended (docs/protocol.md).",
    )


def _time_left(info: CallInfo) -> float:
    """Seconds that this call may take, by its own timeout and its deadline."""
    left_s = info.timeout_s or _NO_LIMIT_S
    if info.deadline is not None:
        if not _clock.is_fresh:  # tenacity costs more than the rest of this
            _sync_clock(current_app.backend.client)
        left_s = min(left_s, info.deadline - _clock.now())
    if left_s <= 0:
        raise CallError(
            ErrorCode.DEADLINE_PASSED,
            f"The call waited in its queue until {-left_s:.3g} s after its deadline, so it was not started. "
            "The tool did not run. The workers may be overloaded: call again later, or allow more time.",
        )
    return left_s


@retry(retry=retry_if_exception_type(RedisError), wait=wait_fixed(0.2), stop=stop_after_delay(10), reraise=True)
def _sync_clock(redis: Any) -> None:
    _clock.sync(redis)


def _connection(job: TaskExecution, server: str) -> ServerConnection:
    connection = job.connections.get(server)
    if connection is None:
        raise ToolNameError(
            ErrorCode.UNKNOWN_SERVER,
            f"There is no MCP server `{server}` here. There are: {', '.join(sorted(job.connections)) or 'none'}. "
            "The tool did not run.",
        )
    return connection


def _listed_tool(job: TaskExecution, connection: ServerConnection, tool: str, deadline: float) -> ToolDefinition:
    """The definition of a tool that the server lists; connects if there is no session."""
    server = connection.server.name
    tools = connection.tools
    if tools is None:
        left_s = _seconds_left(deadline)
        try:
            tools = job.run(connection.connected_for_call(), left_s).tools
        except TimeoutError:
            raise connection.errors.not_connected_within(left_s) from None
    if tool not in tools:
        # Perhaps a shortened function name; else this raises the rejection that lists what there is.
        tool = resolve_tool_name(f"{server}.{tool}", {server: tools})[1]
    return tools[tool]


def _read_arguments(arguments: Any, connection: ServerConnection, definition: ToolDefinition) -> ParsedArguments:
    """The arguments, checked by the server's own schema; a rejection says only what of it may be shown."""
    session = connection.session
    own = session.unmasked_schema(definition.tool) if session is not None else None
    if own is None:
        return read_arguments(arguments, definition.input_schema)
    try:
        return read_arguments(arguments, own)
    except ArgumentsError as error:
        repairs = error.repairs
    read_arguments(arguments, definition.input_schema)
    raise ArgumentsError(
        ErrorCode.INVALID_ARGUMENTS,
        "The arguments do not fit this tool. Nothing was sent. Why is not told here, because that part of the tool's "
        "schema holds a secret. Look at the schema for values that are masked, and ask the user for them.",
        repairs,
    )


def _invoke(job: TaskExecution, invocation: Invocation) -> Any:
    try:
        # The SDK's own timeout starts only after the request is written; a stopped server may never read it.
        return job.run(invocation.run(), invocation.seconds_left + _GUARD_S)
    except TimeoutError:
        raise invocation.timed_out() from None


def _seconds_left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
