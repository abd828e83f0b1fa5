"""What may follow a message of a bound agent, over anything that can be written into a message."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.worker.process.canvas_rules import CanvasRefused, keep_headers, rebuild_body
from tests.security.attacker import DESK, attacks, composite, signature

PLACES = ("callbacks", "errbacks", "chain", "chord")
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["mcp.desk", "mcp.vault"])
KINDS = st.sampled_from([None, "group", "chain", "chord", "xmap", "tarsy.call_tool", 7])
KEYS = st.sampled_from(["task_id", "queue", "link", "link_error", "chain", "chord", "is_eager", "routing_key", "args"])


def signatures(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = inner | st.lists(inner, max_size=3)
    options = st.dictionaries(KEYS, several | VALUES, max_size=3)
    held = st.dictionaries(st.sampled_from(["tasks", "header", "body", "kwargs"]), several, max_size=3)
    composites = st.builds(
        lambda kind, held, options: {**DESK, **composite(kind, **held), "options": options}, KINDS, held, options
    )
    calls = st.builds(
        lambda server, options: signature(server, "mcp.desk", **options),
        st.sampled_from(["desk", "vault"]),
        st.dictionaries(KEYS.filter(lambda key: key != "queue"), several | VALUES, max_size=2),
    )
    return composites | calls


FOLLOWING = st.recursive(st.just(DESK) | VALUES, signatures, max_leaves=8)


def calls_in(found: Any) -> Iterator[dict[str, Any]]:
    """All signatures of tasks, wherever they lie."""
    if isinstance(found, dict):
        if "task" in found and found["subtask_type"] is None:
            yield found
        for value in found.values():
            yield from calls_in(value)
    elif isinstance(found, list):
        for value in found:
            yield from calls_in(value)


@given(embed=st.dictionaries(st.sampled_from([*PLACES, "id", "delivery_info"]), FOLLOWING, max_size=3))
def test_what_is_not_refused_stays_with_its_server(embed: Any) -> None:
    try:
        rebuilt = rebuild_body([["desk"], {}, embed], "mcp.desk")
    except CanvasRefused:
        return
    assert rebuilt[2].keys() == set(PLACES)
    for call in calls_in(rebuilt[2]):
        assert call.keys() == DESK.keys()
        assert (call["options"]["queue"], call["args"][0], call["immutable"]) == ("mcp.desk", "desk", True)
    assert rebuild_body(rebuilt, "mcp.desk") == rebuilt


@pytest.mark.parametrize("attack", attacks(signature("vault")).values(), ids=attacks(DESK))
def test_every_attack_is_refused_or_loses_its_headers(attack: dict[str, Any]) -> None:
    if attack["embed"]:
        with pytest.raises(CanvasRefused):
            rebuild_body([[], {}, attack["embed"]], "mcp.desk")
    else:
        assert keep_headers({"id": "x", "traceparent": "y", **attack["headers"]}) == {"id": "x", "traceparent": "y"}


def test_a_call_has_no_other_name_than_its_task_s() -> None:
    assert keep_headers({"id": "x", "shadow": "another name"}) == {"id": "x"}


@pytest.mark.parametrize("body", [None, 7, [], [[], {}], [[], {}, "x"], [[], {}, [DESK]], [[], {}, {"chain": 7}]])
def test_a_body_that_cannot_be_read_is_refused(body: Any) -> None:
    with pytest.raises(CanvasRefused):
        rebuild_body(body, "mcp.desk")


def test_signatures_lie_in_one_another_to_a_limit() -> None:
    nested = DESK
    for _ in range(40):
        nested = signature("desk", link=[nested])
    assert rebuild_body([[], {}, {"callbacks": [nested]}], "mcp.desk")[2]["callbacks"] == [nested]
    for _ in range(400):
        nested = signature("desk", link=[nested])
    with pytest.raises(CanvasRefused, match="are nested more than"):
        rebuild_body([[], {}, {"callbacks": [nested]}], "mcp.desk")
