"""The interceptors that hold calls to the policy, and the tools that an agent sees.

Owns what a worker does with the decisions of `tarsy_tasks.policy`, always about the principal of a call and never about
what its message claims. Without a policy none of this is part of a call.
"""

from collections.abc import Mapping
from math import inf
from typing import TypeVar

from tarsy_tasks.interceptors import Ending, Proceed, Stage
from tarsy_tasks.models import ToolListing
from tarsy_tasks.policy import Denial, Policy
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import is_large

__all__ = ["PermittedArguments", "PermittedTool", "permitted_listing", "permitted_tools"]

T = TypeVar("T")


class PermittedTool:
    """An agent calls only the tools that the policy permits to it. A denied call learns nothing of its server."""

    name = "permitted_tool"
    stage: Stage = "message"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        call.record.policy = self._policy.version
        if call.task:
            return await proceed()
        # A shortened name is found among the permitted tools only (`permitted_tools`).
        denial = self._policy.deny_name(call.principal, call.server, call.tool)
        if denial is not None:
            _refuse(call, denial)
        return await proceed()


class PermittedArguments:
    """An agent calls a tool only with arguments that the policy permits to it."""

    name = "permitted_arguments"
    stage: Stage = "call"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        who = call.principal, call.server, call.tool
        if not call.task and self._policy.decide(*who).argument_rules:
            check = self._policy.check_arguments
            if is_large(call.arguments):
                denial = await call.connection.long_work.run(check, *who, call.arguments, allowed_s=inf)
            else:
                denial = check(*who, call.arguments)
            if denial is not None:
                _refuse(call, denial)
        return await proceed()


def permitted_tools(policy: Policy, agent: str, server: str, tools: Mapping[str, T]) -> dict[str, T]:
    """Of a server's tools those that an agent may call."""
    return {name: tool for name, tool in tools.items() if policy.decide(agent, server, name).denial is None}


def permitted_listing(policy: Policy, agent: str, listing: ToolListing) -> ToolListing:
    """What an agent sees of a server: the tools that it may call, and if there are none, nothing at all."""
    by_name = {tool.tool: tool for tool in listing.tools}
    tools = tuple(permitted_tools(policy, agent, listing.server, by_name).values())
    left_out = permitted_tools(policy, agent, listing.server, listing.left_out)
    instructions = listing.instructions if tools else ""
    return listing.model_copy(update={"tools": tools, "left_out": left_out, "instructions": instructions})


def _refuse(call: RunningCall, denial: Denial) -> None:
    call.record.denial = denial
    raise denial.error
