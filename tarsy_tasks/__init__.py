"""MCP tool calls as Celery tasks.

The way of one call, from the agent to the MCP server and back: a selection of its files, in order. What they use is
indented, and where a plain call and a call with a thread part, there are two lines:

    agent/executor.py                     `ToolExecutor.execute(call)`: what an agent holds (`async_executor.py`: await)
    agent/dispatcher.py                   name → server, call → message in the queue `mcp.<server>`
        agent/connection.py                   sends it, with an entry in the in-flight table (`broker/steps.py`)
    worker/process/fetcher.py             takes the message from its queue, with a lease (`broker/fetch.py`)
    worker/process/fetch_step.py          makes it a plain call, or gives it to Celery's consumer
    worker/process/plain_calls.py         plain: no thread; reads the message, and stores the answer from the loop
    worker/calls/tasks.py                 with a thread: `tarsy.call_tool`, in Celery's tracer
        worker/calls/task_execution.py        how that thread waits for the loop (`process/pool.py` has both)
    worker/calls/intake.py                message → call
    worker/calls/execution.py             the body of a call: a coroutine on the loop, from message to ending
        worker/calls/interceptors.py          what every call passes, in three stages: message, call, attempt
        worker/calls/tool_call.py             between the first two: finds the tool, reads the arguments
    worker/calls/invocation.py            session, third stage with the begin marker, send; again where that is safe
        worker/sessions/connection.py         the server's session, replaced when it is lost (`worker/transport/` below)
        worker/calls/content.py               MCP result → text, structured value, attachments; masked
    broker/async_deliveries.py            plain: stores the answer, with acknowledgement and audit entry
    broker/deliveries.py                  with a thread: the same, for the result backend of Celery
    agent/reply_listener.py               the answer, which is published with that, reaches the agent that waits

What both halves share is at the top: `models` and `outcomes` (what an agent reads), `errors`, `tool_names`,
`settings`, `health`, `catalogue`, and the packages `config`, `arguments`, `masking`, `policy`, `broker` and
`telemetry`. Importing this package imports nothing; every public name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarsy_tasks.agent.async_executor import AsyncPendingCall, AsyncToolExecutor
    from tarsy_tasks.agent.executor import ToolExecutor
    from tarsy_tasks.agent.pending_call import PendingCall
    from tarsy_tasks.agent.resource_watch import AsyncResourceWatch, ResourceWatch
    from tarsy_tasks.agent.server_statuses import ToolInfo
    from tarsy_tasks.agent.signatures import tool_signature
    from tarsy_tasks.agent.summarizer import SummarizedCall, Summarizer
    from tarsy_tasks.agent.tool_list import ToolList
    from tarsy_tasks.call_events import CallEvent, CallLog, CallProgress, CallRestarted, DeadlineMoved
    from tarsy_tasks.celery_app import TarsyApp
    from tarsy_tasks.errors import (
        BrokerUnavailable,
        ConfigError,
        OutcomeError,
        ResultNotFound,
        ResultTimeout,
        TarsyTasksError,
    )
    from tarsy_tasks.masking.masker import mask_text
    from tarsy_tasks.models import (
        Attachment,
        LargeResult,
        ParkedCall,
        ResultPart,
        ResultSummary,
        ToolCall,
        ToolDefinition,
        ToolResult,
    )
    from tarsy_tasks.native.mark import native_tool
    from tarsy_tasks.outcomes import ErrorCode, Outcome
    from tarsy_tasks.prompts import Completion, PromptArgument, PromptDefinition, PromptMessage, PromptResult
    from tarsy_tasks.questions import InputQuestion
    from tarsy_tasks.resources import (
        ResourceChange,
        ResourceContents,
        ResourceDefinition,
        ResourceResult,
        ResourceTemplate,
    )
    from tarsy_tasks.server_events import ServerEvent
    from tarsy_tasks.server_status import ServerCounters, ServerState, ServerStatus

    app: TarsyApp

__all__ = [
    "AsyncPendingCall",
    "AsyncResourceWatch",
    "AsyncToolExecutor",
    "Attachment",
    "BrokerUnavailable",
    "CallEvent",
    "CallLog",
    "CallProgress",
    "CallRestarted",
    "Completion",
    "ConfigError",
    "DeadlineMoved",
    "ErrorCode",
    "InputQuestion",
    "LargeResult",
    "Outcome",
    "OutcomeError",
    "ParkedCall",
    "PendingCall",
    "PromptArgument",
    "PromptDefinition",
    "PromptMessage",
    "PromptResult",
    "ResourceChange",
    "ResourceContents",
    "ResourceDefinition",
    "ResourceResult",
    "ResourceTemplate",
    "ResourceWatch",
    "ResultNotFound",
    "ResultPart",
    "ResultSummary",
    "ResultTimeout",
    "ServerCounters",
    "ServerEvent",
    "ServerState",
    "ServerStatus",
    "SummarizedCall",
    "Summarizer",
    "TarsyTasksError",
    "ToolCall",
    "ToolDefinition",
    "ToolExecutor",
    "ToolInfo",
    "ToolList",
    "ToolResult",
    "app",
    "mask_text",
    "native_tool",
    "tool_signature",
]

_NAMES = {
    "agent.async_executor": "AsyncPendingCall AsyncToolExecutor",
    "call_events": "CallEvent CallLog CallProgress CallRestarted DeadlineMoved",
    "questions": "InputQuestion",
    "models": "Attachment LargeResult ParkedCall ResultPart ResultSummary ToolCall ToolDefinition ToolResult",
    "errors": "BrokerUnavailable ConfigError OutcomeError ResultNotFound ResultTimeout TarsyTasksError",
    "outcomes": "ErrorCode Outcome",
    "prompts": "Completion PromptArgument PromptDefinition PromptMessage PromptResult",
    "resources": "ResourceChange ResourceContents ResourceDefinition ResourceResult ResourceTemplate",
    "agent.executor": "ToolExecutor",
    "agent.pending_call": "PendingCall",
    "agent.resource_watch": "AsyncResourceWatch ResourceWatch",
    "agent.summarizer": "SummarizedCall Summarizer",
    "agent.tool_list": "ToolList",
    "agent.server_statuses": "ToolInfo",
    "server_events": "ServerEvent",
    "server_status": "ServerCounters ServerState ServerStatus",
    "entry_point": "app",
    "masking.masker": "mask_text",
    "native.mark": "native_tool",
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
