"""Finding tools by words, over the tools of public MCP servers and over a few of our own."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks import ToolDefinition, ToolList

DATA = Path(__file__).parents[1] / "data" / "tool_search"


def tool(server: str, name: str, description: str = "", **parameters: str) -> ToolDefinition:
    schema = {"type": "object", "properties": {each: {"description": text} for each, text in parameters.items()}}
    full_name = f"{server}.{name}"
    return ToolDefinition(name=full_name, server=server, tool=name, description=description, input_schema=schema)


def list_of(*tools: ToolDefinition) -> ToolList:
    return ToolList(tools, {}, {})


FEW = list_of(
    tool("k8s", "pods_list", "List the pods of a namespace.", namespace="Where the pods are"),
    tool("k8s", "podsDelete", "Deletes one pod."),
    tool("k8s", "rollout_restart", "Restart a deployment."),
    tool(
        "desk", "order", "Order things.\n\nAsk before you order more than ten lamps.", item="A thing", count="How many"
    ),
    tool("desk", "émettre", "Écrire une facture."),
    tool("desk", "bare"),
)


def names(found: list[ToolDefinition]) -> list[str]:
    return [each.name for each in found]


@pytest.fixture(scope="module")
def public() -> ToolList:
    found: list[dict[str, Any]] = json.loads((DATA / "tools.json").read_text())["tools"]
    return list_of(*(ToolDefinition(name=f"{each['server']}.{each['tool']}", **each) for each in found))


@pytest.mark.parametrize(("wording", "least"), [("model", 0.95), ("user", 0.80)])
def test_frozen_queries_find_a_tool_in_the_first_five(public: ToolList, wording: str, least: float) -> None:
    queries: list[dict[str, Any]] = json.loads((DATA / f"{wording}_queries.json").read_text())
    known = {each.name for each in public}
    assert len(queries) >= 100
    assert all(known.issuperset(query["tools"]) for query in queries)
    found = [set(names(public.search(query["query"], limit=5))) & set(query["tools"]) for query in queries]
    assert sum(map(bool, found)) / len(queries) >= least


def test_the_data_is_of_many_servers(public: ToolList) -> None:
    assert len(public) >= 300
    assert len({each.server for each in public}) >= 20


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("restart a deployment", "k8s.rollout_restart"),
        ("Restarting Deployments!", "k8s.rollout_restart"),
        ("remove a pod", "k8s.podsDelete"),
        ("erase", "k8s.podsDelete"),
        ("podsDelete", "k8s.podsDelete"),
        ("pods_list", "k8s.pods_list"),
        ("which pods are there in the namespace", "k8s.pods_list"),
        ("lamps", "desk.order"),
        ("item", "desk.order"),
        ("ecrire une FACTURE", "desk.émettre"),
        ("bare", "desk.bare"),
    ],
)
def test_a_tool_is_found_by_what_it_does(text: str, best: str) -> None:
    assert names(FEW.search(text))[0] == best


def test_a_server_that_is_named_comes_first() -> None:
    listed = list_of(*(tool(server, "search", "Search issues.") for server in ("gitlab", "github", "jira")))
    assert [names(listed.search(f"search issues in {each}"))[0] for each in ("GitHub", "jira", "gitlab")] == [
        "github.search",
        "jira.search",
        "gitlab.search",
    ]


def test_a_server_that_the_query_speaks_of_comes_first() -> None:
    listed = list_of(
        tool("notes", "add", "Add a line."),
        tool("vcs", "add", "Add a file to the index, from a path."),
        tool("vcs", "commit", "Record the index as a commit."),
        tool("vcs", "revert", "Revert a commit."),
    )
    assert names(listed.search("add")) == ["notes.add", "vcs.add"]
    found = names(listed.search("add this to my commit"))
    assert found.index("vcs.add") < found.index("notes.add")


def test_a_question_is_answered_by_tools_that_read() -> None:
    listed = list_of(
        tool("pipes", "alpha", "It is for valves."),
        tool("pipes", "beta", "It is for valves.").model_copy(update={"annotations": {"readOnlyHint": True}}),
        tool("pipes", "gamma", "It is for valves.").model_copy(update={"annotations": {"readOnlyHint": False}}),
    )
    assert names(listed.search("the valves"))[0] == "pipes.alpha"
    assert names(listed.search("Are the valves shut?"))[0] == "pipes.beta"


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("keep an eye on the price", "watch.create_monitor"),
        ("remember it for 10 minutes", "cache.expire"),
        ("get the logfile", "box.log_file"),
        ("open the perm", "box.permissions"),
        ("the DB", "box.database"),
    ],
)
def test_phrases_and_unknown_words_stand_for_others(text: str, best: str) -> None:
    listed = list_of(
        tool("watch", "create_monitor"),
        tool("cache", "expire"),
        tool("box", "log_file"),
        tool("box", "permissions"),
        tool("box", "database"),
    )
    assert names(listed.search(text))[0] == best


def test_no_more_than_the_limit_are_found() -> None:
    assert len(FEW.search("pod deployment order", limit=2)) == 2
    assert len(FEW.search("pod deployment order", limit=100)) == 4
    assert FEW.search("zebra") == []
    assert list_of().search("anything") == []


def test_tools_that_are_not_permitted_give_their_place() -> None:
    found = FEW.search("pod", limit=1, permits=lambda each: each.tool != "podsDelete")
    assert names(found) == ["k8s.pods_list"]


@pytest.mark.parametrize(
    "text", ["", "   ", "\0", '"', "*", "'; DROP TABLE tools; --", "NEAR(", "()", "²", "\ud800", "_"]
)
def test_a_text_without_words_finds_nothing(text: str) -> None:
    assert FEW.search(text.replace("DROP TABLE tools", "")) == []


@pytest.mark.parametrize(
    "text", ['pod"', "pod* OR", "name: pod", "pod AND NOT pod", "^pod", "NEAR(pod, 3)", "-pod", "{x}: pod"]
)
def test_the_syntax_of_a_query_means_nothing(text: str) -> None:
    assert "k8s.podsDelete" in names(FEW.search(text))


@given(st.text(max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    assert set(names(FEW.search(text))) <= set(names(list(FEW)))


def test_only_the_beginning_of_a_long_text_counts() -> None:
    long = "zebra " * 20_000 + "restart deployment"
    assert len(long) > 100_000
    assert FEW.search(long) == []
    assert names(FEW.search("restart deployment " + long))[0] == "k8s.rollout_restart"
    assert FEW.search("x" * 100_000 + " restart") == []


def test_a_tool_of_a_hostile_server_does_not_break_the_search() -> None:
    hostile = tool("desk", "odd", "\ud800\0 \" ' ) OR name: " + "x" * 100_000)
    schema: dict[str, Any] = {"properties": [1], "required": 3}
    listed = list_of(*FEW, hostile, hostile.model_copy(update={"input_schema": schema, "annotations": {"title": 3}}))
    assert names(listed.search("restart a deployment"))[0] == "k8s.rollout_restart"
    assert "desk.odd" in names(listed.search("odd"))


@pytest.mark.parametrize(
    ("text", "limit", "named"),
    [
        (None, 8, "text"),
        (b"pod", 8, "text"),
        ("pod", 0, "limit"),
        ("pod", -1, "limit"),
        ("pod", 1.5, "limit"),
        ("pod", True, "limit"),
    ],
)
def test_a_wrong_search_names_what_is_wrong(text: Any, limit: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FEW.search(text, limit=limit)


def test_lists_are_equal_whether_they_were_searched_or_not() -> None:
    searched, other = list_of(*FEW), list_of(*FEW)
    searched.search("pod")
    assert searched == other


def test_a_list_of_the_same_tools_keeps_the_index() -> None:
    searched, same, changed = list_of(*FEW), list_of(*FEW), list_of(*FEW, tool("desk", "zebra"))
    searched.search("pod")
    same.take_index(searched)
    changed.take_index(searched)
    assert vars(same)["_index"] is vars(searched)["_index"]
    assert names(changed.search("zebra")) == ["desk.zebra"]


def test_threads_may_search_the_same_list(public: ToolList) -> None:
    texts = ["list pods", "create an issue", "read a file", "send a message"] * 10
    alone = [names(public.search(text)) for text in texts]
    together: list[list[str]] = [[] for _ in texts]

    def search(number: int) -> None:
        together[number] = names(public.search(texts[number]))

    threads = [threading.Thread(target=search, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
