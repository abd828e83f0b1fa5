"""Whether a result has the structured content that its tool promised.

Owns the check, which takes the place of the SDK's: that one runs the server's patterns in Python's engine, where one
pattern can take hours, on the event loop.
"""

from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from tarsy_tasks.arguments.schema import UncheckedError, compile_schema, is_compiled
from tarsy_tasks.worker.long_work import ASKED_S, LongWork, is_large

__all__ = ["find_output_problem"]


async def find_output_problem(schema: Mapping[str, Any], result: CallToolResult, long_work: LongWork) -> str:
    """Why a result that is no error does not fit the output schema of its tool, without a full stop; empty if it fits,
    or cannot be checked in bounded time.
    """
    if "structured_content" not in result.model_fields_set:
        return "the tool has an output schema, but this result has no structured content"
    if is_compiled(schema) and not is_large(result.structured_content):
        return _find_problem(schema, result.structured_content)
    return await long_work.run(_find_problem, schema, result.structured_content, allowed_s=ASKED_S)


def _find_problem(schema: Mapping[str, Any], value: Any) -> str:
    try:
        problem = compile_schema(schema).first_problem(value)
    except UncheckedError:
        return ""
    if problem is None:
        return ""
    where = "".join(f"[{step!r}]" for step in problem.instance_path)
    return f"its structured content{where} does not fit the tool's output schema: {problem.message}"
