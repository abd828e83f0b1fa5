"""Limits as a policy writes them: what is valid, which calls they are about, and what models read."""

import json
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from tarsy_tasks.broker.binding import Binding
from tarsy_tasks.doctor.finding import Severity
from tarsy_tasks.doctor.policy import check_users
from tarsy_tasks.errors import RateLimited
from tarsy_tasks.models import ToolResult
from tarsy_tasks.policy import LimitRule, Policy, RuleKind, deny_over_limit, describe_wait
from tarsy_tasks.policy.model import PolicyRules
from tests.unit.limits.calls import limits_of


def places(limits: Any, agent: str, server: str, tool: str) -> list[str]:
    applied = limits.of(agent, server, tool)
    return [limit.place for limit in applied.limits.values()] if applied is not None else []


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({}, "it limits nothing"),
        ({"burst": 3, "concurrency": 1}, "`burst` is a part of `rate`"),
        ({"rate": "10"}, "not a rate; write it as `10/s`"),
        ({"rate": "-1/s"}, "not a rate"),
        ({"rate": "1.5/s"}, "not a rate"),
        ({"rate": "١٠/s"}, "not a rate"),
        ({"rate": "10001/s"}, "cannot be told apart"),
        ({"rate": 10}, "valid string"),
        ({"concurrency": -1}, "greater than or equal to 0"),
        ({"concurrency": 1001}, "less than or equal to 1000"),
        ({"calls_per_day": 1.5}, "valid integer"),
        ({"bytes_per_day": "50 mb"}, "not a number of bytes"),
        ({"rate": "1/s", "each": ["agent", "agent"]}, "twice"),
        ({"rate": "1/s", "each": ["user"]}, "'agent', 'server' or 'tool'"),
        ({"rate": "1/s", "tools": []}, "at least 1"),
        ({"rate": "1/s", "tools": ["echo"]}, "names no server"),
        ({"rate": "1/s", "agents": ["sré"]}, "not a valid pattern"),
        ({"rate": "1/s", "when_over": "drop"}, "'reject' or 'wait'"),
        ({"rat": "1/s"}, "not permitted"),
    ],
)
def test_a_limit_that_is_wrong_is_refused(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        LimitRule.model_validate(rule)


def test_sizes_have_units() -> None:
    sizes = {"1 kB": 1000, "50MB": 50_000_000, "1.5 GiB": 1_610_612_736, "7 B": 7}
    assert {text: LimitRule(bytes_per_day=text).bytes_per_day for text in sizes} == sizes  # pyright: ignore[reportArgumentType]


def test_no_look_alike_of_a_name_escapes() -> None:
    limits = limits_of({"agents": ["sre*"], "tools": ["k8s.delete_*"], "rate": "1/s", "each": ["agent"]})
    for agent, tool in (
        ("sre", "delete_pod"),
        ("SRE", "delete_pod"),
        ("sre-2", "Delete_pod"),
        ("sre", "\uff44elete_x"),
    ):
        assert places(limits, agent, "k8s", tool) == ["limits[0]"]
    for agent, server, tool in (("dev", "k8s", "delete_pod"), ("sre", "k9s", "delete_pod"), ("sre", "k8s", "get_pod")):
        assert places(limits, agent, server, tool) == []


def test_counters_are_told_apart_and_bounded() -> None:
    limits = limits_of({"rate": "1/s", "each": ["agent", "server", "tool"]})
    names = [
        ("a b", "c", "d"),
        ("a", "c", "d"),
        ("a", "c", "d e"),
        ("ä", "c", "d"),
        ("a\nb", "c", "d"),
        ("x" * 999, "c", "d"),
    ]
    counters = [limits.all[0].counter(*each) for each in names]
    assert len({*counters}) == len(names)
    assert all(len(each) <= 200 and "\n" not in each for each in counters)


def test_a_limit_keeps_its_counters_when_others_come() -> None:
    rule = {"tools": ["k8s.*"], "rate": "1/s"}
    alone = limits_of(rule).all[0].id
    after = limits_of({"rate": "9/s"}, {**rule, "rate": "5/min", "burst": 2}, {**rule, "calls_per_day": 1})
    assert after.all[1].id == alone
    assert len({limit.id for limit in after.all}) == 3


def test_a_policy_without_limits_keeps_its_version() -> None:
    rules = PolicyRules.model_validate({"agents": {"*": {}}})
    assert "limits" not in rules.model_dump(mode="json")
    assert Policy(rules).limits is None
    assert Policy(PolicyRules.model_validate({"limits": [{"rate": "1/s"}]})).limits is not None


def test_the_text_says_what_to_do_and_when() -> None:
    limit = limits_of({"rate": "10/min", "burst": 5}).all[0]
    denial = deny_over_limit("k8s.delete_pod", limit, "rate", 11.2)
    assert denial.kind is RuleKind.LIMIT
    assert denial.text == (
        "`k8s.delete_pod` did not run, because a limit of this deployment was reached (limits[0]): too many calls in a "
        "short time (10/min, 5 at once). Do not try again for 12 s."
    )
    waits = [describe_wait(seconds) for seconds in (0.2, 61, 600, 9000, 86400)]
    assert waits == ["1 s", "61 s", "10 min", "2 h 30 min", "24 h 0 min"]


def test_the_result_says_when_in_a_field_that_others_lack() -> None:
    error = pickle.loads(pickle.dumps(RateLimited("over", 1.5)))
    result = ToolResult.from_error(error, call_id="", name="")
    assert (result.retry_after_s, json.loads(result.model_dump_json())["retry_after_s"]) == (1.5, 1.5)
    never = ToolResult.from_error(RateLimited("none at all"), call_id="", name="")
    assert "retry_after_s" not in json.loads(never.model_dump_json())


def test_doctor_names_limits_that_cannot_tell_agents_apart() -> None:
    rules = [{"rate": "1/s"}, {"rate": "1/s", "each": ["agent"]}, {"agents": ["sre"], "rate": "1/s"}]
    policy = Policy(PolicyRules.model_validate({"limits": rules}))
    unbound = Binding(is_bound=False, reason="the Redis URL names no user")
    found = [each for each in check_users(policy, None, unbound) if each.severity is Severity.WARNING]
    assert "as `anonymous`, apart from signed calls: limits[1], limits[2]" in found[0].text
