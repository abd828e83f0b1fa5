"""The operation "complete an argument", of a prompt or of a resource template."""

from typing import Self

from mcp_types import CompleteResult, PromptReference, ResourceTemplateReference
from pydantic import Field, model_validator

from tarsy_tasks.methods import COMPLETE
from tarsy_tasks.models import ToolResult
from tarsy_tasks.prompts import Completion
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.operation import Received
from tarsy_tasks.worker.calls.request_arguments import RequestArguments, read_request
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import ASKED_S
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["CompleteOperation"]

_MOST_VALUES = 100
"""As MCP says."""
_VALUE_CHARS = 1000


class _CompleteArguments(RequestArguments):
    """Attributes:
    prompt: Name of the prompt whose argument it is; else `uri_template` has the template.
    argument: Its name.
    value: What is there of it.
    context: Values of the other arguments, as far as they are known.
    """

    prompt: str | None = Field(default=None, min_length=1, max_length=1000)
    uri_template: str | None = Field(default=None, min_length=1, max_length=8192)
    argument: str = Field(min_length=1, max_length=1000)
    value: str = Field(default="", max_length=8192)
    context: dict[str, str] | None = None

    @model_validator(mode="after")
    def _validate_target(self) -> Self:
        if (self.prompt is None) == (self.uri_template is None):
            raise ValueError("give either `prompt` or `uri_template`")
        return self

    @property
    def target(self) -> PromptReference | ResourceTemplateReference:
        if self.prompt is not None:
            return PromptReference(type="ref/prompt", name=self.prompt)
        return ResourceTemplateReference(type="ref/resource", uri=self.uri_template or "")


class CompleteOperation:
    """`completion/complete`."""

    name = COMPLETE

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    async def prepare(self, call: RunningCall) -> None:
        """Raises `CallError` for arguments that do not say what to complete."""
        read_request(call, _CompleteArguments)

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> Received[CompleteResult]:
        """One attempt; raises what the SDK raises."""
        asked = _CompleteArguments.model_validate(call.arguments)
        argument = {"name": asked.argument, "value": asked.value}
        return Received(
            await session.request(lambda client: client.complete(asked.target, argument, asked.context), timeout_s)
        )

    async def build_result(self, call: RunningCall, found: Received[CompleteResult]) -> ToolResult:
        """The answer, masked."""
        completed = await call.connection.long_work.run(_build, found.result, call.connection.masker, allowed_s=ASKED_S)
        facts = facts_of(self._context, call.info, call.record, ())
        return ToolResult(
            content="\n".join(completed.values) or "(none)", structured=completed.model_dump(mode="json"), **facts
        )


def _build(result: CompleteResult, masker: Masker) -> Completion:
    found = result.completion
    values = tuple(masker.mask_start(value, _VALUE_CHARS) for value in found.values[:_MOST_VALUES])
    has_more = bool(found.has_more) or len(found.values) > _MOST_VALUES
    return Completion(values=values, total=found.total, has_more=has_more)
