"""The answer of a policy for one agent and one tool, and the rule that gives it.

Owns the order in which rules decide. What denies comes before what permits, and the first rule that denies is named:

    1. an agent whose name only looks like that of an entry
    2. `deny` of the server, then of the agent
    3. `allow` of the server, then of the agent
    4. the agent's capabilities: one that covers the tool, and all that the tool requires
    5. rules on arguments, all that match
    6. limits, all that match: what they count is in Redis, and `broker.limit_counters` finds one that is exceeded

It knows the agent only as it was verified (`Call.principal`). Texts are for models: they name the rule and what to do,
and nothing of other agents.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

from tarsy_tasks.config.problems import format_path, quote
from tarsy_tasks.errors import CallError, RateLimited
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.policy.limits import Limit, Limits
from tarsy_tasks.policy.model import AgentRules, ArgumentRule, PolicyRules, ServerRules
from tarsy_tasks.policy.names import (
    EVERYONE,
    Capability,
    covers,
    fold,
    matches,
    parse_capability,
    restricts,
    split_pattern,
)
from tarsy_tasks.policy.schemas import compile_rule
from tarsy_tasks.tool_names import is_shortened

if TYPE_CHECKING:
    from jsonschema_rs import Validator

__all__ = ["Decision", "Denial", "Policy", "RuleKind", "deny_over_limit", "describe_wait"]

_CACHED_DECISIONS = 8192
_LONGEST_NAME = 256
"""Longer names are decided, but not kept: a message may have any."""
_SHOWN_CHARS = 200
_VERSION_CHARS = 12
_NO_RULES = ServerRules()
_UNLIMITED = AgentRules()


class RuleKind(StrEnum):
    """What kind of rule denied a call."""

    AGENT = "agent"
    DENY = "deny"
    ALLOW = "allow"
    CAPABILITY = "capability"
    ARGUMENTS = "arguments"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a call is not permitted.

    Attributes:
        kind: Of the rule.
        rule: Its place in the policy, such as `agents.sre.deny[0]`.
        why: What it says, in words that follow "because".
        text: The answer for the model.
        retry_after_s: When it may be permitted, in seconds; None: never.
    """

    kind: RuleKind
    rule: str
    why: str
    text: str
    retry_after_s: float | None = None

    @property
    def error(self) -> CallError:
        """What ends the call."""
        if self.kind is RuleKind.LIMIT:
            return RateLimited(self.text, self.retry_after_s)
        is_arguments = self.kind is RuleKind.ARGUMENTS
        return CallError(ErrorCode.ARGUMENTS_NOT_PERMITTED if is_arguments else ErrorCode.NOT_PERMITTED, self.text)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one agent and one tool.

    Attributes:
        denial: None if the tool may be called, with arguments that fit `argument_rules`.
        grounds: The places of the rules that permit it.
        argument_rules: Places of the rules that its arguments have to fit.
    """

    denial: Denial | None
    grounds: tuple[str, ...] = ()
    argument_rules: tuple[str, ...] = ()


class Policy:
    """A policy that is valid. It does not change; safe to share between threads.

    Args:
        rules: What it says.
        source: Where it comes from, for people.

    Attributes:
        version: The first characters of its digest: what says the same has the same version.
        limits: How much may be called; None if that is not limited.
    """

    def __init__(self, rules: PolicyRules, source: str = "") -> None:
        self.rules = rules
        self.source = source
        written = json.dumps(rules.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        self.version = hashlib.sha256(written.encode()).hexdigest()[:_VERSION_CHARS]
        self.limits = Limits(rules.limits) if rules.limits else None
        self._folded = {fold(name) for name in rules.agents}
        self._held = lru_cache(_CACHED_DECISIONS)(self._parse_held)
        self._decide_cached = lru_cache(_CACHED_DECISIONS)(self._decide)

    @property
    def has_argument_rules(self) -> bool:
        return bool(self.rules.arguments)

    def decide(self, agent: str, server: str, tool: str) -> Decision:
        """Whether an agent may call a tool.

        Args:
            agent: As it was verified.
            tool: As the server lists it; or as a message has it, for a tool that is not listed.
        """
        decide = self._decide if len(tool) > _LONGEST_NAME else self._decide_cached
        return decide(agent, server, tool)

    def deny_name(self, agent: str, server: str, name: str) -> Denial | None:
        """Why an agent may not call what it names. A shortened name can be that of a permitted tool, so only what
        forbids counts for it: look for the tool among those that are permitted."""
        denial = self.decide(agent, server, name).denial
        if denial is None or denial.kind in (RuleKind.AGENT, RuleKind.DENY) or not is_shortened(name):
            return denial
        return None

    def check_arguments(self, agent: str, server: str, tool: str, arguments: Mapping[str, Any]) -> Denial | None:
        """Why an agent may not call a tool with these arguments, if the tool itself is permitted. The work grows with
        the arguments."""
        for place in self.decide(agent, server, tool).argument_rules:
            rule, validator = self._argument_rules[place]
            if not validator.is_valid(arguments):
                return _deny_arguments(f"{server}.{tool}", place, rule, _first_problem(validator, arguments))
        return None

    def deny_by_limit(self, agent: str, server: str, tool: str) -> Denial | None:
        """Why an agent may not call a tool, however little it called: a limit of 0. What other limits say is known only
        in Redis."""
        applied = self.limits.of(agent, server, tool) if self.limits is not None else None
        for limit in applied.limits.values() if applied is not None else ():
            if limit.rule.is_none:
                return deny_over_limit(f"{server}.{tool}", limit, "none", 0)
        return None

    def entry_of(self, agent: str) -> str | None:
        """The name of the entry that holds for an agent; None if there is none."""
        if agent in self.rules.agents:
            return agent
        return EVERYONE if self.rules.agents and fold(agent) not in self._folded else None

    def argument_rule(self, place: str) -> ArgumentRule:
        """The rule at a place, as a `Decision` names it."""
        return self._argument_rules[place][0]

    @property
    def weights(self) -> dict[str, float]:
        """The shares of agents beside each other, by entry."""
        return {name: rules.weight for name, rules in self.rules.agents.items()}

    def _entry_of(self, agent: str) -> tuple[str, AgentRules]:
        agents = self.rules.agents
        name = agent if agent in agents else EVERYONE
        return format_path(("agents", name)), agents.get(name, _UNLIMITED)

    def _parse_held(self, name: str) -> frozenset[Capability]:
        return frozenset(map(parse_capability, self.rules.agents.get(name, _UNLIMITED).capabilities))

    def _decide(self, agent: str, server: str, tool: str) -> Decision:
        name = f"{server}.{tool}"
        place, entry = self._entry_of(agent)
        rules = self.rules.servers.get(server, _NO_RULES)
        at_server = format_path(("servers", server))
        if agent not in self.rules.agents and fold(agent) in self._folded:
            why = "no entry of the policy is written exactly like your name"
            return _denied(name, RuleKind.AGENT, "agents", why)
        for index, pattern in enumerate(rules.deny):
            if restricts([pattern], tool):
                return _denied(name, RuleKind.DENY, f"{at_server}.deny[{index}]", f"it denies {quote(pattern)}")
        for index, pattern in enumerate(entry.deny):
            if _restricts_tool(pattern, server, tool):
                return _denied(name, RuleKind.DENY, f"{place}.deny[{index}]", f"it denies {quote(pattern)}")
        by_server = next((index for index, each in enumerate(rules.allow) if matches(each, tool)), None)
        if by_server is None:
            return _denied(name, RuleKind.ALLOW, f"{at_server}.allow", _not_among(rules.allow))
        by_agent = next((index for index, each in enumerate(entry.allow) if _permits(each, server, tool)), None)
        if by_agent is None:
            return _denied(name, RuleKind.ALLOW, f"{place}.allow", _not_among(entry.allow))
        held = self._held(agent if agent in self.rules.agents else EVERYONE)
        if not covers(held, ("mcp", server, tool)):
            why = f"you hold no capability for it, such as `mcp_{server}`"
            return _denied(name, RuleKind.CAPABILITY, f"{place}.capabilities", why)
        for pattern, needs in rules.tools.items():
            if restricts([pattern], tool):
                missing = [each for each in needs.required_capabilities if not covers(held, parse_capability(each))]
                if missing:
                    why = f"it requires the capability {', '.join(f'`{each}`' for each in missing)}"
                    where = format_path(("servers", server, "tools", pattern))
                    return _denied(name, RuleKind.CAPABILITY, f"{where}.required_capabilities", why)
        grounds = (
            [f"{place}.allow[{by_agent}]", f"{place}.capabilities"]
            if agent in self.rules.agents or (EVERYONE in self.rules.agents)
            else []
        )
        if server in self.rules.servers:
            grounds.insert(0, f"{at_server}.allow[{by_server}]")
        return Decision(None, tuple(grounds), tuple(self._argument_rules_of(agent, server, tool)))

    def _argument_rules_of(self, agent: str, server: str, tool: str) -> list[str]:
        return [
            place
            for place, (rule, _) in self._argument_rules.items()
            if restricts(rule.agents, agent) and any(_restricts_tool(each, server, tool) for each in rule.tools)
        ]

    @cached_property
    def _argument_rules(self) -> dict[str, tuple[ArgumentRule, Any]]:
        return {
            f"arguments[{index}]": (rule, compile_rule(rule.arguments))
            for index, rule in enumerate(self.rules.arguments)
        }


def deny_over_limit(name: str, limit: Limit, kind: str, retry_after_s: float) -> Denial:
    """Why a call is over a limit.

    Args:
        kind: What of the limit, as `broker.limit_counters` names it.
    """
    name = f"`{name[:_SHOWN_CHARS]}`"
    if kind == "none":
        why = "it permits no call at all"
        text = (
            f"{name} did not run: a limit of this deployment ({limit.place}) does not permit any calls of it. "
            "Calling it again will not help. Continue without it, or tell the user that an operator would have to "
            "permit it."
        )
        return Denial(RuleKind.LIMIT, limit.place, why, text)
    why = f"{_OVER[kind]} ({limit.rule.terms})"
    after_s = max(0.001, round(retry_after_s, 3))
    text = (
        f"{name} did not run, because a limit of this deployment was reached ({limit.place}): {why}. "
        f"Do not try again for {describe_wait(after_s)}."
    )
    return Denial(RuleKind.LIMIT, limit.place, why, text, after_s)


_OVER = {
    "rate": "too many calls in a short time",
    "concurrency": "too many calls are running",
    "calls": "today's quota of calls is used up",
    "bytes": "today's quota of result bytes is used up",
}


def describe_wait(seconds: float) -> str:
    """A time to wait, in words; rounded up."""
    seconds = ceil(seconds)
    if seconds < 120:
        return f"{seconds} s"
    minutes = ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _permits(pattern: str, server: str, tool: str) -> bool:
    server_pattern, tool_pattern = split_pattern(pattern)
    return matches(server_pattern, server) and matches(tool_pattern, tool)


def _restricts_tool(pattern: str, server: str, tool: str) -> bool:
    server_pattern, tool_pattern = split_pattern(pattern)
    return restricts([server_pattern], server) and restricts([tool_pattern], tool)


def _not_among(allowed: Sequence[str]) -> str:
    return "it is not among the tools that the rule allows" if allowed else "the rule allows no tool"


def _denied(name: str, kind: RuleKind, rule: str, why: str) -> Decision:
    text = (
        f"`{name[:_SHOWN_CHARS]}` did not run: the policy of this deployment does not permit this call ({rule}: "
        f"{why}). Calling it again will not help. Continue without it, or tell the user that an operator would have "
        "to permit it."
    )
    return Decision(Denial(kind, rule, why, text))


def _deny_arguments(name: str, place: str, rule: ArgumentRule, problem: str) -> Denial:
    why = f"{rule.text.rstrip('.')}. What does not fit: {problem}"
    text = (
        f"`{name[:_SHOWN_CHARS]}` did not run: the policy of this deployment does not permit it with these arguments "
        f"({place}). {why}. Call it with other arguments if that serves the task. Otherwise continue without it, or "
        "tell the user that an operator would have to permit it."
    )
    return Denial(RuleKind.ARGUMENTS, place, why, text)


def _first_problem(validator: "Validator", arguments: Mapping[str, Any]) -> str:
    """Where arguments do not fit; never their values."""
    from jsonschema_rs import ValidationError

    try:
        validator.validate(arguments)
    except ValidationError as problem:
        path = ".".join(map(str, problem.instance_path))[:_SHOWN_CHARS]
        if problem.kind.name == "required":
            missing = problem.kind.as_dict()["property"]
            return f"`{f'{path}.{missing}' if path else missing}` is missing"
        if path:
            return f"`{path}`"
    return "the arguments as a whole"
