"""Whether a result has the structured content that its tool promised.

Owns the check, which takes the place of the SDK's: that one runs the server's patterns in Python's engine, where one
pattern can take hours, on the event loop.
"""

from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from tarsy_tasks.arguments.schema import UncheckedError, compile_schema, is_compiled
from tarsy_tasks.worker.long_work import ASKED_S, LongWork, is_large

__all__ = ["OutputError", "check_output"]


class OutputError(RuntimeError):
    """The tool ran, but its result does not fit its own output schema; the text has no full stop."""


async def check_output(schema: Mapping[str, Any], result: CallToolResult, long_work: LongWork) -> None:
    """Check a result that is no error. What cannot be checked in bounded time is not checked.

    Raises:
        OutputError: It does not fit the schema.
    """
    if "structured_content" not in result.model_fields_set:
        raise OutputError("the tool has an output schema, but this result has no structured content")
    if is_compiled(schema) and not is_large(result.structured_content):
        _check(schema, result.structured_content)
    else:
        await long_work.run(_check, schema, result.structured_content, allowed_s=ASKED_S)


def _check(schema: Mapping[str, Any], value: Any) -> None:
    try:
        problem = compile_schema(schema).first_problem(value)
    except UncheckedError:
        return
    if problem is not None:
        where = "".join(f"[{step!r}]" for step in problem.instance_path)
        raise OutputError(f"its structured content{where} does not fit the tool's output schema: {problem.message}")
