"""The operation "read a resource": what it needs before it can be sent, sending it, and the result.

As `tool_call` for tools; what is between the steps of an operation is the same.
"""

from functools import partial
from typing import Annotated

from mcp_types import BlobResourceContents, ReadResourceResult
from pydantic import Field

from tarsy_tasks.methods import READ_RESOURCE
from tarsy_tasks.models import ToolResult
from tarsy_tasks.worker.calls.content import build_contents
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.operation import Received
from tarsy_tasks.worker.calls.request_arguments import RequestArguments, read_request
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.calls.uri_templates import expand_template
from tarsy_tasks.worker.long_work import ASKED_S, LARGE_CHARS
from tarsy_tasks.worker.sessions.cache_hints import read_fresh_s
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["ReadResourceOperation"]

_URI_CHARS = 8 * 1024

Uri = Annotated[str, Field(min_length=1, max_length=_URI_CHARS)]


class _ReadArguments(RequestArguments):
    """Attributes:
    uri: Of the resource; with `values` a template.
    values: What takes the places of the template's variables.
    """

    uri: Uri
    values: dict[str, str | list[str]] | None = None


class ReadResourceOperation:
    """`resources/read`."""

    name = READ_RESOURCE

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    async def prepare(self, call: RunningCall) -> None:
        """Raises `CallError` for arguments that name no resource."""
        asked = read_request(call, _ReadArguments)
        if asked.values is not None:
            call.arguments = call.record.arguments = {"uri": expand_template(asked.uri, asked.values)}

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> Received[ReadResourceResult]:
        """One attempt; raises what the SDK raises."""
        uri, answers = call.arguments["uri"], call.answers
        found = await session.request(lambda client: client.read_resource(uri, **answers), timeout_s)
        call.fresh_s = read_fresh_s(found)
        return Received(found)

    async def build_result(self, call: RunningCall, found: Received[ReadResourceResult]) -> ToolResult:
        """The answer, masked."""
        facts = facts_of(self._context, call.info, call.record, ())
        build = partial(build_contents, found.result, call.connection.masker, **facts)
        if _count_chars(found.result) <= LARGE_CHARS:
            return build()
        built = await call.connection.long_work.run(build, allowed_s=ASKED_S)
        duration_s = facts_of(self._context, call.info, call.record, ())["duration_s"]
        return built.model_copy(update={"duration_s": duration_s})


def _count_chars(result: ReadResourceResult) -> int:
    return sum(len(each.blob) if isinstance(each, BlobResourceContents) else len(each.text) for each in result.contents)
