"""MCP tool calls as Celery tasks.

One call, from the agent to the MCP server and back, is these files in this order:

    agent/executor.py                 `ToolExecutor.execute(call)`: what an agent holds (`async_executor.py` with await)
    agent/dispatcher.py               name → server, call → message in the queue `mcp.<server>` (`publishing.py`)
        broker/deliveries.py              where each message stands in Redis, from its publication to its answer
    worker/calls/tasks.py             `tarsy.call_tool`: the message becomes a call, the call's ending that of the task
    worker/calls/execution.py         the body of a call: a coroutine on the worker's event loop
        worker/calls/interceptors.py      what every call passes, in order: deadline, redelivery, pinned definition …
        worker/calls/tool_call.py         the operation: find the tool, read the arguments, send, build the result
    worker/calls/invocation.py        the call is sent, and after a failure sent again where that is safe
    worker/sessions/connection.py     the server's session, replaced when it is lost (`transport/` below it)
    agent/reply_listener.py           the stored answer reaches the agent that waits

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
