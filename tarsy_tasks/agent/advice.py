"""Whether a call would be permitted, as far as an agent's process can know without asking anybody.

Owns the order of what it knows: the selection of the executor, the policy that this process finds, the last list of
tools. None of it is security: a worker decides by its own policy, and by who the sender verifiably is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.methods import METHODS
from tarsy_tasks.models import ToolDefinition

if TYPE_CHECKING:
    from celery import Celery

    from tarsy_tasks.policy import Policy

__all__ = ["Adviser", "Permission"]


_NATIVE = "this process runs the function itself, so no worker enforces a policy."


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a call would be permitted. It is true or false itself.

    Attributes:
        is_permitted: As far as it is known.
        reason: In words that a model can read.
        source: Where that is known from: `servers` and `tool_filter` (`selection`), the `policy` that this process
            found, the last list of `tools`, or `nothing`: then the call is not known to be denied.
    """

    is_permitted: bool
    reason: str
    source: Literal["selection", "policy", "tools", "nothing"]

    def __bool__(self) -> bool:
        return self.is_permitted


@dataclass(eq=False)
class Adviser:
    """Advises one executor; `find_app` as for `CallDispatcher`."""

    find_app: "Callable[[], Celery]"
    selection: Selection

    def advise(self, name: str, listed: ToolList | None) -> Permission:
        """Whether a call would be permitted.

        Raises:
            ConfigError: The policy that this process finds is wrong.
        """
        try:
            server, tool = self.selection.resolve(name)
        except ToolNameError as error:
            return Permission(False, str(error), "selection")
        is_native = server in self.selection.native
        if self.selection.is_own(server):
            return Permission(True, "It reads the large results of this agent.", "selection")
        if self._policy is not None:
            asked = self._agent, server, tool
            denial = self._policy.deny_name(*asked) or self._policy.deny_by_limit(*asked)
            if denial is not None and is_native:
                why = f"The policy does not permit it ({denial.rule}): {denial.why}. That is only advice: {_NATIVE}"
                return Permission(False, why, "policy")
            if denial is not None:
                return Permission(False, f"The policy does not permit it ({denial.rule}): {denial.why}.", "policy")
        if is_native:
            return Permission(True, f"{_NATIVE[0].upper()}{_NATIVE[1:]}", "selection")
        if listed is not None and server not in listed.failed_servers and tool not in METHODS:
            names = {each for found in listed if found.server == server for each in (found.tool, found.function_name())}
            if tool not in names and name not in names:
                return Permission(False, f"`{server}` lists no such tool to this agent.", "tools")
            return Permission(True, f"`{server}` lists it to this agent.", "tools")
        if self._policy is not None:
            return Permission(True, "The policy permits it, and the worker's policy decides.", "policy")
        return Permission(True, "Nothing is known here that denies it; the worker decides.", "nothing")

    def permits(self, tool: ToolDefinition) -> bool:
        """Whether the policy permits a tool of the list to this agent, as far as this process knows.

        Raises:
            ConfigError: The policy that this process finds is wrong.
        """
        return self._policy is None or self._policy.deny_name(self._agent, tool.server, tool.tool) is None

    @cached_property
    def _policy(self) -> "Policy | None":
        from tarsy_tasks.policy import load_policy  # most agents never ask

        return load_policy()

    @cached_property
    def _agent(self) -> str:
        from tarsy_tasks.celery_app import bound_agent
        from tarsy_tasks.interceptors import ANONYMOUS

        return bound_agent(self.find_app()) or ANONYMOUS
