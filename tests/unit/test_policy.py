"""What a policy decides, rule by rule."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.policy import Policy
from tarsy_tasks.policy.model import PolicyRules
from tarsy_tasks.policy.names import covers, parse_capability

NAMESPACE_A = {"properties": {"namespace": {"const": "a"}}, "required": ["namespace"]}
RULES: dict[str, Any] = {
    "agents": {
        "sre": {"allow": ["k8s.*", "git*.list_*"], "deny": ["*.delete_*"], "weight": 3},
        "dev": {"capabilities": ["mcp_github", "mcp_k8s.get_*", "writing"]},
        "admin": {"capabilities": ["mcp_github.admin"]},
        "owner": {"capabilities": ["mcp_integration", "writing", "production"]},
        "none": {"allow": []},
        "nobody": {"capabilities": []},
        "*": {"allow": ["k8s.get_pod"]},
        "anonymous": {"allow": ["k8s.get_*"]},
    },
    "servers": {
        "vault": {"allow": []},
        "github": {
            "deny": ["force_*"],
            "tools": {
                "write_*": {"required_capabilities": ["writing"]},
                "*_release": {"required_capabilities": ["production"]},
            },
        },
    },
    "arguments": [
        {"agents": ["sre", "anonymous"], "tools": ["k8s.*"], "arguments": NAMESPACE_A, "text": "Only namespace a."},
        {"tools": ["*.exec"], "arguments": {"not": {"required": ["privileged"]}}, "text": "Nothing privileged."},
    ],
}
POLICY = Policy(PolicyRules.model_validate(RULES))
PERMITTED = ""

DECISIONS = [
    # deny wins over allow, and matches names that only look different
    ("sre", "k8s.get_pod", PERMITTED),
    ("sre", "k8s.delete_pod", "agents.sre.deny[0]"),
    ("sre", "k8s.Delete_pod", "agents.sre.deny[0]"),
    ("sre", "k8s.\uff44elete_pod", "agents.sre.deny[0]"),
    ("sre", "k8s.DELETE\uff3fpod", "agents.sre.deny[0]"),
    ("sre", "github.list_issues", PERMITTED),
    ("sre", "github.get_issue", "agents.sre.allow"),
    # what permits matches exactly
    ("sre", "github.List_issues", "agents.sre.allow"),
    ("anonymous", "k8s.Get_pod", "agents.anonymous.allow"),
    # an empty list is nothing
    ("none", "k8s.get_pod", "agents.none.allow"),
    ("nobody", "k8s.get_pod", "agents.nobody.capabilities"),
    ("owner", "vault.read", "servers.vault.allow"),
    # capabilities: tools, servers, everything; as tuples
    ("dev", "github.anything", PERMITTED),
    ("dev", "k8s.get_pod", PERMITTED),
    ("dev", "k8s.scale", "agents.dev.capabilities"),
    ("admin", "github.admin", PERMITTED),
    ("admin", "github.administrate", "agents.admin.capabilities"),
    ("admin", "github_admin.x", "agents.admin.capabilities"),
    # what a tool requires, all of it, from every pattern that matches
    ("dev", "github.write_file", PERMITTED),
    ("admin", "github.write_file", "agents.admin.capabilities"),
    ("dev", "github.write_release", 'servers.github.tools["*_release"].required_capabilities'),
    ("dev", "github.Write_Release", 'servers.github.tools["*_release"].required_capabilities'),
    ("owner", "github.write_release", PERMITTED),
    ("owner", "github.force_push", "servers.github.deny[0]"),
    # who has no entry, and who only looks like one
    ("stranger", "k8s.get_pod", PERMITTED),
    ("stranger", "k8s.scale", 'agents["*"].allow'),
    ("SRE", "k8s.get_pod", "agents"),
    ("\uff53re", "k8s.get_pod", "agents"),
    ("Anonymous", "k8s.get_pod", "agents"),
    # names that no policy can have
    ("sre", "k8s.\ud800", PERMITTED),
    ("sre", f"k8s.{'x' * 100_000}", PERMITTED),
    ("dev", "k8s.get_\n", PERMITTED),
]


@pytest.mark.parametrize(("agent", "name", "rule"), DECISIONS, ids=lambda each: ascii(each)[:40])
def test_the_rule_that_denies_is_named(agent: str, name: str, rule: str) -> None:
    server, _, tool = name.partition(".")
    denial = POLICY.decide(agent, server, tool).denial
    assert (denial.rule if denial else PERMITTED) == rule
    if denial is not None:
        assert rule in denial.text
        assert "did not run" in denial.text
        assert len(denial.text) < 1000


ARGUMENTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("sre", "k8s.get_pod", {"namespace": "a"}, ""),
    ("sre", "k8s.get_pod", {"namespace": "b"}, "Only namespace a. What does not fit: `namespace`"),
    ("sre", "k8s.get_pod", {}, "`namespace` is missing"),
    ("sre", "k8s.get_pod", {"Namespace": "a"}, "`namespace` is missing"),
    ("stranger", "k8s.get_pod", {"namespace": "b"}, ""),
    ("anonymous", "k8s.get_pod", {"namespace": ["a"]}, "`namespace`"),
    ("owner", "k8s.Exec", {"privileged": True}, "Nothing privileged."),
    ("owner", "k8s.exec", {}, ""),
]


@pytest.mark.parametrize(("agent", "name", "arguments", "text"), ARGUMENTS)
def test_arguments_have_to_fit_all_rules(agent: str, name: str, arguments: dict[str, Any], text: str) -> None:
    server, _, tool = name.partition(".")
    denial = POLICY.check_arguments(agent, server, tool, arguments)
    assert (denial is None) == (not text)
    assert text in (denial.text if denial else "")


def test_a_denial_shows_no_values_and_no_other_agents() -> None:
    denial = POLICY.check_arguments("sre", "k8s", "get_pod", {"namespace": "hunter2"})
    assert denial is not None
    texts = [denial.text]
    for agent, name, _ in DECISIONS:
        found = POLICY.decide(agent, *name.split(".", 1)).denial
        texts.append(found.text.replace(agent, "") if found else "")
    others = re.compile(r"hunter2|\b(?:owner|dev|nobody|stranger)\b")
    assert [text for text in texts if others.search(text)] == []


def test_weights_are_those_of_the_entries() -> None:
    assert (POLICY.weights["sre"], POLICY.weights["*"]) == (3, 1)


def test_a_policy_without_agents_limits_servers_only() -> None:
    policy = Policy(PolicyRules.model_validate({"servers": {"k8s": {"deny": ["delete_*"]}}}))
    assert policy.decide("anyone", "k8s", "get").denial is None
    assert policy.decide("anyone", "k8s", "delete_x").denial is not None


def test_the_same_rules_have_the_same_version() -> None:
    again = Policy(PolicyRules.model_validate({key: RULES[key] for key in reversed(RULES)}))
    other = Policy(PolicyRules.model_validate({**RULES, "servers": {}}))
    assert again.version == POLICY.version != other.version


NAMES = ["get", "Get", "delete_x", "Delete_x", "\uff44elete_x", "a.b", ""]
PATTERNS = st.sampled_from(["*", "get", "delete_*", "DELETE_*", "?et", "*x", "a.*", "nothing"])
TOOLS = st.tuples(st.sampled_from(["*", "k8s", "k*", "K8S", "git"]), PATTERNS).map(".".join)
AGENTS = st.fixed_dictionaries(
    {"allow": st.lists(TOOLS, max_size=3)},
    optional={
        "deny": st.lists(TOOLS, max_size=2),
        "capabilities": st.lists(st.sampled_from(["mcp_integration", "mcp_k8s", "mcp_git.get", "x"]), max_size=2),
    },
)
SERVERS = st.fixed_dictionaries({}, optional={"allow": st.lists(PATTERNS, max_size=2), "deny": st.lists(PATTERNS)})


@given(AGENTS, SERVERS, TOOLS, PATTERNS)
def test_a_further_deny_never_permits_more(
    agent: dict[str, Any], server: dict[str, Any], denied: str, pattern: str
) -> None:
    before = Policy(PolicyRules.model_validate({"agents": {"*": agent}, "servers": {"k8s": server}}))
    stricter = [
        {"agents": {"*": {**agent, "deny": [*agent.get("deny", []), denied]}}, "servers": {"k8s": server}},
        {"agents": {"*": agent}, "servers": {"k8s": {**server, "deny": [*server.get("deny", []), pattern]}}},
        {"agents": {"*": {**agent, "allow": agent["allow"][1:]}}, "servers": {"k8s": server}},
    ]
    for rules in stricter:
        after = Policy(PolicyRules.model_validate(rules))
        for name in ("k8s", "git"):
            for tool in NAMES:
                if after.decide("a", name, tool).denial is None:
                    assert before.decide("a", name, tool).denial is None


CAPABILITIES = [
    (["mcp_integration"], "mcp_github", True),
    (["mcp_github"], "mcp_integration", False),
    (["mcp_github"], "mcp_github.admin", True),
    (["mcp_github"], "mcp_github_admin", False),
    (["mcp_github_admin"], "mcp_github.admin", False),
    (["mcp_github.admin"], "mcp_github", False),
    (["mcp_github.ad*"], "mcp_github.admin", True),
    (["mcp_integration.*"], "mcp_integration", False),
    (["mcp_integration.*"], "mcp_integration.get", True),
    (["mcp_integration"], "production", False),
    (["production"], "production", True),
    (["Production"], "production", False),
]


@pytest.mark.parametrize(("held", "needed", "is_held"), CAPABILITIES)
def test_a_capability_covers_what_is_narrower(held: list[str], needed: str, is_held: bool) -> None:
    assert covers(frozenset(map(parse_capability, held)), parse_capability(needed)) == is_held


def test_what_forbids_counts_for_a_shortened_name_too() -> None:
    shortened = "{}_0123456789ab".format
    assert POLICY.deny_name("*", "k8s", shortened("get_pod")) is None
    for agent, name in (("sre", shortened("delete_pod")), ("SRE", shortened("get_pod")), ("*", "get_pods")):
        assert POLICY.deny_name(agent, "k8s", name) is not None
