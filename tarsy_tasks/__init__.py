"""MCP tool calls as Celery tasks.

One call, from the agent to the MCP server and back, is these files in this order; what they use is indented:

    agent/executor.py                     `ToolExecutor.execute(call)`: what an agent holds (`async_executor.py`: await)
    agent/dispatcher.py                   name → server, call → message in the queue `mcp.<server>`
        agent/connection.py                   sends it, with an entry in the in-flight table (`broker/deliveries.py`)
    worker/process/fetcher.py             takes the message from its queue, with a lease (`broker/fetch.py`)
    worker/process/plain_calls.py         which messages need no thread; their answers are stored from the loop
        worker/calls/tasks.py                 `tarsy.call_tool`, for the others: Celery's tracer in a pool thread
        worker/calls/task_execution.py        how that thread waits for the loop (`process/pool.py` has both)
        worker/calls/intake.py                message → call
    worker/calls/execution.py             the body of a call: a coroutine on the loop, from message to ending
        worker/calls/interceptors.py          what every call passes, in order: deadline, redelivery, queue …
        worker/calls/tool_call.py             finds the tool, reads the arguments; `invocation` sends through it
    worker/calls/invocation.py            session, begin marker, send; again where that is safe
        worker/sessions/connection.py         the server's session, replaced when it is lost (`worker/transport/` below)
        worker/calls/content.py               MCP result → text, structured value, attachments; masked
    broker/deliveries.py                  stores the answer, with acknowledgement and audit entry, and publishes it
    agent/reply_listener.py               the answer reaches the agent that waits

What both halves share is at the top: `models` and `outcomes` (what an agent reads), `errors`, `tool_names`,
`settings`, `health`, `catalogue`, and the packages `config`, `arguments`, `masking`, `broker` and `telemetry`.
Importing this package imports nothing; every public name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarsy_tasks.agent.async_executor import AsyncPendingCall, AsyncToolExecutor
    from tarsy_tasks.agent.executor import PendingCall, ToolExecutor
    from tarsy_tasks.agent.signatures import tool_signature
    from tarsy_tasks.agent.tool_list import ToolList
    from tarsy_tasks.celery_app import TarsyApp
    from tarsy_tasks.errors import BrokerUnavailable, ConfigError, OutcomeError, ResultTimeout, TarsyTasksError
    from tarsy_tasks.masking.masker import mask_text
    from tarsy_tasks.models import Attachment, ToolCall, ToolDefinition, ToolResult
    from tarsy_tasks.outcomes import ErrorCode, Outcome

    app: TarsyApp

__all__ = [
    "AsyncPendingCall",
    "AsyncToolExecutor",
    "Attachment",
    "BrokerUnavailable",
    "ConfigError",
    "ErrorCode",
    "Outcome",
    "OutcomeError",
    "PendingCall",
    "ResultTimeout",
    "TarsyTasksError",
    "ToolCall",
    "ToolDefinition",
    "ToolExecutor",
    "ToolList",
    "ToolResult",
    "app",
    "mask_text",
    "tool_signature",
]

_NAMES = {
    "agent.async_executor": "AsyncPendingCall AsyncToolExecutor",
    "models": "Attachment ToolCall ToolDefinition ToolResult",
    "errors": "BrokerUnavailable ConfigError OutcomeError ResultTimeout TarsyTasksError",
    "outcomes": "ErrorCode Outcome",
    "agent.executor": "PendingCall ToolExecutor",
    "agent.tool_list": "ToolList",
    "entry_point": "app",
    "masking.masker": "mask_text",
    "agent.signatures": "tool_signature",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
