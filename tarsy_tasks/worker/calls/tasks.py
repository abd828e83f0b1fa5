"""The four Celery tasks: where a call's ending becomes that of a task.

Each task answers with data, even when the call fails: FAILURE in Celery means that the worker itself failed, not the
tool. Arguments and results are documented in docs/protocol.md; any Celery producer may send them.
"""

import time
from typing import Any

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject, TimeLimitExceeded

from tarsy_tasks.broker import keys, task_names
from tarsy_tasks.broker.confinement import current_confinement
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Answer, Ending, Parked, Requeued
from tarsy_tasks.models import ToolListing, ToolResult
from tarsy_tasks.worker.calls.admission import require_queue
from tarsy_tasks.worker.calls.execution import WorkerStopping
from tarsy_tasks.worker.calls.intake import find_principal, open_call
from tarsy_tasks.worker.calls.permission import permitted_listing
from tarsy_tasks.worker.calls.running_call import require_connection
from tarsy_tasks.worker.calls.task_execution import TaskExecution, current_execution, masked_failure
from tarsy_tasks.worker.maskers import build_common_masker
from tarsy_tasks.worker.reporting.call_record import CallRecord
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.listing import Listed

__all__ = ["call_tool", "check_server", "list_tools", "request"]

_SIGNALS = (Ignore, Reject, TimeLimitExceeded)
"""Exceptions that control Celery, and contain no text from elsewhere."""


class ServerTask(Task):
    """A task of one MCP server: arguments stay out of events, failures are masked, Celery retries nothing."""

    abstract = True
    Request = "tarsy_tasks.worker.process.request:CallRequest"
    max_retries = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_confinement() is not None:
            current_execution().require_delivery(getattr(self.request, "delivery", None))
        try:
            return self.run(*args, **kwargs)
        except _SIGNALS:
            raise
        except Exception as error:
            # By what any server has masked: a task may fail before it is known whose it is.
            masked = masked_failure(error, build_common_masker(self.app.mcp_config.enabled_servers.values()))
            if masked is error:
                raise
        raise masked from None


@shared_task(name=task_names.CALL_TOOL, base=ServerTask, bind=True)
def call_tool(
    self: Any, server: Any = "", tool: Any = "", arguments: Any = None, call: Any = None, *more: Any, **unknown: Any
) -> ToolResult:
    """Call one tool of one MCP server.

    Args:
        server: Id of the server, as configured.
        tool: Name of the tool, as the server lists it.
        arguments: JSON object, or the text that a model wrote.
        call: A `CallInfo` as JSON: who asks, and how long they wait.
        more: None. A message that has more is refused.
        unknown: The same.
    """
    return _answer(self, (server, tool, arguments, call, *more, *unknown))


@shared_task(name=task_names.REQUEST, base=ServerTask, bind=True)
def request(
    self: Any, server: Any = "", method: Any = "", arguments: Any = None, call: Any = None, *more: Any, **unknown: Any
) -> ToolResult:
    """Ask one MCP server for something else than a tool.

    Args:
        method: MCP's name of the request, one of `tarsy_tasks.methods.METHODS`.
        arguments: What it needs: a JSON object, or its text.

    The others are those of `call_tool`.
    """
    return _answer(self, (server, method, arguments, call, *more, *unknown))


def _answer(task: Any, arguments: tuple[Any, ...]) -> ToolResult:
    """The body of a task that is a call."""
    execution = current_execution()
    delivery: Delivery | None = getattr(task.request, "delivery", None)
    record = _record_of(execution, task, arguments)
    record.picked_up_at = record.picked_up_at or time.monotonic()
    try:
        ending = _run_call(execution, str(task.request.id), delivery, record, arguments)
    except _SIGNALS:
        raise
    except Exception as error:
        record.fail(error)
        raise
    if isinstance(ending, Parked | Requeued):
        raise Reject(ending.reason, requeue=True)
    if not isinstance(ending, Answer):
        raise Ignore(ending.reason)
    record.result = ending.result
    return ending.result


def _record_of(execution: TaskExecution, task: Any, arguments: tuple[Any, ...]) -> CallRecord:
    """The record of the call that a task is run for; a task that no message brought gets its own."""
    delivery: Delivery | None = getattr(task.request, "delivery", None)
    found = delivery.record if delivery is not None else None
    if isinstance(found, CallRecord):
        return found
    return execution.context.audit.open_record(str(task.request.id), CallMessage(arguments[:4], {}, task.name))


def _run_call(
    execution: TaskExecution, task_id: str, delivery: Delivery | None, record: CallRecord, arguments: tuple[Any, ...]
) -> Ending:
    if isinstance(record.ended, Exception):
        raise record.ended
    if record.ended is not None:
        return record.ended
    call = open_call(execution.context, task_id, arguments, delivery, record)
    return call if isinstance(call, Answer) else execution.run_call(call)


@shared_task(name=task_names.LIST_TOOLS, base=ServerTask, bind=True)
def list_tools(self: Any, server: str) -> dict[str, Any]:
    """The tools of one MCP server that the sender may call: a `ToolListing` with `"error": null | {"code", "text"}`."""
    execution = current_execution()
    listing = ToolListing(server=server)
    failure: CallError | None = None
    masker = execution.context.masker
    try:
        connection = require_connection(execution.context, server)
        masker = connection.masker
        require_queue(_queue_of(self.request), keys.queue(server))
        principal = find_principal(execution.context, getattr(self.request, "delivery", None))
        listed = connection.listed if connection.agents is None else None
        listing = (listed or execution.run(_list(connection, principal))).build()
        if (policy := execution.context.policy) is not None:
            listing = permitted_listing(policy, principal, listing)
    except WorkerStopping:
        raise Reject("the worker stops", requeue=True) from None
    except CallError as error:
        failure = error
    return {
        **listing.model_dump(mode="json"),
        "error": {"code": failure.code, "text": masker.mask(failure.text)} if failure else None,
    }


async def _list(connection: ServerConnection, principal: str) -> Listed:
    """What a server lists, for who asks."""
    if connection.agents is not None:
        async with connection.agents.lend(principal) as own:
            return await _list(own, principal)
    return connection.listed or (await connection.connected_for_call()).listed()


# A check that is lost is made again soon; and lists of tasks, such as Flower's, are not for thousands of them.
@shared_task(
    name=task_names.CHECK_SERVER, base=ServerTask, bind=True, ignore_result=True, acks_late=False, send_events=False
)
def check_server(self: Any, server: str, sent_at: Any = None) -> None:
    """Have one MCP server checked, past every cache. It returns at once: the outcome is a record in Redis.

    Args:
        server: Id of the server, as configured.
        sent_at: When beat sent this, in seconds since the epoch by the clock of Redis.
    """
    context = current_execution().context
    require_connection(context, server)
    require_queue(_queue_of(self.request), keys.check_queue(server))
    waited_s: float | None = None
    if isinstance(sent_at, int | float):
        context.clock.sync(self.app.backend.client)
        # While no worker took it, it was not this one that was too busy.
        taking_s = time.monotonic() - context.taking_since
        waited_s = round(min(max(0.0, context.clock.now() - sent_at), taking_s), 6)
    if context.checks is not None:  # None while the worker stops
        context.checks.request(server, waited_s)


def _queue_of(request: Any) -> str:
    """Where the message of a task came from; empty for a task that no message brought."""
    delivery: Delivery | None = getattr(request, "delivery", None)
    return delivery.queue if delivery is not None else ""
