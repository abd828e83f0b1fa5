"""The operation "get a prompt": what it needs before it can be sent, sending it, and the result."""

from functools import partial

from mcp_types import GetPromptResult
from pydantic import Field

from tarsy_tasks.methods import GET_PROMPT
from tarsy_tasks.models import ToolResult
from tarsy_tasks.worker.calls.content import build_messages
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.operation import Received
from tarsy_tasks.worker.calls.request_arguments import RequestArguments, read_request
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import ASKED_S
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["GetPromptOperation"]


class _GetArguments(RequestArguments):
    """Attributes:
    name: Of the prompt.
    arguments: Those of the prompt; in MCP they are texts.
    """

    name: str = Field(min_length=1, max_length=1000)
    arguments: dict[str, str] = Field(default_factory=dict)


class GetPromptOperation:
    """`prompts/get`."""

    name = GET_PROMPT

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    async def prepare(self, call: RunningCall) -> None:
        """Raises `CallError` for arguments that name no prompt."""
        read_request(call, _GetArguments)

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> Received[GetPromptResult]:
        """One attempt; raises what the SDK raises."""
        name, arguments = call.arguments["name"], call.arguments["arguments"]
        answers = call.answers
        return Received(await session.request(lambda client: client.get_prompt(name, arguments, **answers), timeout_s))

    async def build_result(self, call: RunningCall, found: Received[GetPromptResult]) -> ToolResult:
        """The answer, masked. Raises `CallError` if it is too large."""
        facts = facts_of(self._context, call.info, call.record, ())
        build = partial(build_messages, found.result, call.connection.masker, **facts)
        return await call.connection.long_work.run(build, allowed_s=ASKED_S)
