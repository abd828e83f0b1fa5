"""The policy: which agent may call which tool, and with which arguments.

    names      agents, patterns of tools, and capabilities, which are tuples
    model      what a policy says: pydantic models
    schemas    the JSON Schemas of rules on arguments, of which everything is enforced
    decisions  the answer for one agent and one tool, and the rule that gives it
    loading    finds, reads and checks a policy, and reports its problems

Pure but for reading the file. A worker asks for each call (`worker.calls.permission`); an agent that has the file asks
for advice; `tarsy-tasks policy` shows both. docs/policy.md has the rules for users.
"""

from tarsy_tasks.policy.decisions import Decision, Denial, Policy, RuleKind
from tarsy_tasks.policy.loading import add_to_config_schema, find_idle_patterns, load_policy

__all__ = ["Decision", "Denial", "Policy", "RuleKind", "add_to_config_schema", "find_idle_patterns", "load_policy"]
