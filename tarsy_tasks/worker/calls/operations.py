"""What calls can ask for: one operation for each of `tarsy_tasks.methods`, and the tool call."""

from tarsy_tasks.methods import ANSWER_INPUT, CLOSE_SESSION
from tarsy_tasks.worker.calls.completion import CompleteOperation
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.lists import build_list_operations
from tarsy_tasks.worker.calls.operation import AnsweredByInterceptor, Operation
from tarsy_tasks.worker.calls.prompt_get import GetPromptOperation
from tarsy_tasks.worker.calls.resource_read import ReadResourceOperation
from tarsy_tasks.worker.calls.resource_watch import WatchResourceOperation
from tarsy_tasks.worker.calls.resource_watches import ResourceWatches
from tarsy_tasks.worker.calls.tool_call import ToolCallOperation

__all__ = ["build_operations"]


def build_operations(context: WorkerContext, watches: ResourceWatches) -> list[Operation]:
    """All of them."""
    return [
        ToolCallOperation(context),
        ReadResourceOperation(context),
        WatchResourceOperation(context, watches),
        GetPromptOperation(context),
        CompleteOperation(context),
        *build_list_operations(context),
        AnsweredByInterceptor(CLOSE_SESSION),
        AnsweredByInterceptor(ANSWER_INPUT),
    ]
