"""A result and the output schema of its tool."""

import asyncio
import re
from typing import Any

import pytest
from mcp_types import CallToolResult

from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.sessions.output_check import find_output_problem

ROWS = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}, "required": ["rows"]}


def check(schema: dict[str, Any], **fields: Any) -> str:
    return asyncio.run(find_output_problem(schema, CallToolResult(content=[], **fields), LongWork()))


@pytest.mark.parametrize("rows", [[], [1], [1] * 5000])
def test_a_result_that_fits_is_accepted(rows: list[int]) -> None:
    for _ in range(2):  # compiled by the first
        assert check(ROWS, structured_content={"rows": rows}) == ""


@pytest.mark.parametrize("rows", [["x"], [1] * 5000 + ["x"]])
def test_a_result_that_does_not_fit_is_found_out(rows: list[Any]) -> None:
    for _ in range(2):
        found = check(ROWS, structured_content={"rows": rows})
        assert re.search(r"\['rows'\]\[\d+\] does not fit the tool's output schema: .*integer", found)


def test_a_promised_value_that_is_missing_is_found_out() -> None:
    assert "no structured content" in check(ROWS)


def test_what_cannot_be_checked_is_accepted() -> None:
    assert check({"type": "object", "$ref": "https://example.com/schema.json"}, structured_content={}) == ""
