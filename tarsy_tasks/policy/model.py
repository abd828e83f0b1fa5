"""What a policy says.

Owns the models and their defaults: what an entry leaves out restricts nothing. Which servers there are is checked by
`loading`, the meaning is in `decisions`.
"""

from operator import not_
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from tarsy_tasks.config.texts import Line, Model
from tarsy_tasks.policy.limits import LimitRule
from tarsy_tasks.policy.names import (
    EVERYONE,
    AgentName,
    AgentPattern,
    CapabilityName,
    GrantedCapability,
    ToolPart,
    ToolPattern,
    fold,
)
from tarsy_tasks.policy.schemas import require_enforceable

__all__ = ["AgentRules", "ArgumentRule", "PolicyRules", "ServerRules", "ToolRules"]


def _validate_schema(schema: dict[str, Any]) -> dict[str, Any]:
    require_enforceable(schema)
    return schema


class AgentRules(Model):
    """What one agent may do."""

    capabilities: list[GrantedCapability] = Field(
        default=["mcp_integration"],
        description="What the agent holds: `mcp_integration` (all tools), `mcp_SERVER`, `mcp_SERVER.TOOL`, or names of "
        "your own that tools require.",
    )
    allow: list[ToolPattern] = Field(
        default=[EVERYONE],
        description="The tools that it may call, as `SERVER.TOOL` with `*` and `?`; an empty list means none.",
    )
    deny: list[ToolPattern] = Field(
        default_factory=list, description="The tools that it may not call, even if `allow` has them."
    )
    weight: float = Field(
        default=1,
        ge=0.001,
        le=1000,
        allow_inf_nan=False,
        description="Its share of a server, beside those of other agents.",
    )


class ToolRules(Model):
    """What tools require."""

    required_capabilities: list[CapabilityName] = Field(
        min_length=1, description="Capabilities that an agent has to hold, all of them."
    )


class ServerRules(Model):
    """What all agents may do on one server."""

    allow: list[ToolPart] = Field(
        default=[EVERYONE],
        description="The tools that may be called, with `*` and `?`; an empty list means none.",
    )
    deny: list[ToolPart] = Field(
        default_factory=list, description="The tools that may not be called, even if `allow` has them."
    )
    tools: dict[ToolPart, ToolRules] = Field(
        default_factory=dict, description="What tools require, by name or pattern; all patterns that match count."
    )


class ArgumentRule(Model):
    """With which arguments tools may be called."""

    agents: list[AgentPattern] = Field(default=[EVERYONE], min_length=1, description="The agents that it is about.")
    tools: list[ToolPattern] = Field(min_length=1, description="The tools that it is about.")
    arguments: Annotated[dict[str, Any], AfterValidator(_validate_schema)] = Field(
        min_length=1, description="JSON Schema (2020-12) that the arguments have to fit."
    )
    text: Line = Field(description="What the rule permits, in a sentence for the model.")


class PolicyRules(Model):
    """A policy."""

    agents: dict[AgentName, AgentRules] = Field(
        default_factory=dict,
        description="What agents may do, by name; `anonymous`: not verified, `*`: all without an entry.",
    )
    servers: dict[str, ServerRules] = Field(default_factory=dict, description="What all agents may do, by server.")
    arguments: list[ArgumentRule] = Field(
        default_factory=list[ArgumentRule],
        description="With which arguments tools may be called; all rules that match count.",
    )
    limits: list[LimitRule] = Field(
        default_factory=list[LimitRule],
        max_length=200,
        exclude_if=not_,  # a policy without limits keeps its version
        description="How much may be called; all limits that match count.",
    )

    @field_validator("agents")
    @classmethod
    def _validate_agents(cls, agents: dict[str, AgentRules]) -> dict[str, AgentRules]:
        if agents and EVERYONE not in agents:
            raise ValueError(
                'the entry "*" is missing; say what agents without an entry of their own may do: `{"allow": []}` for '
                "nothing, `{}` for everything"
            )
        first: dict[str, str] = {}
        for name in agents:
            if (other := first.setdefault(fold(name), name)) != name:
                raise ValueError(f"`{other}` and `{name}` differ only in case; rename one of them")
        return agents

    @model_validator(mode="after")
    def _validate_content(self) -> "PolicyRules":
        if not (self.agents or self.servers or self.arguments or self.limits):
            raise ValueError(
                "an empty policy decides nothing; add `agents`, `servers`, `arguments` or `limits`, or remove it"
            )
        return self
