"""Policies as people write them: what is wrong is named with its place, and refused whole."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tarsy_tasks.cli import main
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.policy import Policy, find_idle_patterns, load_policy
from tarsy_tasks.policy.model import PolicyRules

SERVERS = {"k8s": {"command": "x"}, "github": {"command": "x"}, "old": {"command": "x", "enabled": False}}
Load = Callable[..., Policy | None]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TARSY_MCP_CONFIG", raising=False)
    monkeypatch.delenv("TARSY_POLICY", raising=False)

    def load(policy: Any = None, own_file: str | None = None) -> Policy | None:
        more = {} if policy is None else {"policy": policy}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": SERVERS, **more}, indent=1))
        if own_file is not None:
            (tmp_path / "policy.json").write_text(own_file)
            monkeypatch.setenv("TARSY_POLICY", "policy.json")
        return load_policy()

    return load


def rule(**schema: Any) -> dict[str, Any]:
    return {"arguments": [{"tools": ["k8s.*"], "arguments": schema, "text": "Only so."}]}


def agent(**keys: Any) -> dict[str, Any]:
    return {"agents": {"*": keys}}


PROBLEMS: list[tuple[Any, str]] = [
    ({}, "policy: an empty policy decides nothing"),
    ([], "policy: found a list, expected a mapping"),
    ({"agent": {}}, "policy.agent: unknown key; did you mean `agents`?"),
    ({"agents": {"sre": {}}}, 'policy.agents: the entry "*" is missing'),
    ({"agents": {"sré": {}, "*": {}}}, 'policy.agents["sré"]: not a valid name of an agent'),
    ({"agents": {" sre": {}, "*": {}}}, 'policy.agents[" sre"]: not a valid name of an agent'),
    ({"agents": {"\uff53re": {}, "*": {}}}, "not a valid name of an agent"),
    ({"agents": {"sre": {}, "SRE": {}, "*": {}}}, "policy.agents: `sre` and `SRE` differ only in case"),
    (agent(alow=[]), 'policy.agents["*"].alow: unknown key; did you mean `allow`?'),
    (agent(allow="k8s.*"), 'policy.agents["*"].allow: found a string, expected a list'),
    (agent(allow=None), 'policy.agents["*"].allow: found null, expected a list'),
    (agent(deny=["delete_*"]), 'policy.agents["*"].deny[0]: this pattern names no server; write `SERVER.TOOL`'),
    (agent(deny=["k9s.*"]), 'policy.agents["*"].deny[0]: no server `k9s` is configured; did you mean `k8s`?'),
    (agent(allow=["k9*.get"]), 'policy.agents["*"].allow[0]: no configured server matches `k9*`'),
    (agent(allow=["k8s.[a-z]*"]), 'policy.agents["*"].allow[0]: not a valid pattern'),
    (agent(allow=["k8s.über"]), 'policy.agents["*"].allow[0]: not a valid pattern'),
    (agent(allow=["k8s."]), 'policy.agents["*"].allow[0]: not a valid pattern'),
    (agent(allow=["k8s.x y"]), 'policy.agents["*"].allow[0]: not a valid pattern'),
    (agent(capabilities=["Mcp_k8s"]), 'policy.agents["*"].capabilities[0]: not a capability'),
    (agent(capabilities=["mcp_"]), 'policy.agents["*"].capabilities[0]: not a capability'),
    (agent(capabilities=["mcp_k9s"]), 'policy.agents["*"].capabilities[0]: no server `k9s` is configured'),
    (agent(weight=0), 'policy.agents["*"].weight: found 0, expected at least 0.001'),
    (agent(weight=True), 'policy.agents["*"].weight: found a boolean, expected a number'),
    (agent(weight="3"), 'policy.agents["*"].weight: found a string, expected a number'),
    (agent(weight=float("inf")), 'policy.agents["*"].weight: found inf, expected a finite number'),
    ({"servers": {"k9s": {}}}, "policy.servers.k9s: no such server is configured; did you mean `k8s`?"),
    ({"servers": {"K8s": {}}}, "policy.servers.K8s: no such server is configured; did you mean `k8s`?"),
    ({"servers": {"k8s": {"tools": {"a": {}}}}}, "tools.a.required_capabilities: this key is required, but missing"),
    (
        {"servers": {"k8s": {"tools": {"a": {"required_capabilities": ["mcp_k8s.*"]}}}}},
        "required_capabilities[0]: a required capability has no `*`",
    ),
    ({"arguments": [{"tools": ["k8s.*"], "text": "x"}]}, "policy.arguments[0].arguments: this key is required"),
    ({"arguments": [{"tools": ["k8s.*"], "arguments": {"type": "object"}}]}, "arguments[0].text: this key is required"),
    (rule(), "policy.arguments[0].arguments: found an empty value"),
    (rule(propertees={}), 'unknown keyword "propertees"; did you mean `properties`?'),
    (rule(properties={"a": {"enumm": []}}), 'unknown keyword "enumm"; did you mean `enum`?'),
    (rule(properties={"a": {"format": "email"}}), "`format` is not enforced; use `pattern`"),
    (rule(properties={"a": {"pattern": "(?=a)"}}), "not a supported pattern; use RE2 syntax"),
    (rule(properties={"a": {"pattern": "("}}), "not a supported pattern; use RE2 syntax"),
    (rule(type="strin"), "not a valid JSON Schema at `/type`"),
    (rule(**{"$ref": "https://example.com/x"}), "a `$ref` may only point into the same schema"),
    (rule(**{"$ref": "file:///etc/passwd"}), "a `$ref` may only point into the same schema"),
    (rule(**{"$ref": "#/$defs/x"}), "not a valid JSON Schema"),
    (rule(**{"$schema": "https://example.com/x"}), 'unknown keyword "$schema"'),
    (
        rule(
            **{"$ref": "#/$defs/d0"},
            **{"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)} | {"d20": {}}},
        ),
        "to check this schema would cost too much",
    ),
]


@pytest.mark.parametrize(("policy", "text"), PROBLEMS, ids=[text[:50] for _, text in PROBLEMS])
def test_what_is_wrong_is_named_with_its_place(load: Load, policy: Any, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(policy)
    assert text in str(raised.value)
    assert str(raised.value).startswith("mcp.json:")


def test_all_problems_are_named_at_once(load: Load) -> None:
    with pytest.raises(ConfigError) as raised:
        load({"agents": {"*": {"allow": ["x"], "weight": -1}}, "servers": {"k8s": {"denny": []}}})
    assert len(str(raised.value).splitlines()) == 3


def test_a_policy_may_have_a_file_of_its_own(load: Load) -> None:
    inline = load(agent(allow=["k8s.*", "old.*"]))
    own = load(own_file=json.dumps(agent(allow=["k8s.*", "old.*"])))
    assert inline is not None
    assert own is not None
    assert (inline.source, own.source) == ("mcp.json", "policy.json")
    assert inline.version == own.version


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "policy.json: is empty, expected at least"),
        ("{", "policy.json:1:2: not valid JSON"),
        ("[1]", "policy.json:1:1: found a list, expected a mapping with the keys `agents`"),
        ('{"agents": {"a": {}, "a": {}, "*": {}}}', "policy.json:1:22: agents.a:"),
        ('{"agents": {"*": {"allow": ["k9s.*"]}}}', 'policy.json:1:29: agents["*"].allow[0]: no server `k9s`'),
    ],
)
def test_a_wrong_policy_file_is_refused(load: Load, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(own_file=text)
    assert str(raised.value).startswith(problem)


def test_two_policies_are_one_too_many(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"mcp\.json: policy: there are two policies.*TARSY_POLICY"):
        load(agent(), own_file=json.dumps(agent()))


def test_a_missing_policy_file_is_no_permission(load: Load, tmp_path: Path) -> None:
    load(own_file=json.dumps(agent()))
    (tmp_path / "policy.json").unlink()
    with pytest.raises(ConfigError, match=r"policy\.json: the file does not exist"):
        load_policy()


def test_without_a_policy_there_is_none(load: Load) -> None:
    assert load() is None


def test_ten_thousand_agents_are_decided_as_fast_as_one(load: Load) -> None:
    entry = {"allow": ["k8s.get_*"], "deny": ["k8s.delete_*"]}
    counts: list[int] = []
    for number in (1, 10_000):
        agents = {f"agent-{each}": entry for each in range(number)}
        policy = load(own_file=json.dumps({"agents": {**agents, "*": {"allow": []}}}))
        assert policy is not None
        policy.decide("agent-0", "k8s", "get_pod")  # compiles the patterns
        counts.append(steps_of(partial(policy.decide, f"agent-{number - 1}", "k8s", "scale")))
    assert max(counts) < 2 * min(counts)


def steps_of(work: Callable[[], object]) -> int:
    """How many lines of Python it takes."""
    count = 0

    def trace(*_: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_patterns_that_match_no_known_tool_are_found() -> None:
    needs = {"required_capabilities": ["x"]}
    rules = PolicyRules.model_validate(
        {
            "agents": {"*": {"allow": ["k8s.get_*", "k8s.gett", "git.x"], "deny": ["*.drop"]}},
            "servers": {"k8s": {"tools": {"Scale*": needs, "no": needs}}},
        }
    )
    found = find_idle_patterns(rules, {"k8s": ["get_pod", "scale"], "git": []})
    assert [line.partition(":")[0] for line in found] == ['agents["*"].allow[1]', "servers.k8s.tools.no"]


def test_the_examples_of_the_page_are_true(load: Load, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    [example] = re.findall(r"```jsonc\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mcp.json").write_text(example)
    policy = load_policy()
    assert policy is not None
    commands = [
        command.splitlines()
        for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL)
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]
    assert len(commands) > 4
    for line, *output in commands:
        done = CliRunner().invoke(main, shlex.split(line)[1:])
        found = done.stdout.replace(policy.version, "0" * len(policy.version)).splitlines()
        assert found == output
        assert done.exit_code == any(each.startswith("denied") for each in output)
