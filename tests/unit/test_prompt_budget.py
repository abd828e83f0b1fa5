"""A prompt of so many tokens: which tools it has, and what it says of the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import ToolDefinition, ToolList
from tarsy_tasks.adapters.openai import openai_tools
from tarsy_tasks.agent.prompt_budget import estimate_tokens
from tarsy_tasks.testing import StubToolExecutor

DATA = Path(__file__).parents[1] / "data" / "tool_search" / "tools.json"


def tool(server: str, name: str, description: str = "Acts on things.") -> ToolDefinition:
    return ToolDefinition(name=f"{server}.{name}", server=server, tool=name, description=description)


def count_words(text: str) -> int:
    return len(text.split())


def described(section: str) -> list[str]:
    return [line.partition("(")[0].removeprefix("- `") for line in section.splitlines() if line.startswith("- `")]


@pytest.fixture(scope="module")
def thousand() -> ToolList:
    """Tools of public servers, twice, under other names of servers the second time."""
    found: list[dict[str, Any]] = json.loads(DATA.read_text())["tools"]
    more = [{**each, "server": f"{each['server']}-2"} for each in found]
    tools = [ToolDefinition(name=f"{each['server']}.{each['tool']}", **each) for each in found + more]
    return ToolList(tools[:1000], {}, {"github": "Be brief.", "git": "Ask first."})


FEW = ToolList(
    [tool("a", "one"), tool("a", "two"), tool("a", "three"), tool("b", "one"), tool("b", "two", "Restarts pods.")],
    {"bank": "it is down"},
    {"a": "Be brief.", "b": "word " * 100},
)


@pytest.mark.parametrize("count", [estimate_tokens, count_words])
@pytest.mark.parametrize("budget", [400, 1_000, 5_000])
def test_a_prompt_keeps_to_its_budget(thousand: ToolList, budget: int, count: Any) -> None:
    section = thousand.prompt_section(budget_tokens=budget, count_tokens=count)
    assert count(section) <= budget
    names = described(section)
    whole = {line for each in thousand for line in ToolList([each], {}, {}).prompt_section().splitlines()}
    assert names
    assert all(line in whole for line in section.splitlines() if line.startswith("- "))
    assert f"{1000 - len(names)} more tools do not fit here" in section
    assert '`search_tools` with {"query": ' in section
    assert len({name.partition(".")[0] for name in names}) == min(len(names), len({each.server for each in thousand}))


def test_all_that_fits_is_there() -> None:
    section = FEW.prompt_section(budget_tokens=10_000)
    assert section == FEW.prompt_section()
    assert "no room" not in section


def test_tools_come_before_instructions_and_servers_take_turns() -> None:
    sizes = [described(FEW.prompt_section(budget_tokens=budget, count_tokens=count_words)) for budget in range(20, 120)]
    assert [each for number, each in enumerate(sizes) if each not in sizes[:number]] == [
        [],
        ["a.one"],
        ["a.one", "b.one"],
        ["a.one", "a.two", "b.one"],
        ["a.one", "a.two", "a.three", "b.one", "b.two"],
    ]
    section = FEW.prompt_section(budget_tokens=100, count_tokens=count_words)
    assert "> Be brief." in section
    assert "> word" not in section
    assert "- bank: it is down" in section


def test_with_a_query_the_tools_that_fit_it_come_first() -> None:
    found = [
        described(FEW.prompt_section(budget_tokens=budget, count_tokens=count_words, query="restart a pod"))
        for budget in range(20, 120)
    ]
    assert ["b.two"] in found
    assert all("b.two" in names for names in found if names)


def test_a_budget_that_is_too_small_still_says_how_to_search() -> None:
    section = FEW.prompt_section(budget_tokens=1)
    assert described(section) == []
    assert "5 more tools do not fit here, of a (3), b (2). To find them, call `search_tools`" in section


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"budget_tokens": 0}, "budget_tokens"),
        ({"budget_tokens": True}, "budget_tokens"),
        ({"budget_tokens": 1.5}, "budget_tokens"),
        ({"budget_tokens": 10, "tools": False}, "tools=False"),
        ({"query": "x"}, "set budget_tokens"),
        ({"count_tokens": len}, "set budget_tokens"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FEW.prompt_section(**options)


def test_two_tools_in_place_of_a_thousand_save_most_tokens(thousand: ToolList) -> None:
    queries = [query["query"] for query in json.loads((DATA.parent / "model_queries.json").read_text())][:20]
    with StubToolExecutor({}, tools=thousand) as tools:
        two = estimate_tokens(json.dumps(openai_tools(tools, search=True)))
        found = [estimate_tokens(tools.execute("search_tools", {"query": query}).content) for query in queries]
    shown = [each.model_dump(include={"name", "description", "input_schema"}) for each in thousand]
    assert two + 3 * max(found) <= 0.1 * estimate_tokens(json.dumps(shown))
