"""`@tools.native`: functions of the agent as tools, with executors that answer at once."""

import asyncio
import datetime
import enum
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tarsy_tasks import ErrorCode, Outcome, ToolResult
from tarsy_tasks.testing import AsyncStubToolExecutor, StubToolExecutor


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Place(BaseModel):
    city: str
    country: str = "NO"


def plan(
    day: datetime.date,
    places: list[Place],
    level: Level = Level.LOW,
    *,
    limit: Annotated[int, Field(ge=1, description="How many at most.")] = 3,
    schema: Literal["a", "b"] | None = None,
) -> dict[str, Any]:
    """Plans a day.

    More about it.
    """
    assert isinstance(day, datetime.date)
    assert all(isinstance(place, Place) for place in places)
    return {"day": day, "cities": [place.city for place in places], "level": level, "limit": limit, "schema": schema}


def run_sync(function: Callable[..., Any], arguments: Any, name: str = "") -> ToolResult:
    with StubToolExecutor({}) as tools:
        tools.native(function)
        return tools.execute(name or f"native.{function.__name__}", arguments)


def run_async(function: Callable[..., Any], arguments: Any, name: str = "") -> ToolResult:
    async def agent() -> ToolResult:
        async with AsyncStubToolExecutor({}) as tools:
            tools.native(function)
            return await tools.execute(name or f"native.{function.__name__}", arguments)

    return asyncio.run(agent())


both = pytest.mark.parametrize("run", [run_sync, run_async])


def test_the_schema_comes_from_the_annotations() -> None:
    with StubToolExecutor({"desk.order": "fine"}) as tools:
        assert tools.native(plan) is plan
        [_, found] = tools.list_tools()
    assert (found.name, found.server, found.tool) == ("native.plan", "native", "plan")
    assert found.description == "Plans a day.\n\nMore about it."
    schema = found.input_schema
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["day", "places"], False)
    assert list(schema["properties"]) == ["day", "places", "level", "limit", "schema"]
    assert schema["properties"]["limit"] == {
        "type": "integer",
        "minimum": 1,
        "default": 3,
        "description": "How many at most.",
    }
    assert schema["properties"]["day"] == {"type": "string", "format": "date"}


@both
@pytest.mark.parametrize(
    "name", ["native.plan", "native__plan", "mcp_native_plan", "native:plan", "functions.native__plan"]
)
def test_arguments_are_read_as_those_of_every_call(run: Callable[..., ToolResult], name: str) -> None:
    text = '```json\n{"day": "2026-11-24", "places": [{"city": "Oslo"}], "limit": "5", "level": "high",}\n```'
    result = run(plan, text, name)
    assert result.outcome is Outcome.OK, result.content
    assert result.structured == {"day": "2026-11-24", "cities": ["Oslo"], "level": "high", "limit": 5, "schema": None}
    assert result.repairs
    assert (result.name, result.server, result.tool, result.attempts) == (name, "native", "plan", 1)


@both
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"day": "2026-11-24"},
        {"day": "someday", "places": []},
        {"day": "2026-11-24", "places": [], "limit": 0},
        {"day": "2026-11-24", "places": [], "unknown": 1},
        {"day": "2026-11-24", "places": [{"town": "Oslo"}]},
    ],
)
def test_wrong_arguments_are_rejected(run: Callable[..., ToolResult], arguments: Any) -> None:
    result = run(plan, arguments)
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INVALID_ARGUMENTS)
    assert result.attempts == 0


@pytest.mark.parametrize(
    ("value", "content", "structured"),
    [
        ("a text", "a text", None),
        (None, "", None),
        (5, "5", 5),
        ([1, "é"], '[1, "é"]', [1, "é"]),
        (
            {"a": Place(city="Oslo")},
            '{"a": {"city": "Oslo", "country": "NO"}}',
            {"a": {"city": "Oslo", "country": "NO"}},
        ),
        ({"when": datetime.date(2026, 1, 2)}, '{"when": "2026-01-02"}', {"when": "2026-01-02"}),
    ],
)
@both
def test_what_is_returned_is_text_or_json(
    run: Callable[..., ToolResult], value: Any, content: str, structured: Any
) -> None:
    def give() -> Any:
        return value

    async def give_later() -> Any:
        await asyncio.sleep(0)
        return value

    for function in (give, give_later):
        result = run(function, None)
        assert (result.outcome, result.content, result.structured) == (Outcome.OK, content, structured)


def build_circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@both
@pytest.mark.parametrize(
    "value", [object(), {"a": object()}, float("nan"), {1: {2, object()}}, build_circle(), b"\xff"]
)
def test_what_is_not_json_is_an_error(run: Callable[..., ToolResult], value: Any) -> None:
    def give() -> Any:
        return value

    result = run(give, None)
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT)
    assert "`native.give` ran" in result.content


@both
def test_an_error_of_the_function_is_masked(run: Callable[..., ToolResult]) -> None:
    def fail() -> None:
        raise LookupError("no such user, password: hunter2-of-natives")

    result = run(fail, None)
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TOOL_ERROR)
    assert "LookupError: no such user" in result.content
    assert "hunter2" not in result.content


@both
def test_results_are_masked(run: Callable[..., ToolResult]) -> None:
    def tell() -> dict[str, str]:
        return {"user": "sam", "password": "hunter2-of-natives"}

    result = run(tell, None)
    assert result.structured == {"user": "sam", "password": "__MASKED__"}
    assert "hunter2" not in result.content


def test_names_are_given_with_the_decorator() -> None:
    with StubToolExecutor({"desk.order": "fine"}) as tools:

        @tools.native(name="add-up", server="calc", description="Adds.")
        def add(first: int, second: int = 2) -> int:
            return first + second

        assert add(1) == 3
        assert tools.execute("calc.add-up", "first: 40").content == "42"
        assert [tool.description for tool in tools.search("adds", limit=1)] == ["Adds."]
        assert (tools.tool_info("calc__add-up").runs_in, tools.tool_info("desk.order").runs_in) == ("agent", "worker")
        assert (tools.is_mcp_tool("calc.add-up"), tools.is_mcp_tool("desk.order")) == (False, True)
        with pytest.raises(ValueError, match="already"):
            tools.native(name="add-up", server="calc")(add)
        tools.remove_native("calc")
        assert [tool.name for tool in tools.list_tools()] == ["desk.order"]
        assert tools.execute("calc.add-up", "first: 40").error_code is ErrorCode.UNKNOWN_SERVER
        for server in ("calc", "desk"):
            with pytest.raises(ValueError, match="no native tools"):
                tools.remove_native(server)


def positional(first: int, /) -> None: ...
def many(*all_of_them: int) -> None: ...
def named(**all_of_them: int) -> None: ...
def unknown(first: "NoSuchType") -> None: ...  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
def strange(first: Callable[[], int]) -> None: ...
def fielded(first: int = Field(3)) -> None: ...


@pytest.mark.parametrize("function", [positional, many, named, unknown, strange, fielded, lambda: None])
def test_functions_that_cannot_be_tools_are_refused(function: Any) -> None:
    with StubToolExecutor({}) as tools, pytest.raises(ValueError, match=r"tool|parameter"):
        tools.native(function)
