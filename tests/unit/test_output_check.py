"""A result and the output schema of its tool."""

import asyncio
from typing import Any

import pytest
from mcp_types import CallToolResult

from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.sessions.output_check import OutputError, check_output

ROWS = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}, "required": ["rows"]}


def check(schema: dict[str, Any], **fields: Any) -> None:
    asyncio.run(check_output(schema, CallToolResult(content=[], **fields), LongWork()))


@pytest.mark.parametrize("rows", [[], [1], [1] * 5000])
def test_a_result_that_fits_is_accepted(rows: list[int]) -> None:
    for _ in range(2):  # compiled by the first
        check(ROWS, structured_content={"rows": rows})


@pytest.mark.parametrize("rows", [["x"], [1] * 5000 + ["x"]])
def test_a_result_that_does_not_fit_is_an_error(rows: list[Any]) -> None:
    for _ in range(2):
        with pytest.raises(OutputError, match=r"\['rows'\]\[\d+\] does not fit the tool's output schema: .*integer"):
            check(ROWS, structured_content={"rows": rows})


def test_a_promised_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(OutputError, match="no structured content"):
        check(ROWS)


def test_what_cannot_be_checked_is_accepted() -> None:
    check({"type": "object", "$ref": "https://example.com/schema.json"}, structured_content={})
