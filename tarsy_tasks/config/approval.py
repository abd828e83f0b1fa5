"""Which calls of a server a person has to approve before they are sent.

Owns the model and its short form. How a call waits for its approval is in `worker.calls.call_approval`.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from tarsy_tasks.config.problems import describe_kind, quote
from tarsy_tasks.config.texts import Model

__all__ = ["Approval", "ApprovalMode", "ApprovalSetting"]

ApprovalMode = Literal["always", "destructive", "never"]
_DAY_S = 24 * 3600
_MODES = get_args(ApprovalMode)


class Approval(Model):
    """Which calls a person has to approve, and how."""

    default: ApprovalMode = Field(
        default="never",
        description="always; never; or destructive: calls of all tools but those that an approved definition declares "
        "to only read (`readOnlyHint`) or to destroy nothing (`destructiveHint: false`).",
    )
    tools: dict[Annotated[str, Field(min_length=1)], ApprovalMode] = Field(
        default_factory=dict,
        description="Instead of `default`: by the name of a tool, or else by the first glob (`get_*`) that matches.",
    )
    expires_s: float = Field(
        default=_DAY_S,
        gt=0,
        le=30 * _DAY_S,
        allow_inf_nan=False,
        description="How long a call waits for its approval, in seconds; then it is rejected.",
    )
    approvers: int = Field(default=1, ge=1, le=5, description="How many people have to approve a call.")

    @property
    def asks(self) -> bool:
        """Whether any call can need an approval."""
        return any(mode != "never" for mode in (self.default, *self.tools.values()))

    def mode_of(self, tool: str) -> ApprovalMode:
        """Which calls of `tool` a person has to approve."""
        if tool in self.tools:
            return self.tools[tool]
        found: list[ApprovalMode] = [mode for glob, mode in self.tools.items() if fnmatchcase(tool, glob)]
        return found[0] if found else self.default


def _expand(value: Any) -> Any:
    if isinstance(value, dict | Approval):
        return value  # pyright: ignore[reportUnknownVariableType]
    if value not in _MODES:
        found = quote(value[:40]) if isinstance(value, str) else describe_kind(value)
        raise ValueError(f"found {found}, expected {', '.join(f'`{mode}`' for mode in _MODES)} or a mapping")
    return {"default": value}


ApprovalSetting = Annotated[Approval, BeforeValidator(_expand, json_schema_input_type=ApprovalMode | Approval)]
"""Or the `default` alone in its place."""
