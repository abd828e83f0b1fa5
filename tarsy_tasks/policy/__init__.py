"""The policy: which agent may call which tool, with which arguments, and how much.

    names      agents, patterns of tools, and capabilities, which are tuples
    model      what a policy says: pydantic models
    schemas    the JSON Schemas of rules on arguments, of which everything is enforced
    limits     how much may be called, and which limits hold for a call
    decisions  the answer for one agent and one tool, and the rule that gives it
    loading    finds, reads and checks a policy, and reports its problems

Pure but for reading the file. A worker asks for each call (`worker.calls.permission`); an agent that has the file asks
for advice; `tarsy-tasks policy` shows both. docs/policy.md has the rules for users.
"""

from tarsy_tasks.policy.decisions import Decision, Denial, Policy, RuleKind, deny_over_limit, describe_wait
from tarsy_tasks.policy.limits import AppliedLimits, Limit, LimitRule, Limits, describe_bytes
from tarsy_tasks.policy.loading import add_to_config_schema, find_idle_patterns, load_policy

__all__ = [
    "AppliedLimits",
    "Decision",
    "Denial",
    "Limit",
    "LimitRule",
    "Limits",
    "Policy",
    "RuleKind",
    "add_to_config_schema",
    "deny_over_limit",
    "describe_bytes",
    "describe_wait",
    "find_idle_patterns",
    "load_policy",
]
