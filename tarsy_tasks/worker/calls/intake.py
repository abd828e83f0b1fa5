"""From a message to a call, or to the answer why it is not one."""

from typing import Any

from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.principals import principal_of
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import ANONYMOUS, Answer
from tarsy_tasks.methods import TOOL_CALL
from tarsy_tasks.models import CallInfo
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.event_feed import EventFeed
from tarsy_tasks.worker.calls.failures import build_failure
from tarsy_tasks.worker.calls.redelivery import never_deny_run
from tarsy_tasks.worker.calls.running_call import RunningCall, parse_message, require_connection, require_method
from tarsy_tasks.worker.reporting.call_record import CallRecord

__all__ = ["find_principal", "open_call"]


def open_call(
    context: WorkerContext, task_id: str, arguments: tuple[Any, ...], delivery: Delivery | None, record: CallRecord
) -> RunningCall | Answer:
    """The call that a message asks for.

    Args:
        arguments: Those of the task: server, tool, arguments and call, as any producer may have written them, and
            whatever else the message has.
        delivery: None for a task that no message brought.
    """
    info = CallInfo()
    may_have_run = delivery is not None and delivery.state is CallState.BEGUN
    server, tool, raw, *_ = arguments
    try:
        info = parse_message(arguments)
        if record.operation != TOOL_CALL:
            require_method(record.operation, info)
        connection = require_connection(context, server)
    except CallError as error:
        failure = never_deny_run(error, record, may_have_run=may_have_run)
        return Answer(build_failure(context, failure, info, record, context.masker))
    record.is_served = True
    record.is_listed = (
        record.operation != TOOL_CALL or tool in (connection.tools or ()) or context.metrics.has_counted(server, tool)
    )
    call = RunningCall(
        id=task_id,
        operation=record.operation,
        server=server,
        tool=tool,
        info=info,
        queue=delivery.queue if delivery is not None else "",
        principal=record.principal,
        priority=record.priority,
        delivery_count=delivery.count if delivery is not None else 1,
        raw_arguments=raw,
        may_have_run=may_have_run,
        run_blocking=context.loop.run_blocking,
        connection=connection,
        delivery=delivery,
        record=record,
    )
    if info.events:
        call.feed = record.feed = EventFeed(context, connection, task_id, delivery)
    return call


def find_principal(context: WorkerContext, delivery: Delivery | None) -> str:
    """Who sent a message; nobody who is known, for a task that no message brought."""
    if delivery is None:
        return ANONYMOUS
    # Where agents are not bound, anybody can have a worker write into any queue.
    return principal_of(delivery.queue if context.binding.is_bound else "", delivery.signer)
